"""F5: verify names what is affected, and nothing else; stats count; formats are respected."""

import random
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    FormatError,
    IntegrityError,
    Log,
    MemoryBackend,
    Workspace,
)
from agent_checkpoint.store.checkpoint_entries import FORMAT, seal_entry
from agent_checkpoint.store.objects.object_format import BLOB, RECORD, Object, open_object
from agent_checkpoint.store.objects.references import files_size


def noise(seed: int, size: int = 9000) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def manager(backend: MemoryBackend) -> CheckpointManager:
    return CheckpointManager(backend)


def ids(backend: MemoryBackend) -> "set[str]":
    return {info.id for info in backend.list_objects()}


def spoil(backend: MemoryBackend, name: str, how: str) -> None:
    data, when = backend._objects[name]
    if how == "missing":
        del backend._objects[name]
    elif how == "flipped":
        backend._objects[name] = (data[:-1] + bytes([data[-1] ^ 1]), when)
    elif how == "cut":
        backend._objects[name] = (data[: len(data) // 2], when)
    else:
        other = next(found for found in backend._objects if found != name)
        backend._objects[name] = backend._objects[other]


HOW = ["missing", "flipped", "cut", "swapped"]


@pytest.mark.parametrize("how", HOW)
def test_verify_names_exactly_the_checkpoints_that_share_an_object(
    manager: CheckpointManager, backend: MemoryBackend, how: str
) -> None:
    manager.save("a", {"own": noise(1), "count": 1})
    before = ids(backend)
    manager.save("a", {"own": noise(1), "shared": noise(2)})
    (shared,) = ids(backend) - before
    manager.save("a", {"own": noise(3)})
    manager.save("b", {"list": [{"deep": noise(2)}]})
    manager.fork("a", "c", "a@2")
    assert manager.verify().ok
    objects = len(ids(backend))

    spoil(backend, shared, how)
    report = CheckpointManager(backend).verify()
    assert sorted(row.checkpoint for row in report.problems) == ["a@2", "b@1", "c@1"]
    assert all(shared in row.reason for row in report.problems)
    assert report.checkpoints == 5
    assert report.objects == objects

    other = CheckpointManager(backend)
    assert other.state_dict("a@1") == {"own": noise(1), "count": 1}
    assert other.state_dict("a") == {"own": noise(3)}
    for text in ("a@2", "b", "c"):
        with pytest.raises(IntegrityError, match=shared):
            other.state_dict(text.partition("@")[0], text)


@pytest.mark.parametrize("how", HOW)
def test_every_object_of_a_state_is_looked_at(how: str) -> None:
    backend = MemoryBackend()
    log = Log({"n": n, "text": noise(n, 300)} for n in range(400))
    state = {"log": log, "blob": noise(1).encode(), "dict": {str(n): noise(n) for n in range(9)}}
    CheckpointManager(backend).save("key", state)
    sound = dict(backend._objects)
    assert len(sound) > 20
    for name in sound:
        spoil(backend, name, how)
        report = CheckpointManager(backend).verify()
        assert [row.checkpoint for row in report.problems] == ["key@1"]
        with pytest.raises(IntegrityError):
            CheckpointManager(backend).state_dict("key")
        backend._objects = dict(sound)


def test_a_damaged_object_that_nothing_needs_is_named_by_itself(
    manager: CheckpointManager, backend: MemoryBackend
) -> None:
    manager.save("key", {"a": noise(1)})
    manager.save("gone", {"b": noise(2)})
    manager.delete("gone")
    (orphan,) = (name for name in ids(backend) if noise(2).encode() in _payload(backend, name))
    spoil(backend, orphan, "flipped")
    (problem,) = manager.verify().problems
    assert problem.checkpoint == f"object {orphan}"
    assert manager.gc().objects == 1
    assert manager.verify().ok


def test_two_damaged_objects_of_one_checkpoint_are_one_problem(
    manager: CheckpointManager, backend: MemoryBackend
) -> None:
    manager.save("key", {"a": noise(1), "b": noise(2)})
    for name in ids(backend):
        spoil(backend, name, "flipped")
    assert [row.checkpoint for row in manager.verify().problems] == ["key@1"]


def _payload(backend: MemoryBackend, name: str) -> bytes:
    return open_object(name, backend.get_objects([name])[name]).payload


# -- stats ----------------------------------------------------------------------------------------


def test_stats_of_a_new_store() -> None:
    assert CheckpointManager().stats() == {
        "checkpoints": 0,
        "logical_bytes": 0,
        "stored_bytes": 0,
        "unshared_bytes": 0,
        "dedupe_ratio": 1.0,
        "objects": 0,
        "redacted": 0,
        "keys": {},
    }


def test_what_is_shared_counts_for_each_key_and_once_in_all(
    manager: CheckpointManager, backend: MemoryBackend
) -> None:
    for n in range(5):
        manager.save("a", {"shared": noise(1, 100_000), "n": n})
    manager.save("b", {"shared": noise(1, 100_000), "own": noise(2, 50_000)})
    manager.save("c", {"n": 1})
    stats = manager.stats()
    sizes = {info.id: info.size for info in backend.list_objects()}
    entries = {key: sum(len(entry.data) for entry in backend.read(f"key/{key}")) for key in "abc"}
    assert len(sizes) == stats["objects"] == 2
    assert stats["checkpoints"] == 7
    assert stats["keys"]["a"]["checkpoints"] == 5
    assert stats["keys"]["a"]["stored_bytes"] == entries["a"] + max(sizes.values())
    assert stats["keys"]["b"]["stored_bytes"] == entries["b"] + sum(sizes.values())
    assert stats["keys"]["c"]["stored_bytes"] == entries["c"]
    assert stats["stored_bytes"] == sum(entries.values()) + sum(sizes.values())
    assert 500_000 < stats["keys"]["a"]["logical_bytes"] < 502_000
    assert 650_000 < stats["logical_bytes"] < 653_000
    assert stats["dedupe_ratio"] == stats["logical_bytes"] / stats["stored_bytes"] > 7
    shared, own = max(sizes.values()), min(sizes.values())
    assert [stats["keys"][key]["own_bytes"] - entries[key] for key in "abc"] == [0, own, 0]
    whole = {key: stats["keys"][key]["unshared_bytes"] - entries[key] for key in "abc"}
    assert whole == {"a": 5 * shared, "b": shared + own, "c": 0}
    assert stats["unshared_bytes"] == sum(entries.values()) + sum(whole.values())


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
def test_files_count_for_each_checkpoint_that_has_them(kind: str, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "below" / "deep").mkdir(parents=True)
    (repo / "large").write_bytes(b"x" * 3_000_000)  # in chunks, most of them equal
    (repo / "below" / "deep" / "small").write_bytes(b"y" * 1000)
    (repo / "below" / "again").write_bytes(b"y" * 1000)
    has = 3_002_000
    path = None if kind == "memory" else tmp_path / "store"
    with CheckpointManager(backend=kind, path=path) as manager:
        manager.save("alone", Workspace(repo))
        assert 0 <= manager.stats()["logical_bytes"] - has < 2000
        # A part among others, and one inside of a state that is cut into objects.
        inside = {"text": "a word " * 500, "files": Workspace(repo)}
        manager.save("parts", {"files": Workspace(repo), "state": {"n": 1}})
        manager.save("inside", {"state": {"below": inside}})
        (repo / "below" / "again").write_bytes(b"z" * 1000)
        manager.save("parts", {"files": Workspace(repo), "state": {"n": 2}})
        manager.fork("parts", "fork")
        stats = manager.stats()
    expected = {"alone": 1, "parts": 2, "inside": 1, "fork": 1}
    for key, checkpoints in expected.items():
        assert 0 <= stats["keys"][key]["logical_bytes"] - checkpoints * has < 6000, key
    assert stats["logical_bytes"] == sum(row["logical_bytes"] for row in stats["keys"].values())
    assert stats["dedupe_ratio"] == stats["logical_bytes"] / stats["stored_bytes"] > 5


def test_what_a_snapshot_says_of_its_size_is_not_relied_on() -> None:
    for said in (b'{"bytes":-5}', b'{"bytes":"x"}', b'{"bytes":true}', b"[]", b"{", b"\xff", b"{}"):
        assert files_size(Object(RECORD, (), said)) == 0
    assert files_size(Object(BLOB, (), b'{"bytes":7}')) == 0
    assert files_size(Object(RECORD, (), b'{"bytes":7}')) == 7


def test_stats_work_beside_damage(manager: CheckpointManager, backend: MemoryBackend) -> None:
    manager.save("a", {"list": [noise(n, 300) for n in range(500)]})
    manager.save("b", {"text": noise(1)})
    sound = manager.stats()
    head: Any = manager.store.head("a")
    spoil(backend, head.parts["agent"]["list"]["$list"], "flipped")
    backend.append("key/b", b"rubbish")
    stats = CheckpointManager(backend).stats()
    assert stats["checkpoints"] == 3
    assert stats["keys"]["b"]["checkpoints"] == 2
    assert stats["keys"]["a"]["logical_bytes"] == sound["keys"]["a"]["logical_bytes"]
    assert stats["stored_bytes"] == sound["stored_bytes"] + len(b"rubbish")


def test_stats_work_beside_a_forged_entry(
    manager: CheckpointManager, backend: MemoryBackend
) -> None:
    manager.save("a", {"x": 1})
    record: dict[str, Any] = {"key": "a", "ts_ns": 1, "parts": {"agent": {"$ref": 5}}}
    backend.append("key/a", seal_entry(record))
    assert not manager.verify().ok
    assert manager.stats()["checkpoints"] == 2


# -- the format record ----------------------------------------------------------------------------


def store_of(read: Any, write: Any, features: Any) -> MemoryBackend:
    backend = MemoryBackend()
    CheckpointManager(backend).save("key", {"a": 1})
    backend.put_objects({"ab" * 32: b"nothing needs this"})
    backend.append("meta/format", seal_entry({"read": read, "write": write, "features": features}))
    return backend


@pytest.mark.parametrize("features", [[], ["packs"]])
@pytest.mark.parametrize("verb", ["load", "history", "save", "gc", "fork", "delete"])
def test_a_newer_format_is_neither_read_nor_written(verb: str, features: "list[str]") -> None:
    version = FORMAT if features else FORMAT + 1
    backend = store_of(version, version, features)
    manager = CheckpointManager(backend)
    calls: dict[str, Any] = {
        "load": lambda: manager.load("key", {}),
        "history": lambda: manager.history("key"),
        "save": lambda: manager.save("key", {}),
        "gc": manager.gc,
        "fork": lambda: manager.fork("key", "new"),
        "delete": lambda: manager.delete("key"),
    }
    with pytest.raises(FormatError, match="newer agent-checkpoint"):
        calls[verb]()
    assert len(backend.read("key/key")) == 1


def test_a_store_that_may_only_be_read() -> None:
    backend = store_of(FORMAT, FORMAT + 1, [])
    manager = CheckpointManager(backend)
    assert manager.state_dict("key") == {"a": 1}
    assert manager.verify().checkpoints == 1
    assert manager.gc(dry_run=True).objects == 1
    for write in (lambda: manager.save("key", {}), manager.gc, lambda: manager.delete("key")):
        with pytest.raises(FormatError):
            write()
    assert manager.state_dict("key") == {"a": 1}
    assert ids(backend) == {"ab" * 32}


def test_verify_tells_of_a_damaged_format_record(
    manager: CheckpointManager, backend: MemoryBackend
) -> None:
    manager.save("key", {"a": 1})
    backend.append("meta/format", b"rubbish")
    report = CheckpointManager(backend).verify()
    assert [row.checkpoint for row in report.problems] == ["meta/format"]
    assert report.checkpoints == 1
