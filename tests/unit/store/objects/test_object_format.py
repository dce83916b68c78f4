"""Objects: their names never change, whatever is installed; lies in them are refused."""

import hashlib
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, FormatError, IntegrityError, MemoryBackend
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.object_format import (
    MAX_OBJECT,
    TEXT,
    TerminalRef,
    make_object,
    open_object,
)
from agent_checkpoint.store.objects.varint import read_varint, write_varint
from agent_checkpoint.store.store import Store
from tests.unit.store.objects.test_splitting import noise

STATE = {
    "list": [{"n": n, "x": n / 7, "text": f"é {n} " * 9} for n in range(700)],
    "floats": [1e-7, 1e300, -0.0, 1e16, 0.1] * 300,
    "bytes": b"\0\1" * 3000,
    "text": "a long text " * 500,
    "dict": {f"k{n}": n for n in range(3000)},
}


def test_names_are_for_ever() -> None:
    """Written down: a change here would make every store of today unreadable."""
    name, packed = make_object(TEXT, b'{"a":1}', ["ab" * 32, TerminalRef("cd" * 32)])
    assert packed.plain == b"t\x02\x02" + b"\xab" * 32 + b"\xcd" * 32 + b'{"a":1}'
    assert name == hashlib.sha256(packed.plain).hexdigest()
    assert make_object(TEXT, b"")[0] == hashlib.sha256(b"t\0").hexdigest()


@pytest.mark.parametrize("without", [(), ("zstd",), ("orjson",), ("zstd", "orjson")])
def test_a_state_has_the_same_objects_whatever_is_installed(
    without: "tuple[str, ...]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> "set[str]":
        backend = MemoryBackend()
        CheckpointManager(backend).save("key", STATE)
        return {info.id for info in backend.list_objects()}

    usual = names()
    assert len(usual) > 20
    if "zstd" in without:
        monkeypatch.setattr(compression, "find_zstd", lambda: None)
    if "orjson" in without:
        monkeypatch.setattr(canonical_json, "orjson", None)
    assert names() == usual


@pytest.mark.skipif(compression.load_zstd() is None, reason="zstd is not installed")
def test_without_zstd_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()  # which cannot tell the codecs of its objects
    CheckpointManager(backend).save("small", {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_compression", lambda self: "zstd")
        CheckpointManager(backend).save("key", STATE)
    monkeypatch.setattr(compression, "find_zstd", lambda: None)
    plain = CheckpointManager(backend)
    with pytest.raises(FormatError, match=r"zstd.*pip install backports\.zstd"):
        plain.state_dict("key")
    assert plain.state_dict("small") == {"a": 1}
    assert [row.checkpoint for row in plain.verify().problems if "@" in row.checkpoint] == ["key@1"]
    with pytest.raises(FormatError, match="zstd"):
        plain.gc()
    plain.save("key", {"a": 2})
    assert plain.state_dict("key") == {"a": 2}


def test_a_store_may_hold_objects_of_every_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    codecs = "rz" if compression.load_zstd() is None else "rzs"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_compression", lambda self: "zstd" if "s" in codecs else "zlib")
        CheckpointManager(backend).save("one", STATE)
    CheckpointManager(backend).save("two", {**STATE, "text": "another " * 900, "raw": noise(500)})
    assert {data[:1].decode() for data, _ in backend._objects.values()} == set(codecs)
    manager = CheckpointManager(backend)
    assert manager.state_dict("one") == STATE
    assert manager.state_dict("two")["text"] == "another " * 900
    assert manager.verify().ok


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def zlib_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = pytest.importorskip(request.param)
    monkeypatch.setattr(compression, "_zlib", module)
    return module


def test_isal_and_zlib_read_what_the_other_writes(
    zlib_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, made = make_object(TEXT, b"content " * 4000 + noise(900).encode())
    stored = made.stored()
    assert stored[:1] == b"z"
    for reader in (zlib, pytest.importorskip("isal.isal_zlib")):
        monkeypatch.setattr(compression, "_zlib", reader)
        assert open_object(name, stored).payload == made.payload


@pytest.mark.parametrize(("size", "calls"), [(500, 15), (8 << 10, 8), (60 << 10, 2)])
def test_many_calls_or_much_data_import_isal(
    monkeypatch: pytest.MonkeyPatch, size: int, calls: int
) -> None:
    monkeypatch.setattr(compression, "_zlib", None)
    monkeypatch.setattr(compression, "_seen", 0)
    monkeypatch.setitem(sys.modules, "isal", None)
    data = b"text " * (size // 5)
    for _ in range(calls - 1):
        compression.pack(data)
        assert compression._zlib is None
    compression.pack(data)
    compression.pack(data)
    assert compression._zlib is zlib  # not installed


# -- lies -----------------------------------------------------------------------------------------


def test_a_damaged_zlib_stream_is_refused(zlib_module: Any) -> None:
    plain = b"t\0" + b"content " * 1000 + noise(100).encode()
    name, good = hashlib.sha256(plain).hexdigest(), zlib_packed(plain, len(plain))
    assert open_object(name, good).payload == plain[2:]
    for at in range(len(good)):
        with pytest.raises(IntegrityError, match=name):
            open_object(name, good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        with pytest.raises(IntegrityError, match=name):
            open_object(name, good[:at])
    with pytest.raises(IntegrityError, match=name):
        open_object(name, good + b"x")


def zlib_packed(data: bytes, size: int) -> bytes:
    return b"z" + write_varint(size) + zlib.compress(data)


def zstd_packed(data: bytes, size: int) -> bytes:
    if compression.load_zstd() is None:
        pytest.skip("zstd is not installed")
    return b"s" + write_varint(size) + bytes(compression.load_zstd().compress(data))


@pytest.mark.parametrize("packed", [zlib_packed, zstd_packed])
@pytest.mark.parametrize("lie", [-1, 1, -(10**9), MAX_OBJECT, 2**62])
def test_a_size_that_lies_is_refused(packed: Any, lie: int, zlib_module: Any) -> None:
    plain = b"t\0" + b"content " * 1000
    name = hashlib.sha256(plain).hexdigest()
    assert open_object(name, packed(plain, len(plain))).payload == plain[2:]
    with pytest.raises(IntegrityError, match=name):
        open_object(name, packed(plain, max(0, len(plain) + lie)))


@pytest.mark.parametrize("count", [1, 5, 127, 10**6, 2**62])
def test_a_number_of_references_that_lies_is_refused(count: int) -> None:
    plain = b"t" + write_varint(count) + bytes(20)
    with pytest.raises(IntegrityError, match="list of references is truncated"):
        open_object(hashlib.sha256(plain).hexdigest(), b"r" + plain)


@pytest.mark.parametrize("plain", [b"", b"t", b"t\x80", b"t\x80\x00", b"t" + b"\xff" * 20])
def test_a_plain_form_that_is_cut_is_refused(plain: bytes) -> None:
    with pytest.raises(IntegrityError):
        open_object(hashlib.sha256(plain).hexdigest(), b"r" + plain)


@pytest.mark.parametrize("stored", [b"", b"x", b"q\0\0", b"z", b"s", b"z\x80", b"z\5", b"s\5abc"])
def test_what_was_never_packed_is_refused(stored: bytes) -> None:
    with pytest.raises((IntegrityError, FormatError)):
        open_object("ab" * 32, stored)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x00", b"\xff" * 9, b"\xff" * 30])
def test_numbers_that_are_none(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="Truncated or malformed varint"):
        read_varint(data, 0)


def test_an_object_has_a_largest_size() -> None:
    with pytest.raises(IntegrityError, match="exceeds the limit"):
        make_object(TEXT, bytes(MAX_OBJECT))
    name, packed = make_object(TEXT, bytes(MAX_OBJECT - 2))
    assert len(open_object(name, packed.stored()).payload) == MAX_OBJECT - 2


def test_large_values_never_meet_that_limit(tmp_path: Path) -> None:
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "s")
    state = {"text": "é" * 2**21, "bytes": bytes(5 * 2**20)}
    manager.save("key", state)
    assert manager.state_dict("key") == state
    manager.close()
