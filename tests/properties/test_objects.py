"""What holds for every object, however it is packed."""

import hashlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import FormatError, IntegrityError
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.compression import pack, unpack
from agent_checkpoint.store.objects.object_format import (
    Object,
    TerminalRef,
    make_object,
    open_object,
)
from agent_checkpoint.store.objects.varint import read_varint, write_varint

ours = settings(max_examples=75, deadline=None, derandomize=True)

kinds = st.binary(min_size=1, max_size=1)
payloads = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda part, n: part * n, st.binary(max_size=30), st.integers(0, 300)),
)
names = st.binary(min_size=32, max_size=32).map(bytes.hex)
refs = st.lists(names | names.map(TerminalRef), max_size=20).map(tuple)
codecs = st.sampled_from(["zlib"] if compression.load_zstd() is None else ["zlib", "zstd"])


def stored(packed: Any, codec: str) -> bytes:
    data: bytes = packed.stored(codec)
    return data


def types(found: Object) -> "list[type]":
    return [type(name) for name in found.refs]


@ours
@given(kinds, payloads, refs, codecs)
def test_every_object_comes_back(
    kind: bytes, payload: bytes, below: "tuple[str, ...]", codec: str
) -> None:
    name, packed = make_object(kind, payload, below)
    found = open_object(name, stored(packed, codec))
    assert found == (kind, below, payload)
    assert types(found) == [type(ref) for ref in below]
    assert name == hashlib.sha256(packed.plain).hexdigest()


@ours
@given(kinds, payloads, refs, st.data())
def test_other_content_has_another_name(
    kind: bytes, payload: bytes, below: "tuple[str, ...]", data: Any
) -> None:
    other = data.draw(st.tuples(kinds, payloads, refs))
    same = other == (kind, payload, below) and [*map(type, other[2])] == [*map(type, below)]
    assert (make_object(kind, payload, below)[0] == make_object(*other)[0]) == same


def test_an_end_is_part_of_the_name() -> None:
    name = "ab" * 32
    assert make_object(b"t", b"", [name])[0] != make_object(b"t", b"", [TerminalRef(name)])[0]


@ours
@given(kinds, payloads, refs, codecs, st.data())
def test_any_flipped_bit_is_refused_or_means_nothing(
    kind: bytes, payload: bytes, below: "tuple[str, ...]", codec: str, data: Any
) -> None:
    name, packed = make_object(kind, payload, below)
    altered = bytearray(stored(packed, codec))
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    # Both packers have bits that nobody reads.
    with suppress(IntegrityError, FormatError):
        assert open_object(name, bytes(altered)) == (kind, below, payload)


@ours
@given(kinds, payloads, refs, codecs, st.data())
def test_any_cut_or_addition_is_refused(
    kind: bytes, payload: bytes, below: "tuple[str, ...]", codec: str, data: Any
) -> None:
    name, packed = make_object(kind, payload, below)
    whole = stored(packed, codec)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    longer = whole + data.draw(st.binary(min_size=1, max_size=9))
    for altered in (cut, longer):
        with pytest.raises((IntegrityError, FormatError)):
            open_object(name, altered)


@ours
@given(names, st.binary(max_size=60))
def test_any_bytes_are_refused(name: str, data: bytes) -> None:
    with pytest.raises((IntegrityError, FormatError)):
        open_object(name, data)


@ours
@given(payloads, codecs)
def test_packing_never_adds_more_than_a_byte(data: bytes, codec: str) -> None:
    packed = pack(data, codec)
    assert len(packed) <= len(data) + 1
    assert unpack(packed, len(data)) == data
    if data:
        with pytest.raises(IntegrityError, match="the limit is"):
            unpack(packed, len(data) - 1)


@ours
@given(st.integers(0, 2**63 - 1), st.binary(max_size=4), st.binary(max_size=4))
def test_every_number_comes_back(number: int, before: bytes, after: bytes) -> None:
    written = write_varint(number)
    assert read_varint(before + written + after, len(before)) == (
        number,
        len(before) + len(written),
    )
    assert len(written) == max(1, -(-number.bit_length() // 7))


@ours
@given(st.binary(max_size=12))
def test_a_number_has_one_form(data: bytes) -> None:
    try:
        number, end = read_varint(data, 0)
    except IntegrityError:
        return
    assert write_varint(number) == data[:end]
