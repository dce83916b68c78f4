"""Updates: a change is made to the head, and made again after a conflict."""

import asyncio
from threading import Thread

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, Log
from tests.agents import Agent


def items_of(manager: CheckpointManager) -> list[object]:
    log = Log[object]()
    manager.load("k", log)
    return list(log)


def test_a_new_key_is_changed_as_it_is(manager: CheckpointManager) -> None:
    log = Log(["kept"])
    saved = manager.update("k", log, lambda: log.append("a"), label="x")
    assert manager.history("k")[0]["id"] == saved
    assert manager.history("k")[0]["label"] == "x"
    assert items_of(manager) == ["kept", "a"]


def test_the_head_is_loaded_first(manager: CheckpointManager) -> None:
    manager.save("k", Log([1, 2]))
    log = Log(["other"])
    manager.update("k", log, lambda: log.append(3))
    assert list(log) == [1, 2, 3]
    assert manager.history("k")[0]["parents"] == [manager.history("k")[1]["id"]]


def test_a_held_head_is_not_loaded_again(manager: CheckpointManager) -> None:
    agent = Agent(1)
    head = manager.save("k", agent)
    agent.count = 5
    manager.update("k", agent, lambda: None, holds=head)
    assert manager.state_dict("k")["count"] == 5


def test_a_held_checkpoint_that_is_not_the_head_is_loaded(manager: CheckpointManager) -> None:
    log = Log[int]()
    head = manager.update("k", log, lambda: log.append(1))
    manager.save("k", Log([1, 2]))
    manager.update("k", log, lambda: log.append(3), holds=head)
    assert list(log) == [1, 2, 3]


def test_the_change_is_made_again_after_a_conflict(manager: CheckpointManager) -> None:
    log, others = Log[int](), iter(["first", "second"])

    def change() -> None:
        other = next(others, None)
        if other is not None:
            theirs = Log[str]()
            manager.update("k", theirs, lambda: theirs.append(other))
        log.append(1)

    manager.update("k", log, change)
    assert items_of(manager) == ["first", "second", 1]
    assert list(log) == ["first", "second", 1]


def test_a_failed_change_saves_nothing(manager: CheckpointManager) -> None:
    manager.save("k", Agent(1))
    with pytest.raises(ZeroDivisionError):
        manager.update("k", Agent(), lambda: 1 / 0)
    assert len(manager.history("k")) == 1


def test_a_deleted_key_is_a_conflict(manager: CheckpointManager) -> None:
    log = Log[int]()
    head = manager.update("k", log, lambda: log.append(1))
    manager.delete("k")
    with pytest.raises(ConflictError, match="no checkpoints"):
        manager.update("k", log, lambda: log.append(2), holds=head)
    assert manager.list_keys() == []


def test_a_key_that_is_deleted_during_the_change_is_a_conflict(manager: CheckpointManager) -> None:
    log = Log[int]()
    manager.save("k", log)

    def change() -> None:
        manager.delete("k")
        log.append(1)

    with pytest.raises(ConflictError):
        manager.update("k", log, change)
    assert manager.list_keys() == []


def test_a_writer_that_is_always_overtaken_gives_up(manager: CheckpointManager) -> None:
    agent, times = Agent(), []

    def change() -> None:
        times.append(manager.save("k", Agent()))

    with pytest.raises(ConflictError):
        manager.update("k", agent, change)
    assert len(times) == 100


def test_concurrent_updates_lose_nothing(manager: CheckpointManager) -> None:
    def work(name: str) -> None:
        log, head = Log[str](), None
        for number in range(8):
            item = f"{name}{number}"
            head = manager.update("k", log, lambda item=item: log.append(item), holds=head)

    threads = [Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = items_of(manager)
    assert sorted(items) == sorted(f"{name}{number}" for name in "abc" for number in range(8))
    for name in "abc":
        assert [item for item in items if item[0] == name] == [f"{name}{n}" for n in range(8)]


def test_from_asyncio() -> None:
    async def work() -> None:
        manager, log = CheckpointManager(), Log[int]()
        await manager.aupdate("k", log, lambda: log.append(1))
        assert items_of(manager) == [1]

    asyncio.run(work())
