"""A9: little data that claims to be much takes no memory and little time, and is refused."""

import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, IntegrityError, MemoryBackend, StateError
from agent_checkpoint.store import compression, reading
from agent_checkpoint.store.entries import seal_entry
from agent_checkpoint.store.objects import LEAF, NODE, TEXT, make_object
from agent_checkpoint.store.varints import write_varint

ROOM = 150 << 20

PREAMBLE = """
    import hashlib, resource, sys, zlib
    from agent_checkpoint import CheckpointManager, IntegrityError, MemoryBackend
    from agent_checkpoint.store import compression
    from agent_checkpoint.store.entries import seal_entry
    from agent_checkpoint.store.objects import *
    from agent_checkpoint.store.varints import write_varint

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
    if codec == "zstd" and compression.zstd is None:
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
            packer, byte = compression.zstd.ZstdCompressor(), b"s"
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
    zstd: Any = compression.zstd
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
    monkeypatch.setattr(reading, "MAX_STATE", 300_000)
    bomb = make()
    start = time.monotonic()
    with pytest.raises((IntegrityError, StateError), match="more than it may have"):
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


@pytest.mark.slow
def test_the_real_limit_is_one_that_this_machine_can_bear() -> None:
    """In a process of little memory: a state may be refused, but must not fill it."""
    out = bounded_run(
        f"""
        def put(kind, payload, refs=()):
            name, packed = make_object(kind, payload, refs)
            backend.put_objects({{name: packed.stored()}})
            return name

        name = put(LEAF, b"[" + b",".join([b'{{"a":[]}}'] * 3) + b"]")
        for _ in range(4):
            name = put(NODE, write_varint(1), [name] * 256)
        record = {{"key": "bomb", "ts_ns": 1, "parts": {{"agent": {{"x": {{"$list": name}}}}}}}}
        backend.append("key/bomb", seal_entry(record))
        bounded({ROOM})
        try:
            manager.state_dict("bomb")
        except IntegrityError as error:
            print("refused:", error)
        """
    )
    assert "refused:" in out
