"""Directories as objects. Owns their form, their ids, and what may be in one; knows no disk.

A directory's id is the hash of what is in it: names, types, permission bits and content ids, and
nothing of how that is stored. Equal trees have equal ids, whatever cut their files into chunks.

    entry   type (1 byte), mode (2), length of the name (1), size (8), the name, then
            f  nothing: the reference is the content id
            c  content id (32); refers to the list of the file's chunks
            d  id of the directory (32); refers to its object; its size is 0
            l  the link's text, as long as its size says
    "d"     a directory, or a part of a wide one: entries sorted by name, and a reference each in
            the same order, but for links
    "w"     a wide directory: refers to its parts in order
    "c"     a file in chunks: size (8), content id (32); refers to the chunks in order

Numbers are little-endian. A wide directory is cut by its names alone, so the cuts of equal
directories are equal.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.objects.object_format import (
    BLOB,
    CHUNKS,
    DIRECTORY,
    ID_BYTES,
    WIDE,
    Object,
    TerminalRef,
)

FILE, FOLDER, LINK = b"f", b"d", b"l"
_IN_CHUNKS = b"c"

WIDE_FROM = 512
"""A directory with so many entries is cut into parts."""
_PART = 128
_LARGEST_PART = 1024
_PARTS_AT_ONCE = 8
MODE_BITS = 0o777
_LONGEST_NAME = 255
_LONGEST_TARGET = 4095

_HEAD = struct.Struct("<cHBQ")
_CHUNK_LIST = struct.Struct(f"<Q{ID_BYTES}s")

Put = Callable[[bytes, bytes, Sequence[str]], str]
Get = Callable[[Sequence[str]], Sequence[Object]]
"""Returns objects in the order of their names."""


class Item(NamedTuple):
    """One entry of a directory.

    `id` says what it is: the content id of a file, the id of a directory. `ref` is the object that
    holds it, which for a file that is stored whole is the same.
    """

    name: bytes
    type: bytes
    mode: int
    size: int = 0
    id: str = ""
    ref: str = ""
    target: bytes = b""


class Stored(NamedTuple):
    """A directory that has its objects: its id, and the name of the topmost."""

    id: str
    ref: str


class Chunks(NamedTuple):
    """A file that is stored in chunks."""

    size: int
    id: str
    names: tuple[str, ...]


class ContentHash:
    """The id of a file's content: the name of the object that would hold all of it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(BLOB + b"\0")

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._digest.update(data)

    def id(self) -> str:
        """Return the id of all bytes so far."""
        return self._digest.hexdigest()


def put_directory(items: Sequence[Item], put: Put) -> Stored:
    """Put a directory's objects; its items are sorted by name."""
    parts = [_put_part(part, put) for part in _parts(items)]
    if len(parts) == 1:
        return parts[0]
    digest = hashlib.sha256(b"wide\0" + bytes.fromhex("".join(part.id for part in parts)))
    return Stored(digest.hexdigest(), put(WIDE, b"", [part.ref for part in parts]))


def read_directory(name: str, get: Get) -> list[Item]:
    """Return the items of a directory, sorted by name.

    Raises:
        IntegrityError: the objects are no directory, or have an entry that no directory may have.
    """
    (found,) = get([name])
    items: list[Item] = []
    for part in _get_parts(found, get) if found.kind == WIDE else [found]:
        if part.kind != DIRECTORY:
            raise IntegrityError(f"The object {name} is no directory.")
        start = max(len(items) - 1, 0)
        items += _read_part(part, name)
        for place in range(start + 1, len(items)):
            if items[place - 1].name >= items[place].name:
                raise IntegrityError(f"The directory {name} has names twice or out of order.")
    return items


def put_chunks(chunks: Chunks, put: Put) -> str:
    """Put the list of a file's chunks; return its name."""
    payload = _CHUNK_LIST.pack(chunks.size, bytes.fromhex(chunks.id))
    return put(CHUNKS, payload, [TerminalRef(name) for name in chunks.names])


def read_chunks(name: str, get: Get) -> Chunks:
    """Return the list of a file's chunks. Raises IntegrityError."""
    (found,) = get([name])
    if found.kind != CHUNKS or len(found.payload) != _CHUNK_LIST.size:
        raise IntegrityError(f"The object {name} is no list of chunks.")
    size, content = _CHUNK_LIST.unpack(found.payload)
    return Chunks(size, content.hex(), found.refs)


def check_name(name: bytes) -> bytes:
    """Return the name of an entry if a directory may have it.

    Raises:
        IntegrityError: it is empty, too long, `.` or `..`, or has a slash or NUL in it.
    """
    if not 0 < len(name) <= _LONGEST_NAME or name in (b".", b"..") or b"/" in name or 0 in name:
        raise IntegrityError(
            f"A tree has an entry {short_repr(name)}, which no directory can have."
        )
    return name


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    if len(items) < WIDE_FROM:
        yield items
        return
    start = 0
    for place, item in enumerate(items, 1):
        if zlib.crc32(item.name) % _PART == 0 or place - start == _LARGEST_PART:
            yield items[start:place]
            start = place
    if start < len(items):
        yield items[start:]


def _get_parts(found: Object, get: Get) -> Iterator[Object]:
    """Iterate over the parts of a wide directory, of which few are in memory at a time."""
    for start in range(0, len(found.refs), _PARTS_AT_ONCE):
        yield from get(found.refs[start : start + _PARTS_AT_ONCE])


def _put_part(items: Iterable[Item], put: Put) -> Stored:
    stored: list[bytes] = []
    named: list[bytes] = [b"tree\0"]
    refs: list[str] = []
    for name, kind, mode, size, content, ref, target in items:
        head = _HEAD.pack(kind, mode, len(name), size) + name
        if kind == LINK:
            stored.append(head + target)
            named.append(head + target)
            continue
        digest = bytes.fromhex(content)
        named.append(head + digest)
        if kind == FILE and content == ref:
            stored.append(head)
            refs.append(TerminalRef(ref))
        else:
            stored.append((head if kind == FOLDER else _IN_CHUNKS + head[1:]) + digest)
            refs.append(ref)
    identity = hashlib.sha256(b"".join(named)).hexdigest()
    return Stored(identity, put(DIRECTORY, b"".join(stored), refs))


def _read_part(part: Object, where: str) -> list[Item]:
    data, at, refs = part.payload, 0, iter(part.refs)
    items: list[Item] = []
    try:
        while at < len(data) and len(items) <= _LARGEST_PART:
            item, at = _read_item(data, at, refs)
            items.append(item)
    except (StopIteration, struct.error):
        raise IntegrityError(f"The directory {where} is cut.") from None
    if at != len(data) or next(refs, None) is not None or len(items) > _LARGEST_PART:
        raise IntegrityError(f"The directory {where} has not the form of one.")
    return items


def _read_item(data: bytes, at: int, refs: Iterator[str]) -> tuple[Item, int]:
    kind, mode, length, size = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    name = check_name(data[at : at + length])
    at += length
    if len(name) != length or mode & ~MODE_BITS:
        raise IntegrityError(
            f"A tree has an entry {short_repr(name)} that is cut, or of an odd mode."
        )
    if kind == FILE:
        ref = next(refs)
        return Item(name, FILE, mode, size, ref, ref), at
    if kind in (_IN_CHUNKS, FOLDER):
        end = at + ID_BYTES
        if end > len(data) or (kind == FOLDER and size):
            raise IntegrityError(f"A tree has an entry {short_repr(name)} that is cut.")
        kind = FOLDER if kind == FOLDER else FILE
        return Item(name, kind, mode, size, data[at:end].hex(), next(refs)), end
    if kind == LINK:
        target = data[at : at + size]
        if not 0 < size <= _LONGEST_TARGET or len(target) != size or 0 in target:
            raise IntegrityError(f"A tree has a link {short_repr(name)} to nothing that can be.")
        return Item(name, LINK, mode, size, target=target), at + size
    raise IntegrityError(f"A tree has an entry {short_repr(name)} of an unknown type.")
