"""Archives: from every store into every store, all of it or nothing."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    FormatError,
    IntegrityError,
)
from agent_checkpoint.store.archive.archive_file import (
    CHECKPOINT,
    END,
    HEADER,
    OBJECT,
    Frame,
    _frames,
)
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.varint import write_varint
from tests.agents import managers
from tests.exact import alike
from tests.unit.store.carried import Carried, fill
from tests.unit.store.counting import HookedBackend

KINDS = ["memory", "file", "sqlite"]


def content(manager: CheckpointManager, key: str = "key") -> "list[Any]":
    """Return all that an archive carries of a key; parents as places, since ids are renamed."""
    rows = manager.history(key)
    places = {row["id"]: at for at, row in enumerate(rows)}
    return [
        {
            **{name: value for name, value in row.items() if name not in ("id", "parents")},
            "parents": [places.get(parent, parent) for parent in row["parents"]],
            "state": manager.state_dict(key, row["id"]),
        }
        for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_everything_arrives(source: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    one, other = managers(tmp_path / "from")[source], managers(tmp_path / "to")[target]
    fill(one)
    assert one.export_archive(tmp_path / "a", "key") == len(one.history("key")) == 6
    assert other.import_archive(tmp_path / "a") == "key"
    assert alike(content(other), content(one))
    assert other.list_keys() == ["key"]
    assert other.verify().ok
    assert other.gc().objects == 0
    fresh = Carried()
    other.load("key", fresh, "key@1")
    assert alike(vars(fresh)["names"], Carried(1).names)
    assert fresh.log == Carried(1).log
    other.save("key", fresh)
    one.close()
    other.close()


def test_an_archive_is_the_same_for_every_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager()
    fill(manager)
    manager.export_archive(tmp_path / "with", "key")
    monkeypatch.setattr(compression, "find_zstd", lambda: None)
    plain = CheckpointManager()
    plain.import_archive(tmp_path / "with")
    assert plain.verify().ok
    assert plain.state_dict("key")["log"] == ["a part"]


def test_an_existing_key_is_left_alone(archive: Path) -> None:
    manager = CheckpointManager()
    manager.save("key", {"mine": 1})
    with pytest.raises(ConflictError, match="already exists"):
        manager.import_archive(archive)
    assert manager.state_dict("key") == {"mine": 1}
    assert len(manager.history("key")) == 1


# -- altered archives -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "a"
    manager = CheckpointManager()
    manager.save("key", {"text": "a text " * 300, "list": list(range(600))}, label="first")
    manager.save("key", {"text": "another " * 300, "list": list(range(601))})
    manager.export_archive(path, "key")
    return path.read_bytes()


def refused(data: bytes, path: Path, key: str = "key") -> None:
    path.write_bytes(data)
    backend = HookedBackend()
    manager = CheckpointManager(backend)
    manager.save("mine", {"a": 1})
    before = (dict(backend._objects), {name: dict(of) for name, of in backend._streams.items()})
    with pytest.raises((IntegrityError, FormatError)):
        manager.import_archive(path)
    after = (dict(backend._objects), {name: dict(of) for name, of in backend._streams.items()})
    assert after == before


HEAD = b'{"key":"key"}'


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_flipped_bit_is_noticed(small: bytes, tmp_path: Path, data: Any) -> None:
    start = small.index(HEAD)
    places = st.integers(0, start - 1) | st.integers(start + len(HEAD), len(small) - 1)
    flip(small, tmp_path, data.draw(places), data.draw(st.integers(0, 7)))


def flip(data: bytes, folder: Path, at: int, bit: int) -> None:
    altered = bytearray(data)
    altered[at] ^= 1 << bit
    refused(bytes(altered), folder / "altered")


def test_each_flipped_bit_of_the_header_is_noticed(small: bytes, tmp_path: Path) -> None:
    start = small.index(HEAD)
    for at in range(start, start + len(HEAD)):
        for bit in range(8):
            flip(small, tmp_path, at, bit)


def test_any_cut_is_noticed(small: bytes, tmp_path: Path) -> None:
    for length in [*range(0, len(small), 37), len(small) - 1]:
        refused(small[:length], tmp_path / "cut")


@pytest.mark.parametrize("more", [b"\0", b"z", b"o\1x", b"x\0", b"\n"])
def test_anything_after_the_end_is_noticed(small: bytes, tmp_path: Path, more: bytes) -> None:
    refused(small + more, tmp_path / "longer")
    refused(small + small, tmp_path / "twice")


def frames(data: bytes, path: Path) -> "list[Frame]":
    path.write_bytes(data)
    with path.open("rb") as file:
        return list(_frames(file, path))


def forged(data: bytes, parts: "list[Frame]") -> bytes:
    """Return an archive of these frames, with a hash that is right."""
    body = data[: data.index(b"\n") + 1]
    for frame in parts:
        body += frame.kind + write_varint(len(frame.content)) + frame.content
    digest = hashlib.sha256(body).digest()
    return body + END + write_varint(len(digest)) + digest


def test_forged_archives_are_refused(small: bytes, tmp_path: Path) -> None:
    whole = [frame for frame in frames(small, tmp_path / "f") if frame.kind != END]
    header = next(frame for frame in whole if frame.kind == HEADER)
    objects = [frame for frame in whole if frame.kind == OBJECT]
    checkpoints = [frame for frame in whole if frame.kind == CHECKPOINT]
    path = tmp_path / "forged"
    path.write_bytes(forged(small, whole))
    assert CheckpointManager().import_archive(path) == "key"
    wrong = {
        "two headers": [header, *whole],
        "no header": whole[1:],
        "checkpoints before their objects": [header, *checkpoints, *objects],
        "objects before what they refer to": [header, *reversed(objects), *checkpoints],
        "checkpoint of another key": [header._replace(content=b'{"key":"x"}'), *whole[1:]],
        "no key": [header._replace(content=b"[]"), *whole[1:]],
        "a name that is not the hash": [
            header,
            objects[0]._replace(content=bytes(32) + objects[0].content[32:]),
            *whole[1:],
        ],
    }
    for number in range(len(objects)):
        wrong[f"without object {number}"] = [f for f in whole if f is not objects[number]]
    for name, parts in wrong.items():
        try:
            refused(forged(small, parts), path)
        except pytest.fail.Exception:
            pytest.fail(f"imported: {name}")


def test_an_archive_without_checkpoints_is_refused(small: bytes, tmp_path: Path) -> None:
    header = next(frame for frame in frames(small, tmp_path / "f") if frame.kind == HEADER)
    refused(forged(small, [header]), tmp_path / "empty")


def test_an_archive_of_a_newer_format_is_refused(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "newer"
    path.write_bytes(small.replace(b"archive 1\n", b"archive 2\n", 1))
    with pytest.raises(FormatError, match="newer"):
        CheckpointManager().import_archive(path)
