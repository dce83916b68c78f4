"""Content-addressed objects: immutable bytes, identified by their hash.

Owns the plain form, the object id and its verification. Does not depend on backends or states.

    plain   = kind (1 byte), number of references (varint), which of them are terminal (a bit each,
              the lowest of a byte first), references (32 bytes each), payload
    id      = SHA-256 of plain, as 64 hex digits
    stored  = plain, compressed by `compression`

Every object lists its references, so that gc, verify and export can follow objects of unknown
kinds. A terminal reference is one to an object without references: a traversal need not read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agent_checkpoint.errors import FormatError, Hint, IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import Compression
from agent_checkpoint.store.objects.compression import pack, unpack
from agent_checkpoint.store.objects.varint import read_varint, write_varint

MAX_OBJECT = 1 << 25
"""The maximum size of a plain form that is written or read (32 MiB)."""

ID_BYTES = 32
_BATCH = 1 << 25

TEXT, BLOB, LEAF, NODE, SPINE, TAIL = b"t", b"b", b"l", b"n", b"s", b"e"
"""JSON text; raw bytes; and the four kinds of objects of a long list (`merkle_list.py`)."""

DIRECTORY, WIDE, CHUNKS, RECORD = b"d", b"w", b"c", b"r"
"""Kinds for workspaces: a directory, a wide directory in parts, a file in chunks, a snapshot."""

STATE_KINDS = frozenset({TEXT, BLOB, LEAF, NODE, SPINE, TAIL})
"""Kinds for states. A load follows the references of these kinds only."""


class TerminalRef(str):
    """The id of an object that has no references."""

    __slots__ = ()


class SplicedRefs(list[str]):
    """The references of an object that was made from another one by few changes."""

    __slots__ = ("base", "new", "replaced")

    def __init__(self, refs: Iterable[str], base: str, new: list[str], replaced: list[str]) -> None:
        """Create the list.

        Args:
            refs: all references.
            base: the id of the other object, which has all of them except `new`.
            new: the references that were added.
            replaced: the references of the other object that were replaced or removed.
        """
        super().__init__(refs)
        self.base = base
        self.new = new
        self.replaced = replaced


class Object(NamedTuple):
    """An object that was read and verified."""

    kind: bytes
    refs: tuple[str, ...]
    payload: bytes


class PlainObject(NamedTuple):
    """An object to be written, before compression."""

    kind: bytes
    plain: bytes
    """The plain form; its SHA-256 is the object id."""
    start: int
    """Offset of the payload."""
    refs: tuple[str, ...]

    @property
    def size(self) -> int:
        """Length of the plain form in bytes."""
        return len(self.plain)

    @property
    def payload(self) -> bytes:
        """The content, without kind and references."""
        return self.plain[self.start :]

    def stored(self, compression: Compression = "zlib") -> bytes:
        """Return the stored form, for a backend or an archive."""
        # There are many small directories, and their objects are mostly references.
        hashes = ID_BYTES * len(self.refs) if self.kind == DIRECTORY else 0
        return pack(self.plain, compression, hashes)


class PackedObject(PlainObject):
    """An object that several checkpoints write: it is compressed once."""

    def stored(self, compression: Compression = "zlib") -> bytes:
        """Return the stored form."""
        known: dict[str, bytes] = vars(self)
        if compression not in known:
            known[compression] = super().stored(compression)
        return known[compression]


def make_object(kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> tuple[str, PlainObject]:
    """Return the id of a new object, and the object. Raises the same errors as `plain_object`."""
    packed = plain_object(kind, payload, refs)
    return hashlib.sha256(packed.plain).hexdigest(), packed


def plain_object(kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> PlainObject:
    """Return an object to be written.

    Args:
        kind: one byte.
        payload: the content.
        refs: the ids of referenced objects; a `TerminalRef` for an object without references.

    Raises:
        IntegrityError: the object is larger than MAX_OBJECT; callers must split large content.
    """
    if refs:
        bits = ["1" if type(name) is TerminalRef else "0" for name in reversed(refs)]
        terminal = int("".join(bits), 2)
        flags = terminal.to_bytes((len(refs) + 7) // 8, "little")
        head = kind + write_varint(len(refs)) + flags + bytes.fromhex("".join(refs))
    else:
        head = kind + b"\0"
    plain = head + payload
    if len(plain) > MAX_OBJECT:
        raise IntegrityError(f"An object of {len(plain)} bytes exceeds the limit {MAX_OBJECT}.")
    return PlainObject(kind, plain, len(head), tuple(refs))


def open_object(name: str, stored: bytes) -> Object:
    """Decompress and verify a stored object.

    Raises:
        IntegrityError: the bytes do not match the object id.
        FormatError: the object is compressed with zstd, which is not installed.
    """
    try:
        plain = unpack(stored, MAX_OBJECT)
        if hashlib.sha256(plain).hexdigest() != name:
            raise IntegrityError("SHA-256 mismatch.")
        if plain[1:2] == b"\0":  # the common case: no references
            return Object(plain[:1], (), plain[2:])
        count, at = read_varint(plain, 1)
        start = at + (count + 7) // 8
        end = start + count * ID_BYTES
        if end > len(plain):
            raise IntegrityError("The list of references is truncated.")
    except (IntegrityError, FormatError) as error:
        raise type(error)(f"The object {name} cannot be read. {error}") from None
    return Object(plain[:1], _refs(plain[at:start], plain[start:end].hex()), plain[end:])


def as_read(plain: PlainObject) -> Object:
    """Convert an object to be written to the form that `open_object` returns."""
    return Object(plain.kind, plain.refs, plain.payload)


def _refs(flags: bytes, names: str) -> tuple[str, ...]:
    terminal = int.from_bytes(flags, "little")
    return tuple(
        TerminalRef(names[at : at + 2 * ID_BYTES])
        if terminal >> (at // (2 * ID_BYTES)) & 1
        else names[at : at + 2 * ID_BYTES]
        for at in range(0, len(names), 2 * ID_BYTES)
    )


def children_first(
    roots: Iterable[str], refs_of: Mapping[str, Collection[str] | None]
) -> Iterator[str]:
    """Iterate over the ids that are reachable from the roots, each after all its references.

    `refs_of` has the references by id; None or nothing for an object without references.
    """
    done: set[str] = set()
    stack = [(name, False) for name in roots]
    while stack:
        name, is_open = stack.pop()
        if name in done:
            continue
        if is_open:
            done.add(name)
            yield name
        else:
            stack.append((name, True))
            stack += [(ref, False) for ref in refs_of.get(name) or () if ref not in done]


def in_batches(objects: Iterable[tuple[str, bytes]]) -> Iterator[dict[str, bytes]]:
    """Group objects in stored form, each with its id, into mappings of little more than 32 MiB."""
    batch: dict[str, bytes] = {}
    size = 0
    for name, stored in objects:
        batch[name] = stored
        size += len(stored)
        if size > _BATCH:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


class LostObjectError(IntegrityError):
    """An object is missing. Not an error if the checkpoint that references it was just removed."""


def missing_objects(names: Iterable[str]) -> LostObjectError:
    """Return the error for objects that a checkpoint references but the store does not have."""
    lost = sorted(names)
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return LostObjectError(
        f"The object {lost[0]}{more} is missing from the store.",
        hint=Hint(
            "Restore it from a backup; verify() lists the affected checkpoints.", "missing_object"
        ),
    )
