"""A9: little data that claims to be much takes no memory and little time, and is refused."""

import hashlib
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, IntegrityError, MemoryBackend, StateError
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.objects import compression, reader
from agent_checkpoint.store.objects.object_format import BLOB, LEAF, NODE, TEXT, make_object
from agent_checkpoint.store.objects.varint import write_varint

ROOM = 150 << 20

PREAMBLE = """
    import hashlib, resource, sys, zlib
    from agent_checkpoint import CheckpointManager, IntegrityError, MemoryBackend
    from agent_checkpoint.store.objects import compression
    from agent_checkpoint.store.checkpoint_entries import seal_entry
    from agent_checkpoint.store.objects.object_format import *
    from agent_checkpoint.store.objects.varint import write_varint

    backend = MemoryBackend()
    manager = CheckpointManager(backend)
    manager.save("sound", {"a": 1})

    def bounded(room):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))

    def forge(name, stored):
        backend._objects[name] = (stored, 0.0)
        record = {"key": "bomb", "ts_ns": 1, "parts": {"agent": {"x": {"$ref": name}}}}
        backend.append("key/bomb", seal_entry(record))
"""


def bounded_run(code: str) -> str:
    """Run code in a process that has little more memory than it needs to start."""
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is bounded and measured on Linux only")
    program = textwrap.dedent(PREAMBLE) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zlib", "zstd"])
def test_a_gigabyte_in_a_few_kilobytes(codec: str) -> None:
    if codec == "zstd" and compression.load_zstd() is None:
        pytest.skip("zstd is not installed")
    out = bounded_run(
        f"""
        megabyte = bytes(1 << 20)
        if "{codec}" == "zlib":
            packer, byte = zlib.compressobj(), b"z"
            start = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
            again = packer.compress(megabyte) + packer.flush(zlib.Z_FULL_FLUSH)
            bomb = start + again * 1023 + packer.flush()
        else:
            packer, byte = compression.load_zstd().ZstdCompressor(), b"s"
            bomb = b"".join(packer.compress(megabyte) for _ in range(1024)) + packer.flush()
        del packer
        assert len(bomb) < 1_200_000, len(bomb)
        bounded({ROOM})
        for number, size in enumerate([0, 1000, (1 << 25) - 1, 1 << 25, 1 << 30, 1 << 62]):
            forge("%02x" % number * 32, byte + write_varint(size) + bomb)
            try:
                manager.state_dict("bomb")
            except IntegrityError as error:
                print("refused:", error)
        print(len(manager.verify().problems), manager.state_dict("sound"))
        """
    )
    assert out.count("refused:") == 6
    assert "6 {'a': 1}" in out


def test_a_frame_that_asks_for_a_huge_window() -> None:
    zstd: Any = compression.load_zstd()
    if zstd is None:
        pytest.skip("zstd is not installed")
    options = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.compression_level: 1,
    }
    packer = zstd.ZstdCompressor(options=options)
    frame = packer.compress(b"x" * 1000) + packer.flush()
    with pytest.raises(IntegrityError):
        compression.unpack(b"s" + write_varint(1000) + frame, 10_000)


# -- few objects that stand for very many ---------------------------------------------------------


class Bomb:
    """A store with a checkpoint whose few objects stand for more than any memory holds."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.manager = CheckpointManager(self.backend)
        self.manager.save("sound", {"a": 1})

    def put(self, kind: bytes, payload: bytes, refs: Any = ()) -> str:
        name, packed = make_object(kind, payload, refs)
        self.backend.put_objects({name: packed.stored()})
        return name

    def plant(self, tree: Any) -> None:
        record: dict[str, Any] = {"key": "bomb", "ts_ns": 1, "parts": {"agent": {"x": tree}}}
        self.backend.append("key/bomb", seal_entry(record))


def laughing_list(leaf: bytes, levels: int, fan_out: int = 256) -> Bomb:
    bomb = Bomb()
    name = bomb.put(LEAF, leaf)
    for _ in range(levels):
        name = bomb.put(NODE, write_varint(1), [name] * fan_out)
    bomb.plant({"$list": name})
    return bomb


def laughing_refs(levels: int, fan_out: int = 100) -> Bomb:
    bomb = Bomb()
    name = bomb.put(TEXT, b'"ha"')
    for _ in range(levels):
        texts = b",".join([b'{"$ref":"%b"}' % name.encode()] * fan_out)
        name = bomb.put(TEXT, b"[" + texts + b"]", [name])
    bomb.plant({"$ref": name})
    return bomb


def laughing_blob(times: int = 10**5) -> Bomb:
    bomb = Bomb()
    name = bomb.put(b"b", b"ha" * 10**5)
    bomb.plant({"$bytes": {"$blob": [name] * times}})
    return bomb


def laughing_map(levels: int) -> Bomb:
    bomb = Bomb()
    name = bomb.put(LEAF, b'[["a",1]]')
    for _ in range(levels):
        name = bomb.put(NODE, write_varint(1), [name] * 256)
    bomb.plant({"$map": name})
    return bomb


@pytest.mark.parametrize(
    "make",
    [
        lambda: laughing_list(b'["ha"]', 8),
        lambda: laughing_list(b"[]", 8),
        lambda: laughing_refs(8),
        laughing_blob,
        lambda: laughing_map(8),
    ],
    ids=["list", "empty leaves", "refs", "blob", "map"],
)
def test_few_objects_that_stand_for_many(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_STATE", 300_000)
    bomb = make()
    start = time.monotonic()
    with pytest.raises((IntegrityError, StateError), match="exceeds the decode limit"):
        bomb.manager.state_dict("bomb")
    assert bomb.manager.verify().checkpoints == 2
    assert bomb.manager.gc().objects == 0
    assert bomb.manager.stats()["checkpoints"] == 2
    assert time.monotonic() - start < 20
    assert bomb.manager.state_dict("sound") == {"a": 1}


def test_a_very_long_chain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = Bomb()
    name = bomb.put(TEXT, b'"end"')
    for _ in range(3000):
        name = bomb.put(TEXT, b'[{"$ref":"%b"}]' % name.encode(), [name])
    bomb.plant({"$ref": name})
    with pytest.raises((IntegrityError, StateError)):
        bomb.manager.state_dict("bomb")
    assert bomb.manager.verify().ok  # every byte is what its name says


# -- crafted archives -----------------------------------------------------------------------------


class Crafted:
    """An archive that says of itself that it is sound."""

    def __init__(self) -> None:
        self.frames: dict[bytes, None] = {}

    def put(self, kind: bytes, payload: bytes, refs: "Sequence[str]" = ()) -> str:
        name, packed = make_object(kind, payload, refs)
        self.frame(b"o", bytes.fromhex(name) + packed.stored())
        return name

    def frame(self, kind: bytes, content: bytes) -> None:
        self.frames[kind + write_varint(len(content)) + content] = None

    def leaf(self, item: bytes, size: int = 48_000, refs: "Sequence[str]" = ()) -> str:
        items = [item] * (size // (len(item) + 1))
        return self.put(LEAF, b"[" + b",".join(items) + b"]", refs)

    def repeated(self, name: str, *times: int) -> Any:
        for number in times:
            name = self.put(NODE, b"", [name] * number)
        return {"$list": name}

    def write(self, path: Path, tree: Any) -> int:
        record = {"key": "bomb", "ts_ns": 1, "size": 1 << 30, "parts": {"agent": {"x": tree}}}
        self.frame(b"c", write_varint(1) + seal_entry(record))
        data = b'agent-checkpoint archive 1\nh\x0e{"key":"bomb"}' + b"".join(self.frames)
        data += b"z\x20" + hashlib.sha256(data).digest()
        return path.write_bytes(data)


def many_lists(archive: Crafted) -> Any:
    return archive.repeated(archive.leaf(b"[]"), 256, 256, 256)


def many_dicts(archive: Crafted) -> Any:
    return archive.repeated(archive.leaf(b'{"a":[]}'), 256, 256)


def deep_dicts(archive: Crafted) -> Any:
    return archive.repeated(archive.leaf(b'{"":' * 300 + b"0" + b"}" * 300), 256, 256)


def many_logs(archive: Crafted) -> Any:
    return archive.repeated(archive.leaf(b'{"$log":[]}'), 256, 256)


def many_leaves(archive: Crafted) -> Any:
    """Not the same all the time, but all of it packs well."""
    leaves = [archive.leaf(b"[]", 500_000 + 3 * n) for n in range(5)]
    return archive.repeated(archive.put(NODE, b"", leaves), 256, 256)


def much_of_bytes(archive: Crafted) -> Any:
    zeros = archive.put(BLOB, bytes(1 << 20))
    item = json.dumps({"$bytes": {"$blob": [zeros] * 50}}).encode()
    return archive.repeated(archive.leaf(item, 9000, [zeros]), 200)


def much_wide_text(archive: Crafted) -> Any:
    """One character that is not Latin makes all others four times as large."""
    pieces = [archive.put(BLOB, "🎉".encode()), archive.put(BLOB, b"a" * (1 << 20))]
    item = json.dumps({"$text": [pieces[0], *[pieces[1]] * 50]}).encode()
    return archive.repeated(archive.leaf(item, 9000, pieces), 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "backend"),
    [
        *((shape, "memory") for shape in (many_dicts, many_logs, many_leaves)),
        (many_lists, "sqlite"),
        *((shape, "file") for shape in (many_lists, deep_dicts, much_of_bytes, much_wide_text)),
    ],
)
def test_a_crafted_archive_takes_some_hundred_megabytes(
    shape: Any, backend: str, tmp_path: Path
) -> None:
    archive = Crafted()
    assert archive.write(tmp_path / "a", shape(archive)) < 14_000
    out = bounded_run(
        f"""
        bounded(2 << 30)  # more than it should take: what it took is told below
        path = None if {backend!r} == "memory" else {str(tmp_path / "store")!r}
        with CheckpointManager(backend={backend!r}, path=path) as manager:
            try:
                manager.import_archive({str(tmp_path / "a")!r})
                manager.load("bomb", {{}})
            except IntegrityError as error:
                print("refused:", error)
            print(manager.list_keys())
        # Not ru_maxrss, which begins with the size of the process that started this one.
        status = open("/proc/self/status").read()
        print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
        """
    )
    *_, keys, megabytes = out.splitlines()
    assert int(megabytes) < 700
    assert "exceeds the decode limit" in out
    assert keys == ("[]" if backend == "file" else "['bomb']")
