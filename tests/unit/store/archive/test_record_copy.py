"""Record logs in archives and copies: every record arrives under its number, or nothing does."""

import hashlib
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    MemoryBackend,
    Shared,
    copy,
)
from agent_checkpoint.store.archive.archive_file import END, RECORD, _frames
from agent_checkpoint.store.archive.record_copy import LogRecord
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.objects.varint import write_varint
from tests.agents import managers

KINDS = ["memory", "file", "sqlite"]
VALUES = [None, {"task": "a", "text": "x" * 5000}, Shared("y" * 900), b"\0" * 3000, ("t", {1})]


def fill(manager: CheckpointManager) -> None:
    manager.records("key", "a/b").append(VALUES)  # before the key
    manager.save("key", {"n": 1})
    for value in VALUES:
        manager.records("key", "id").append(value)
    manager.records("keys", "id").append("of another key")


def logs(manager: CheckpointManager, key: str = "key") -> "dict[str, Any]":
    found = [name for owner, name in manager.list_records(key) if owner == key]
    return {name: manager.records(key, name).read() for name in found}


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_every_record_arrives(source: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    one, other = managers(tmp_path / "from")[source], managers(tmp_path / "to")[target]
    fill(one)
    one.export_archive(tmp_path / "a", "key")
    other.import_archive(tmp_path / "a")
    assert logs(other) == logs(one)
    assert len(logs(other)["id"]) == len(VALUES)
    assert other.list_records() == [("key", "a/b"), ("key", "id")]
    assert other.records("key", "id").append("own") == len(VALUES) + 1
    other.gc()
    assert logs(other)["id"][:-1] == logs(one)["id"], "gc keeps their objects"
    other.export_archive(tmp_path / "b", "key")
    last = managers(tmp_path)["memory"]
    last.import_archive(tmp_path / "b")
    assert logs(last) == logs(other), "an import can be exported"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["import", "copy"])
def test_records_keep_their_numbers_where_the_key_was_deleted(
    kind: str, way: str, tmp_path: Path
) -> None:
    """A cleared log does not use its numbers again, and adapters refer to records by number."""
    (tmp_path / "to").mkdir()
    source, target = CheckpointManager(), managers(tmp_path / "to")[kind]
    fill(source)
    source.export_archive(tmp_path / "a", "key")

    def carry() -> None:
        if way == "import":
            target.import_archive(tmp_path / "a")
        else:
            copy(source, target, ["key"])

    carry()
    target.delete("key")
    assert logs(target) == {"a/b": [], "id": []} or logs(target) == {}
    carry()
    assert logs(target) == logs(source)
    log = target.records("key", "id")
    assert log.newest() == len(VALUES)
    assert log.read(after=2) == logs(source)["id"][2:]
    own = log.append("own")
    assert own > len(VALUES)
    assert log.read(after=len(VALUES)) == [(own, "own")]
    assert log.newest() == own


def test_numbers_of_removed_records_stay_unused(tmp_path: Path) -> None:
    source, target = CheckpointManager(), CheckpointManager()
    fill(source)
    source.store.backend.remove("meta/records/key/id", [1, 3])
    source.export_archive(tmp_path / "a", "key")
    target.import_archive(tmp_path / "a")
    assert [number for number, _ in logs(target)["id"]] == [2, 4, 5]
    assert logs(target) == logs(source)


def test_a_copied_record_takes_its_number() -> None:
    log = CheckpointManager().records("key", "id")
    assert log.append("a", number=3) == 3
    assert log.append("b", number=7) == 7
    with pytest.raises(InvalidInputError, match="above 7"):
        log.append("c", number=7)
    assert log.read() == [(3, "a"), (7, "b")]
    assert log.read(after=3) == [(7, "b")]
    assert log.newest() == 7
    assert log.append("own") == 8


def test_secrets_in_records_are_masked(tmp_path: Path) -> None:
    secret = "ghp_Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7H"
    source, target = CheckpointManager(), CheckpointManager()
    fill(source)
    source.records("key", "id").append({"text": f"push with {secret}"})
    source.export_archive(tmp_path / "a", "key", mask=True)
    assert secret.encode() not in (tmp_path / "a").read_bytes()
    target.import_archive(tmp_path / "a")
    assert logs(target)["id"][:-1] == logs(source)["id"][:-1]
    assert logs(target)["id"][-1][1] == {"text": "push with [masked:github-token]"}
    source.records("key", secret).append(1)
    with pytest.raises(InvalidInputError, match="record log has a secret in a name"):
        source.export_archive(tmp_path / "b", "key", mask=True)


# -- all or nothing --------------------------------------------------------------------------------


def test_a_key_with_records_of_its_own_is_not_imported(tmp_path: Path) -> None:
    source, target = CheckpointManager(), CheckpointManager()
    fill(source)
    source.export_archive(tmp_path / "a", "key")
    target.records("key", "mine").append("mine")
    with pytest.raises(ConflictError, match="already has records of 'key'"):
        target.import_archive(tmp_path / "a")
    assert target.list_keys() == []
    assert logs(target) == {"mine": [(1, "mine")]}


class Pulled(BaseException):
    pass


class PulledBackend(MemoryBackend):
    """Fails at an append. With `is_killed`, nothing can be removed after that."""

    left = 0
    is_killed = False

    def append(self, *arguments: Any, **options: Any) -> int:
        self.left -= 1
        if self.left == 0:
            raise Pulled
        return super().append(*arguments, **options)

    def remove(self, *arguments: Any) -> None:
        if self.is_killed and self.left <= 0:
            raise Pulled
        super().remove(*arguments)


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("is_killed", [False, True])
def test_an_interrupted_import_leaves_no_record(tmp_path: Path, at: int, is_killed: bool) -> None:
    source = CheckpointManager()
    fill(source)
    source.export_archive(tmp_path / "a", "key")
    backend = PulledBackend()
    target = CheckpointManager(backend)
    target.save("mine", {"a": 1})
    backend.left, backend.is_killed = at, is_killed
    with pytest.raises(Pulled):
        target.import_archive(tmp_path / "a")
    backend.is_killed = False
    assert target.list_keys() == ["mine"]
    assert all(not found for found in logs(target).values())
    assert any(backend.read(name) for name in backend.streams("meta/records/")) == (
        is_killed and at > 3
    )
    target.import_archive(tmp_path / "a")
    assert logs(target) == logs(source)


def changed(path: Path, change: "Callable[[LogRecord], Optional[LogRecord]]") -> Path:
    """Write an archive with other records; the hash of the file is right."""
    with path.open("rb") as file:
        line = file.readline()
        file.seek(0)
        frames = list(_frames(file, path))
    data = line
    for frame in frames:
        content = frame.content
        if frame.kind == RECORD:
            length = content[0]
            name, number = content[1 : 1 + length].decode(), content[1 + length]
            made = change(LogRecord(name, number, content[2 + length :]))
            if made is None:
                continue
            content = made.frame()
        if frame.kind == END:
            content = hashlib.sha256(data).digest()
        data += frame.kind + write_varint(len(content)) + content
    path.write_bytes(data)
    return path


NO_OBJECT = seal_entry({"parts": {"record": {"value": {"$ref": "0" * 64}}}})


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record._replace(number=0),
        lambda record: record._replace(number=5),
        lambda record: record._replace(number=record.number + 1_000_000),
        lambda record: record._replace(number=6 - record.number),
        lambda record: record._replace(entry=record.entry[:-1]),
        lambda record: record._replace(entry=seal_entry({"parts": []})),
        lambda record: record._replace(entry=seal_entry({})),
        lambda record: record._replace(entry=NO_OBJECT),
        lambda record: record._replace(log="x" * 100_000),
        lambda record: record._replace(log=""),
    ],
)
def test_a_crafted_record_is_refused_and_nothing_is_imported(tmp_path: Path, change: Any) -> None:
    source, target = CheckpointManager(), CheckpointManager()
    fill(source)
    source.export_archive(tmp_path / "a", "key")
    with pytest.raises(IntegrityError):
        target.import_archive(changed(tmp_path / "a", change))
    assert target.list_keys() == []
    assert all(not found for found in logs(target).values())


def test_an_archive_without_its_records_is_still_one(tmp_path: Path) -> None:
    source, target = CheckpointManager(), CheckpointManager()
    fill(source)
    source.export_archive(tmp_path / "a", "key")
    target.import_archive(changed(tmp_path / "a", lambda record: None))
    assert (logs(target), target.state_dict("key")) == ({}, {"n": 1})
