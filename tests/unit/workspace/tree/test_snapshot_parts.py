"""A workspace as a part of checkpoints, on every backend: saved, kept and restored with others."""

import asyncio
import random
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    IntegrityError,
    KeepLatest,
    Log,
    StateError,
    StateMismatchError,
    Workspace,
)
from agent_checkpoint.errors import StorageError
from agent_checkpoint.store.objects.references import ObjectRef
from tests.agents import Agent, managers
from tests.team_stores import TEAM_STORES, team_store
from tests.unit.workspace.disk import File, Folder, Link, clear, describe, make

BACKENDS = ["memory", "file", "sqlite", "pickle"]
THINGS = {
    b"src/app.py": File(b"print(1)\n"),
    b"bin/run": File(b"#!/bin/sh\n", 0o755),
    b"link": Link(b"src"),
    b"empty": Folder(0o700),
    b"caf\xe9\n": File(b"odd"),
    b"large": File(random.Random(1).randbytes(2_500_000)),
    **{b"many/%04d" % number: File(b"%d" % number) for number in range(40)},
}
WIDE = {b"wide/%04d" % number: File(b"%d" % number) for number in range(600)}


@pytest.fixture(params=[*BACKENDS, *TEAM_STORES])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[CheckpointManager]":
    url = team_store(request, tmp_path)
    if url is not None:
        with CheckpointManager(url) as remote:
            yield remote
        return
    every = managers(tmp_path)
    yield every[request.param]
    for other in every.values():
        other.close()


@pytest.fixture
def ws(root: Path) -> Iterator[Workspace]:
    with Workspace(root) as workspace:
        yield workspace


def edit(root: Path, text: str) -> None:
    (root / "src" / "app.py").write_text(text)
    (root / "many" / "0030").write_text(text)
    (root / text).mkdir()


@pytest.mark.slow
def test_it_is_saved_and_loaded_with_an_agent(manager: CheckpointManager, ws: Workspace) -> None:
    make(ws.path, WIDE)
    agent, before = Agent(1), describe(ws.path)
    manager.save("key", {"agent": agent, "workspace": ws})
    agent.count = 2
    edit(ws.path, "two")
    manager.load("key", {"agent": agent, "workspace": ws})
    assert agent.count == 1
    assert describe(ws.path) == before
    assert manager.verify().ok


def test_it_is_a_checkpoint_by_itself(manager: CheckpointManager, ws: Workspace) -> None:
    before = describe(ws.path)
    manager.save("key", ws)
    clear(ws.path)
    manager.load("key", ws)
    assert describe(ws.path) == before


def test_one_of_its_own_key_is_loaded_like_any_other(
    manager: CheckpointManager, root: Path
) -> None:
    ws, before = Workspace(root, manager.store), describe(root)
    ws.snapshot()
    clear(root)
    manager.load(ws.key, {"workspace": ws})
    assert describe(root) == before


def test_every_checkpoint_of_it_is_loaded(manager: CheckpointManager, ws: Workspace) -> None:
    saved = {}
    for text in ("one", "two", "three"):
        edit(ws.path, text)
        saved[manager.save("key", {"workspace": ws, "log": Log([text])})] = describe(ws.path)
    for cid in [*saved, *reversed(saved)]:
        manager.load("key", {"workspace": ws}, checkpoint_id=cid)
        assert describe(ws.path) == saved[cid]


def test_it_stores_what_changed(manager: CheckpointManager, ws: Workspace) -> None:
    manager.save("key", {"workspace": ws})
    before = {info.id: info.size for info in manager.store.backend.list_objects()}
    (ws.path / "src" / "app.py").write_text("print(2)\n")
    manager.save("key", {"workspace": ws})
    after = {info.id: info.size for info in manager.store.backend.list_objects()}
    assert after.keys() > before.keys()
    assert sum(after[name] for name in after.keys() - before.keys()) < 2000


def test_nothing_of_it_is_saved_if_another_part_cannot_be(
    manager: CheckpointManager, ws: Workspace
) -> None:
    manager.save("key", {"agent": Agent(1), "workspace": ws})
    agent, before = Agent(2), describe(ws.path)
    edit(ws.path, "two")
    agent.memory = [lambda: None]
    for parts in ({"agent": agent, "workspace": ws}, {"workspace": ws, "agent": agent}):
        with pytest.raises(StateError):
            manager.save("key", parts)
    assert len(manager.history("key")) == 1
    manager.load("key", {"agent": agent, "workspace": ws})
    assert (agent.count, describe(ws.path)) == (1, before)
    edit(ws.path, "three")
    three = describe(ws.path)
    manager.save("key", {"agent": agent, "workspace": ws})
    clear(ws.path)
    manager.load("key", {"workspace": ws, "agent": agent})
    assert describe(ws.path) == three


def test_nothing_of_it_is_saved_if_the_head_has_moved(
    manager: CheckpointManager, ws: Workspace
) -> None:
    first = manager.save("key", {"workspace": ws})
    manager.save("key", {"workspace": ws})
    edit(ws.path, "two")
    with pytest.raises(ConflictError):
        manager.save("key", {"workspace": ws}, expected_head=first)
    two = describe(ws.path)
    manager.save("key", {"workspace": ws})
    clear(ws.path)
    manager.load("key", {"workspace": ws})
    assert describe(ws.path) == two


def test_a_save_that_failed_is_made_up_for_by_the_next(
    manager: CheckpointManager, ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(manager.store.backend, "append", fail)
        manager.save("key", {"workspace": ws})
    before = describe(ws.path)
    manager.save("key", {"workspace": ws})
    assert manager.verify().ok
    clear(ws.path)
    manager.load("key", {"workspace": ws})
    assert describe(ws.path) == before


def test_a_rollback_brings_the_files_back(manager: CheckpointManager, ws: Workspace) -> None:
    agent, before = Agent(1), describe(ws.path)
    parts = {"agent": agent, "workspace": ws}
    with pytest.raises(ZeroDivisionError), manager.rollback_context("key", parts):
        agent.count = 2
        clear(ws.path)
        make(ws.path, {b"src": File(b"a file now"), b"link/x": File(b"a folder now")})
        manager.save("key", parts)
        raise ZeroDivisionError
    assert agent.count == 1
    assert describe(ws.path) == before
    manager.load("key", {"agent": agent, "workspace": ws})
    assert describe(ws.path) == before


def test_a_block_that_ends_well_keeps_its_files(manager: CheckpointManager, ws: Workspace) -> None:
    with manager.rollback_context("key", {"workspace": ws}):
        edit(ws.path, "two")
    assert (ws.path / "two").is_dir()


def test_it_is_taken_at_the_call_of_a_save_in_the_background(
    manager: CheckpointManager, ws: Workspace
) -> None:
    before, saved = describe(ws.path), []
    for text in ("one", "two", "three"):
        saved.append((manager.save_in_background("key", {"workspace": ws}), describe(ws.path)))
        edit(ws.path, text)
    assert describe(ws.path) != before
    for future, described in saved:
        manager.load("key", {"workspace": ws}, checkpoint_id=future.result())
        assert describe(ws.path) == described
    assert manager.verify().ok


def test_it_is_saved_and_loaded_by_asyncio(manager: CheckpointManager, ws: Workspace) -> None:
    before = describe(ws.path)

    async def work() -> None:
        await manager.asave("key", {"workspace": ws})
        edit(ws.path, "two")
        await manager.aload("key", {"workspace": ws})

    asyncio.run(work())
    assert describe(ws.path) == before


def test_a_diff_shows_that_it_changed(manager: CheckpointManager, ws: Workspace) -> None:
    first = manager.save("key", {"workspace": ws, "agent": Agent(1)})
    same = manager.diff("key", agent={"workspace": ws, "agent": Agent(1)})
    assert same == {"added": {}, "removed": {}, "changed": {}}
    edit(ws.path, "two")
    changes = manager.diff("key", agent={"workspace": ws, "agent": Agent(1)})
    assert list(changes["changed"]) == ["workspace"]
    old, new = changes["changed"]["workspace"]
    assert isinstance(old, ObjectRef)
    assert isinstance(new, ObjectRef)
    second = manager.save("key", {"workspace": ws, "agent": Agent(1)})
    between = manager.diff("key", checkpoint_id_a=first, checkpoint_id_b=second)
    assert list(between["changed"]) == ["workspace"]
    assert ws.diff(old, new).added == ["two/"]


def test_a_fork_has_its_files(manager: CheckpointManager, ws: Workspace, tmp_path: Path) -> None:
    before = describe(ws.path)
    manager.save("key", {"workspace": ws})
    manager.fork("key", "other")
    edit(ws.path, "two")
    manager.save("key", {"workspace": ws})
    manager.delete("key")
    manager.gc()
    other = tmp_path / "other"
    other.mkdir()
    manager.load("other", {"workspace": Workspace(other, manager.store)})
    assert describe(other) == before


def test_gc_keeps_what_is_needed_and_no_more(manager: CheckpointManager, ws: Workspace) -> None:
    saved = {}
    for text in ("one", "two", "three", "four"):
        edit(ws.path, text)
        saved[manager.save("key", {"workspace": ws, "agent": Agent()})] = describe(ws.path)
    assert manager.gc().objects == 0
    manager.prune("key", KeepLatest(2))
    assert manager.gc().objects > 0
    assert manager.verify().ok
    for cid, described in list(saved.items())[2:]:
        clear(ws.path)
        manager.load("key", {"workspace": ws}, checkpoint_id=cid)
        assert describe(ws.path) == described
    manager.delete("key")
    for key in manager.list_keys():  # the safety checkpoints of the loads
        manager.delete(key)
    manager.gc()
    assert list(manager.store.backend.list_objects()) == []


def test_damage_is_found_and_named(manager: CheckpointManager, ws: Workspace) -> None:
    manager.save("key", {"agent": Agent()})
    good = manager.save("key", {"workspace": ws})
    (ws.path / "src" / "app.py").write_text("print('only here')\n")
    known = {info.id for info in manager.store.backend.list_objects()}
    bad = manager.save("key", {"workspace": ws})
    new = {info.id for info in manager.store.backend.list_objects()} - known
    manager.store.backend.delete_objects([min(new)])
    assert {problem.checkpoint for problem in manager.verify().problems} == {"key@3"}
    now = describe(ws.path)
    edit(ws.path, "two")
    with pytest.raises(IntegrityError):
        clear(ws.path)
        manager.load("key", {"workspace": ws}, checkpoint_id=bad)
    assert describe(ws.path) == {}
    manager.load("key", {"workspace": ws}, checkpoint_id=good)
    assert describe(ws.path).keys() == now.keys()


@pytest.mark.parametrize(
    "route", [*permutations(["file", "sqlite", "memory"]), ("pickle", "sqlite")]
)
@pytest.mark.slow
def test_an_archive_brings_it_from_store_to_store(
    tmp_path: Path, root: Path, route: "tuple[str, ...]"
) -> None:
    every, saved = managers(tmp_path), []
    agent = Agent(1)
    with Workspace(root) as ws:
        for text in ("one", "two"):
            edit(root, text)
            agent.count += 1
            every[route[0]].save("key", {"workspace": ws, "agent": agent}, label=text)
            saved.append(describe(root))
    for here, there in zip(route, route[1:]):
        archive = tmp_path / f"{here}-{there}"
        assert every[here].export_archive(archive, "key") == 2
        every[here].delete("key")
        every[here].gc()
        assert every[there].import_archive(archive) == "key"
    last = every[route[-1]]
    assert last.verify().ok
    assert last.gc().objects == 0
    empty = tmp_path / "empty"
    empty.mkdir()
    target = Workspace(empty, last.store)
    for checkpoint, described in zip(["key~1", "key"], saved):
        last.load("key", {"workspace": target, "agent": agent}, checkpoint_id=checkpoint)
        assert describe(empty) == described
    for manager in every.values():
        manager.close()


def test_a_state_that_is_none_of_a_workspace_is_refused(
    manager: CheckpointManager, ws: Workspace
) -> None:
    manager.save("key", {"workspace": Agent()})
    before = describe(ws.path)
    with pytest.raises((StateError, StateMismatchError)):
        manager.load("key", {"workspace": ws})
    assert describe(ws.path) == before


def test_a_users_dict_that_looks_like_a_reference_is_a_dict(manager: CheckpointManager) -> None:
    state: dict[str, Any] = {"$object": "a" * 64, "deep": [{"$object": 1}, {"$object": "b" * 64}]}
    manager.save("key", state)
    assert manager.state_dict("key") == state
    assert manager.gc().objects == 0
    assert manager.verify().ok
