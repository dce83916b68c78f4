"""Logs in stores: exact at every step, at the cost of what is new."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    FileBackend,
    Log,
    MemoryBackend,
    StateError,
    StorageError,
)
from tests.agents import managers
from tests.unit.store.counting import CountingBackend, HookedBackend


class SavedStep(Checkpointable):
    def __init__(self, name: str = "") -> None:
        self.name = name


class SavedChat(Checkpointable):
    def __init__(self, *items: Any) -> None:
        self.messages: Log[Any] = Log(items)
        self.count = 0


def message(n: int) -> "dict[str, Any]":
    return {"role": "user", "n": n, "content": f"message {n} " * 20}


@pytest.fixture(params=["memory", "file", "pickle", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with managers(tmp_path)[request.param] as opened:
        yield opened


def loaded(manager: CheckpointManager, key: str = "key", at: Any = None) -> "list[Any]":
    chat = SavedChat("old")
    held = chat.messages
    manager.load(key, chat, at)
    assert chat.messages is held
    return list(held)


def test_an_attribute_is_loaded_in_place(manager: CheckpointManager) -> None:
    items = [message(n) for n in range(300)]
    manager.save("key", SavedChat(*items))
    assert loaded(manager) == items


def test_a_part_is_loaded_in_place(manager: CheckpointManager) -> None:
    log = Log(message(n) for n in range(100))
    manager.save("key", {"messages": log, "chat": SavedChat(1)})
    fresh: Log[Any] = Log(["old"])
    manager.load("key", {"messages": fresh})
    assert fresh == log
    manager.save("alone", log)
    other: Log[Any] = Log()
    manager.load("alone", other)
    assert other == log


def test_it_may_stand_anywhere(manager: CheckpointManager) -> None:
    state = {"a": {"log": Log([message(1), Log([2])])}, "list": [Log(), Log([(1, 2), {3}])]}
    manager.save("key", state)
    found = manager.state_dict("key")
    assert found == state
    assert type(found["a"]["log"]) is Log
    assert type(found["a"]["log"][1]) is Log


def test_a_short_log_of_large_items(manager: CheckpointManager) -> None:
    log = Log(["x" * 9000, b"y" * 9000, {"list": list(range(3000))}])
    for _ in range(3):
        manager.save("key", {"log": log, "n": 1})
        assert manager.state_dict("key") == {"log": log, "n": 1}
        log.append("z" * 9000)
    assert manager.gc().objects == 0
    assert manager.verify().ok


def test_objects_in_items_come_back_as_objects(manager: CheckpointManager) -> None:
    manager.save("key", SavedChat({"step": SavedStep("read")}, [SavedStep("write")]))
    items = loaded(manager)
    assert [type(items[0]["step"]), items[1][0].name] == [SavedStep, "write"]
    manager.save("part", {"log": Log([SavedStep("part")])})
    log: Log[Any] = Log()
    manager.load("part", {"log": log})
    assert log[0].name == "part"


def test_it_loads_into_a_plain_attribute(manager: CheckpointManager) -> None:
    manager.save("key", SavedChat(1, 2))
    chat = SavedChat()
    chat.messages = None  # type: ignore[assignment]
    manager.load("key", chat)
    assert type(chat.messages) is Log
    assert chat.messages == [1, 2]


def test_streaming_saves_each_form_of_the_last_item(manager: CheckpointManager) -> None:
    chat = SavedChat(*map(message, range(50)), {"text": ""})
    ids = []
    for n in range(30):
        chat.messages[-1] = {"text": "token " * n}
        ids.append(manager.save("key", chat))
    for n, cid in enumerate(ids):
        assert loaded(manager, at=cid) == [*map(message, range(50)), {"text": "token " * n}]


@pytest.mark.parametrize("keep", [0, 1, 60, 199, 200])
def test_it_can_be_cut_back_and_go_on(manager: CheckpointManager, keep: int) -> None:
    chat = SavedChat(*map(message, range(200)))
    first = manager.save("key", chat)
    chat.messages.truncate(keep)
    chat.messages.extend(map(message, range(1000, 1100)))
    manager.save("key", chat)
    assert loaded(manager) == [*map(message, range(keep)), *map(message, range(1000, 1100))]
    assert loaded(manager, at=first) == [*map(message, range(200))]


def test_one_log_in_two_stores(tmp_path: Path) -> None:
    stores = list(managers(tmp_path).values())
    chat = SavedChat()
    for n in range(60):
        chat.messages.append(message(n))
        if n % 7 == 0:
            chat.messages[-1] = message(-n)
        stores[n % len(stores)].save("key", chat)
        assert loaded(stores[n % len(stores)]) == list(chat.messages)
    for store in stores:
        assert store.verify().ok
        store.close()


def test_it_is_written_again_after_gc_took_it_away() -> None:
    backend = MemoryBackend()
    manager = CheckpointManager(backend)
    chat = SavedChat(*map(message, range(500)))
    manager.save("key", chat)
    manager.delete("key")
    assert manager.gc().objects > 0
    assert not list(backend.list_objects())
    chat.messages.append("more")
    manager.save("key", chat)
    assert loaded(CheckpointManager(backend)) == list(chat.messages)
    assert manager.verify().ok


def test_a_failed_save_is_not_remembered() -> None:
    backend = HookedBackend()
    manager = CheckpointManager(backend)
    chat = SavedChat(*map(message, range(10)))
    manager.save("key", chat)
    chat.messages.extend(map(message, range(10, 300)))

    def fail() -> None:
        raise StorageError("full")

    backend.before_append = fail
    with pytest.raises(StorageError):
        manager.save("key", chat)
    appends = backend.appends
    manager.save("key", chat)
    assert backend.appends == appends + 1  # nothing was taken for stored that is not
    assert loaded(CheckpointManager(backend)) == list(chat.messages)


@pytest.mark.parametrize("change", ["truncate", "replace", "load", "append"])
def test_a_background_save_stores_the_moment_of_the_call(
    manager: CheckpointManager, change: str
) -> None:
    chat = SavedChat(*map(message, range(100)))
    manager.save("key", chat)
    chat.messages.extend(map(message, range(100, 200)))
    gate = threading.Event()
    manager.background.submit(lambda: str(gate.wait(30)))
    future = manager.save_in_background("key", chat)
    if change == "truncate":
        chat.messages.truncate(50)
        chat.messages.extend(["new"] * 200)
    elif change == "replace":
        chat.messages[-1] = "new"
    elif change == "load":
        chat.messages.load_state_dict(["new"] * 300)
    else:
        chat.messages.append("new")
    gate.set()
    assert loaded(manager, at=future.result(30)) == [*map(message, range(200))]
    manager.save("key", chat)
    assert loaded(manager) == list(chat.messages)


def test_a_rollback_restores_it_in_place(manager: CheckpointManager) -> None:
    chat = SavedChat(*map(message, range(100)), {"step": SavedStep("one")})
    held, before = chat.messages, list(map(message, range(100)))
    with pytest.raises(KeyError), manager.rollback_context("key", chat):
        held.truncate(3)
        held.append("wrong")
        manager.save("key", chat)
        chat.messages = Log(["another"])
        raise KeyError
    assert chat.messages is held
    assert held[:100] == before
    assert held[100]["step"].name == "one"
    held.append("on")
    manager.save("key", chat)
    assert len(loaded(manager)) == 102


def test_forks_and_diffs_see_the_items(manager: CheckpointManager) -> None:
    chat = SavedChat(*map(message, range(60)))
    first = manager.save("key", chat)
    manager.fork("key", "twin")
    chat.messages.append({"n": 60})
    assert manager.diff("key", agent=chat, deep=True)["added"] == {"messages[60]": {"n": 60}}
    second = manager.save("key", chat)
    changes = manager.diff("key", checkpoint_id_a=first, checkpoint_id_b=second, deep=True)
    assert changes == {"added": {"messages[60]": {"n": 60}}, "removed": {}, "changed": {}}
    assert loaded(manager, "twin") == [*map(message, range(60))]


def test_a_file_store_has_it_in_full(tmp_path: Path) -> None:
    manager = CheckpointManager(FileBackend(tmp_path))
    manager.save("key", SavedChat(*map(message, range(200))))
    (entry,) = tmp_path.glob("key/*.json")
    assert "message 0 " in entry.read_text()
    assert "message 199 " in entry.read_text()


def test_a_save_costs_the_same_at_any_length() -> None:
    backend = CountingBackend()
    manager, chat = CheckpointManager(backend), SavedChat()
    for n in range(1020):
        chat.messages.append(message(n))
        manager.save("key", chat)
    early, late = backend.appended[10:30], backend.appended[1000:1020]
    assert max(objects for objects, _ in late) <= 4
    assert sum(size for _, size in late) < 1.6 * sum(size for _, size in early)
    # Only a leaf that has become whole may be worth asking for.
    assert "get_objects" not in backend.calls
    assert len(backend.calls) <= 20
    assert loaded(manager) == list(chat.messages)


def test_the_size_of_a_state_does_not_depend_on_what_was_stored() -> None:
    manager, chat = CheckpointManager(), SavedChat(*["word " * 2000] * 10)
    manager.save("key", chat)
    manager.save("key", chat)
    sizes = [checkpoint.size for checkpoint in manager.store.newest_first("key")]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("again", [False, True])
def test_a_few_items_that_are_very_long(manager: CheckpointManager, again: bool) -> None:
    """The log itself stands in the entry, and what its items have must still be counted."""
    chat = SavedChat(*({"content": letter * 1_000_000} for letter in "abcdef"))
    manager.save("key", chat)
    if again:
        chat.messages.append({"content": "g" * 1_000_000})
        manager.save("key", chat)
    size = next(manager.store.newest_first("key")).size
    assert size > 1_000_000 * len(chat.messages)
    assert loaded(manager) == list(chat.messages)


def test_an_item_that_cannot_be_stored_is_named() -> None:
    chat = SavedChat(1, {"call": lambda: 1})  # can be copied, but not stored
    with pytest.raises(StateError, match=r"messages\[1\]\.call"):
        CheckpointManager().save("key", chat)


def test_saves_leave_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """What a save allocates is freed when it returns, with the content of its objects."""
    chat = {"messages": Log([{"text": "a" * 2000}])}
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("chat", chat)
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                chat["messages"].append({"text": f"{number}" * 2000, "parts": [{"n": number}]})
                manager.save("chat", chat)
            assert gc.collect() == 0
        finally:
            gc.enable()
