"""Imports that were killed, or meet others: all of an archive, or nothing to be seen."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    IntegrityError,
    NotFoundError,
)
from agent_checkpoint.records import Entry
from agent_checkpoint.store.archive import importer
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.objects.object_format import TEXT, make_object
from tests.unit.store.carried import fill
from tests.unit.store.counting import HookedBackend


class Killed(BaseException):
    pass


def kill(backend: HookedBackend, archive: Path, after: int) -> None:
    """Import, and be killed after so many checkpoints."""
    removed, appended = backend.remove, backend.append
    streams: list[str] = []

    def die(stream: str, entry: bytes, **options: Any) -> int:
        streams.append(stream)
        if streams.count("key/key") > after:
            raise Killed
        return appended(stream, entry, **options)

    def fail(*_: Any) -> None:
        raise Killed

    backend.append, backend.remove = die, fail  # type: ignore[method-assign]
    with pytest.raises(Killed):
        CheckpointManager(backend).import_archive(archive)
    backend.append, backend.remove = appended, removed  # type: ignore[method-assign]
    assert len(backend.read("key/key")) == min(after, 6)


@pytest.fixture(params=[0, 2, 6])
def killed(request: pytest.FixtureRequest, archive: Path) -> HookedBackend:
    """A store in which an import was killed: at once, midway, or before its last step."""
    backend = HookedBackend()
    CheckpointManager(backend).save("mine", {"a": 1})
    kill(backend, archive, request.param)
    return backend


@pytest.fixture
def elsewhere(archive: Path, monkeypatch: pytest.MonkeyPatch) -> HookedBackend:
    """A store into which a process of another machine imports, or was killed by it."""
    backend = HookedBackend()
    CheckpointManager(backend).save("mine", {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(importer, "_this_process", lambda: "another-machine/1/1")
        kill(backend, archive, 2)
    return backend


def test_what_is_not_finished_is_out_of_sight(elsewhere: HookedBackend) -> None:
    manager = CheckpointManager(elsewhere)
    assert manager.list_keys() == ["mine"]
    assert manager.list_keys("k") == []
    assert manager.stats()["checkpoints"] == 1
    assert manager.verify().checkpoints == 1
    assert manager.verify().ok
    for look in (
        lambda: manager.load("key", {}),
        lambda: manager.load("key", {}, "key@1"),
        lambda: manager.history("key"),
        lambda: manager.delete("key"),
        lambda: manager.fork("key", "x"),
        lambda: manager.export_archive("x", "key"),
    ):
        with pytest.raises(NotFoundError):
            look()
    assert len(elsewhere.read("key/key")) == 2


def test_what_was_killed_is_out_of_sight(killed: HookedBackend) -> None:
    manager = CheckpointManager(killed)
    assert manager.list_keys() == ["mine"]
    assert manager.verify().checkpoints == manager.stats()["checkpoints"] == 1
    with pytest.raises(NotFoundError):
        manager.history("key")


def test_saving_after_a_killed_import_shows_only_what_is_saved(killed: HookedBackend) -> None:
    saving_shows_only_what_is_saved(killed)


def test_saving_beside_an_import_shows_only_what_is_saved(elsewhere: HookedBackend) -> None:
    saving_shows_only_what_is_saved(elsewhere)


def saving_shows_only_what_is_saved(backend: HookedBackend) -> None:
    manager = CheckpointManager(backend)
    manager.save("key", {"new": 1})
    manager.save("key", {"new": 2})
    assert [row["parts"] for row in manager.history("key")] == [["agent"]] * 2
    assert manager.history("key")[1]["parents"] == []
    assert manager.state_dict("key~1") == {"new": 1}
    assert manager.list_keys() == ["key", "mine"]


def test_the_next_import_cleans_up_and_succeeds(killed: HookedBackend, archive: Path) -> None:
    manager = CheckpointManager(killed)
    manager.import_archive(archive)
    source = CheckpointManager()
    fill(source)
    assert [row["label"] for row in manager.history("key")] == [
        row["label"] for row in source.history("key")
    ]
    assert not killed.read("meta/import")
    assert manager.gc().objects == 0
    assert manager.verify().ok


def test_gc_drops_what_a_killed_import_left(killed: HookedBackend) -> None:
    manager = CheckpointManager(killed)
    assert manager.gc().objects > 0
    assert not killed.read("key/key")
    assert not killed.read("meta/import")
    assert manager.state_dict("mine") == {"a": 1}


def test_gc_drops_what_was_forgotten_for_a_day(
    elsewhere: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(elsewhere)
    entries = elsewhere.read("key/key")
    manager.gc()  # takes what no entry names, and leaves the entries: perhaps it is under way
    assert manager.gc().objects == 0
    assert elsewhere.read("key/key") == entries
    later = time.time_ns() + 25 * 3600 * 10**9
    monkeypatch.setattr(importer.time, "time_ns", lambda: later)
    assert manager.gc().objects > 0
    assert not elsewhere.read("key/key")
    assert not elsewhere.read("meta/import")
    assert manager.state_dict("mine") == {"a": 1}


@pytest.mark.parametrize("process", ["nobody", "HERE/²/1", "HERE/1", f"HERE/{'9' * 5000}/1"])
def test_gc_leaves_an_import_whose_process_makes_no_sense(
    process: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = process.replace("HERE", socket.gethostname())
    monkeypatch.setattr(importer, "_this_process", lambda: named)
    backend = HookedBackend()
    kill(backend, archive, 2)
    monkeypatch.undo()
    CheckpointManager(backend).gc()
    assert len(backend.read("meta/import")) == 1


def test_a_fork_to_the_key_of_a_killed_import(killed: HookedBackend) -> None:
    manager = CheckpointManager(killed)
    manager.fork("mine", "key")
    assert manager.state_dict("key") == {"a": 1}


def test_a_key_that_is_being_imported_elsewhere_is_taken(
    elsewhere: HookedBackend, archive: Path
) -> None:
    manager = CheckpointManager(elsewhere)
    with pytest.raises(ConflictError):
        manager.import_archive(archive)
    with pytest.raises(ConflictError):
        manager.fork("mine", "key")
    assert len(elsewhere.read("key/key")) == 2
    assert len(elsewhere.read("meta/import")) == 1


def test_a_save_to_the_key_meanwhile_wins(archive: Path) -> None:
    backend = HookedBackend()
    manager = CheckpointManager(backend)
    backend.before_append = lambda: CheckpointManager(backend).save("key", {"mine": 1})
    with pytest.raises(ConflictError):
        manager.import_archive(archive)
    assert manager.state_dict("key") == {"mine": 1}
    assert len(manager.history("key")) == 1
    assert not backend.read("meta/import")


def test_an_import_that_finishes_meanwhile_is_seen_whole_or_not_at_all(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = HookedBackend()
    kill(backend, archive, 6)
    usual = backend.read

    def read(stream: str, **options: Any) -> "list[Entry]":
        if stream != "key/key":
            return usual(stream, **options)
        monkeypatch.undo()
        early = [entry for entry in usual(stream, **options) if entry.seq <= 2]
        backend.remove("meta/import", [1])  # the import writes the rest, and ends
        return early

    monkeypatch.setattr(backend, "read", read)
    try:
        rows = CheckpointManager(backend).history("key")
    except NotFoundError:
        return
    assert len(rows) == 6


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Other libraries raise it and do not always set it back."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("usual_recursion_limit")
def test_a_chain_of_objects_is_refused(tmp_path: Path) -> None:
    backend = HookedBackend()
    name, packed = make_object(TEXT, b'"end"')
    backend.put_objects({name: packed.stored()})
    for _ in range(3000):
        name, packed = make_object(TEXT, b'[{"$ref":"%b"}]' % name.encode(), [name])
        backend.put_objects({name: packed.stored()})
    parts: Any = {"agent": {"x": {"$ref": name}}}
    backend.append("key/chain", seal_entry({"key": "chain", "ts_ns": 1, "parts": parts}))
    CheckpointManager(backend).export_archive(tmp_path / "a", "chain")
    readable = CheckpointManager(backend="file", path=tmp_path / "store")
    with pytest.raises(IntegrityError):
        readable.import_archive(tmp_path / "a")
    assert readable.list_keys() == []
