"""Objects: immutable bytes under the name of their hash.

Owns the plain form, the name and the check on reading; knows no backend and no state.

    plain   = kind (1 byte), number of references (varint), which of them are ends (a bit each,
              the lowest of a byte first), references (32 bytes each), payload
    name    = SHA-256 of plain, as 64 hex digits
    stored  = plain packed by `compression`

Every object lists what it refers to, so that gc, verify and archives follow the references of
kinds that they do not know. An end refers to nothing: it need not be read to find that out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.store.objects.compression import pack, unpack
from agent_checkpoint.store.objects.varint import read_varint, write_varint

MAX_OBJECT = 1 << 25
"""The largest plain form, in bytes, that is written or read (32 MiB)."""

ID_BYTES = 32

TEXT, BLOB, LEAF, NODE, SPINE, TAIL = b"t", b"b", b"l", b"n", b"s", b"e"
"""JSON text; raw bytes; and the four kinds that make up a long list (`sequences.py`)."""

DIRECTORY, WIDE, CHUNKS, RECORD = b"d", b"w", b"c", b"r"
"""A directory; a wide one in parts; a file in chunks; a snapshot: what workspaces are made of."""

STATE_KINDS = frozenset({TEXT, BLOB, LEAF, NODE, SPINE, TAIL})
"""The kinds that states are made of: a load reads what they refer to, and nothing else."""


class TerminalRef(str):
    """The name of an object that refers to nothing."""

    __slots__ = ()


class Object(NamedTuple):
    """An object that was read, and found to be what its name says; names of ends are `End`s."""

    kind: bytes
    refs: tuple[str, ...]
    payload: bytes


class PlainObject(NamedTuple):
    """An object that is ready to be written: packed when that is needed, not before."""

    kind: bytes
    plain: bytes
    """The bytes that the name is the hash of."""
    start: int
    """Where in them the payload begins."""
    refs: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many bytes the plain form has."""
        return len(self.plain)

    @property
    def payload(self) -> bytes:
        """What it holds."""
        return self.plain[self.start :]

    def stored(self, compression: str = "zlib") -> bytes:
        """Return the bytes for a backend or an archive; every installation can unpack zlib."""
        return pack(self.plain, compression)


def make_object(kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> tuple[str, PlainObject]:
    """Return the name of an object, and the object to be written. Raises as `make_plain` does."""
    packed = plain_object(kind, payload, refs)
    return hashlib.sha256(packed.plain).hexdigest(), packed


def plain_object(kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> PlainObject:
    """Return an object to be written.

    Args:
        kind: one byte.
        payload: what it holds.
        refs: the names of the objects that the payload refers to, of ends as `End`.

    Raises:
        IntegrityError: it is larger than an object may be; callers cut what is large.
    """
    if refs:
        ends = sum([1 << place for place, name in enumerate(refs) if type(name) is TerminalRef])
        flags = ends.to_bytes((len(refs) + 7) // 8, "little")
        head = kind + write_varint(len(refs)) + flags + bytes.fromhex("".join(refs))
    else:
        head = kind + b"\0"
    plain = head + payload
    if len(plain) > MAX_OBJECT:
        raise IntegrityError(f"An object of {len(plain)} bytes is larger than {MAX_OBJECT}.")
    return PlainObject(kind, plain, len(head), tuple(refs))


def open_object(name: str, stored: bytes) -> Object:
    """Return the object that the stored bytes hold.

    Raises:
        IntegrityError: the bytes are not those that the name stands for.
        FormatError: this installation cannot unpack them.
    """
    try:
        plain = unpack(stored, MAX_OBJECT)
        if hashlib.sha256(plain).hexdigest() != name:
            raise IntegrityError("Its bytes do not match its name.")
        if plain[1:2] == b"\0":  # most refer to nothing
            return Object(plain[:1], (), plain[2:])
        count, at = read_varint(plain, 1)
        start = at + (count + 7) // 8
        end = start + count * ID_BYTES
        if end > len(plain):
            raise IntegrityError("Its references are cut.")
    except (IntegrityError, FormatError) as error:
        raise type(error)(f"The object {name} cannot be used. {error}") from None
    return Object(plain[:1], _refs(plain[at:start], plain[start:end].hex()), plain[end:])


def as_read(packed: PlainObject) -> Object:
    """Return an object that is to be written as it will be read."""
    return Object(packed.kind, packed.refs, packed.payload)


def _refs(flags: bytes, names: str) -> tuple[str, ...]:
    ends = int.from_bytes(flags, "little")
    return tuple(
        TerminalRef(names[at : at + 2 * ID_BYTES])
        if ends >> (at // (2 * ID_BYTES)) & 1
        else names[at : at + 2 * ID_BYTES]
        for at in range(0, len(names), 2 * ID_BYTES)
    )


class LostObjectError(IntegrityError):
    """An object is missing; if the checkpoint that needs it is gone too, nothing is wrong."""


def missing_objects(names: Iterable[str]) -> LostObjectError:
    """Return the error for objects that a checkpoint needs and the store lacks."""
    lost = sorted(names)
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return LostObjectError(
        f"The object {lost[0]}{more} is missing from the store. Restore it from a copy; verify() "
        "names the checkpoints that need it."
    )
