"""The object format of directories. Owns their bytes, ids and limits; reads no files.

The id of a directory is the hash of its entries: names, types, permission bits and content ids. It
does not depend on chunking: equal trees have equal ids.

    entry   type (1 byte), mode (2), length of the name (1), size (8), the name, then
            f  nothing: the reference is the content id
            c  content id (32); refers to the list of the file's chunks
            d  id of the directory (32); refers to its object; its size is 0
            l  the link's target, of as many bytes as its size
    "d"     a directory, or a part of a wide one: entries sorted by name, and one reference each in
            the same order, except for links
    "w"     a wide directory: refers to its parts in order
    "c"     a file in chunks: size (8), content id (32); refers to the chunks in order

Numbers are little-endian. The split of a wide directory depends only on its names, so equal
directories are split equally.
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
"""Directories with at least this many entries are split into parts."""
_AVERAGE_PART_ENTRIES = 128
_MAX_PART_ENTRIES = 1024
_PARTS_AT_ONCE = 8
MODE_BITS = 0o777
_MAX_NAME_BYTES = 255
_MAX_TARGET_BYTES = 4095

_HEAD = struct.Struct("<cHBQ")
_CHUNK_LIST = struct.Struct(f"<Q{ID_BYTES}s")

Put = Callable[[bytes, bytes, Sequence[str]], str]
Get = Callable[[Sequence[str]], Iterable[Object]]
"""Iterates over objects in the order of the given ids. A damaged store may have large ones: keep
one at a time."""


class Item(NamedTuple):
    """One entry of a directory.

    `id` is the content id of a file or the id of a directory. `ref` is the object that holds it;
    for a file stored in one object both are equal.
    """

    name: bytes
    type: bytes
    mode: int
    size: int = 0
    id: str = ""
    ref: str = ""
    target: bytes = b""


class Stored(NamedTuple):
    """A directory whose objects are written: its id, and the id of its top object."""

    id: str
    ref: str


class Chunks(NamedTuple):
    """The chunk list of a file."""

    size: int
    id: str
    names: tuple[str, ...]


class ContentHash:
    """Computes the content id of a file: the id of a blob object with all its bytes."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(BLOB + b"\0")

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._digest.update(data)

    def id(self) -> str:
        """Return the id of all bytes added so far."""
        return self._digest.hexdigest()


def put_directory(items: Sequence[Item], put: Put) -> Stored:
    """Write the objects of a directory. The items must be sorted by name."""
    parts = [_put_part(part, put) for part in _parts(items)]
    if len(parts) == 1:
        return parts[0]
    digest = hashlib.sha256(b"wide\0" + bytes.fromhex("".join(part.id for part in parts)))
    return Stored(digest.hexdigest(), put(WIDE, b"", [part.ref for part in parts]))


def read_directory(name: str, get: Get) -> list[Item]:
    """Return the items of a directory, sorted by name.

    Raises:
        IntegrityError: an object is not a directory object, or an entry is invalid.
    """
    (found,) = get([name])
    items: list[Item] = []
    for part in _get_parts(found, get) if found.kind == WIDE else [found]:
        if part.kind != DIRECTORY:
            raise IntegrityError(f"The object {name} is not a directory object.")
        start = max(len(items) - 1, 0)
        items += _read_part(part, name)
        for index in range(start + 1, len(items)):
            if items[index - 1].name >= items[index].name:
                raise IntegrityError(
                    f"The directory object {name} has duplicate or unsorted names."
                )
    return items


def find_item(found: Object, wanted: bytes, get: Get) -> Item | None:
    """Return one entry of a directory object, without reading the others; None if there is none.

    Raises:
        IntegrityError: the object is not a directory object, or is truncated.
    """
    parts = _get_parts(found, get) if found.kind == WIDE else [found]
    for part in parts:
        if part.kind != DIRECTORY:
            raise IntegrityError("An object is not a directory object.")
        data, at, ref = part.payload, 0, 0
        try:
            while at < len(data):
                kind, _, length, size = _HEAD.unpack_from(data, at)
                name = data[at + _HEAD.size : at + _HEAD.size + length]
                if name == wanted:
                    return _read_item(data, at, iter(part.refs[ref:]))[0]
                if name > wanted:  # sorted
                    return None
                at += _HEAD.size + length
                at += {FILE: 0, LINK: size}.get(kind, ID_BYTES)
                ref += kind != LINK
        except (StopIteration, struct.error):
            raise IntegrityError("A directory object is truncated.") from None
    return None


def put_chunks(chunks: Chunks, put: Put) -> str:
    """Write the chunk list of a file; return the id of its object."""
    payload = _CHUNK_LIST.pack(chunks.size, bytes.fromhex(chunks.id))
    return put(CHUNKS, payload, [TerminalRef(name) for name in chunks.names])


def read_chunks(name: str, get: Get) -> Chunks:
    """Read the chunk list of a file. Raises IntegrityError."""
    (found,) = get([name])
    if found.kind != CHUNKS or len(found.payload) != _CHUNK_LIST.size:
        raise IntegrityError(f"The object {name} is not a chunk list.")
    size, content = _CHUNK_LIST.unpack(found.payload)
    return Chunks(size, content.hex(), found.refs)


def check_name(name: bytes) -> bytes:
    """Return the name of an entry if it is valid.

    Raises:
        IntegrityError: the name is empty, too long, `.` or `..`, or contains a slash or NUL.
    """
    if not 0 < len(name) <= _MAX_NAME_BYTES or name in (b".", b"..") or b"/" in name or 0 in name:
        raise IntegrityError(
            f"Damaged directory object: {short_repr(name)} is not a valid entry name."
        )
    return name


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    if len(items) < WIDE_FROM:
        yield items
        return
    start = 0
    for end, item in enumerate(items, 1):
        if zlib.crc32(item.name) % _AVERAGE_PART_ENTRIES == 0 or end - start == _MAX_PART_ENTRIES:
            yield items[start:end]
            start = end
    if start < len(items):
        yield items[start:]


def _get_parts(found: Object, get: Get) -> Iterator[Object]:
    """Iterate over the parts of a wide directory; only a few are in memory at a time."""
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
        while at < len(data) and len(items) <= _MAX_PART_ENTRIES:
            item, at = _read_item(data, at, refs)
            items.append(item)
    except (StopIteration, struct.error):
        raise IntegrityError(f"The directory object {where} is truncated.") from None
    if at != len(data) or next(refs, None) is not None or len(items) > _MAX_PART_ENTRIES:
        raise IntegrityError(f"The directory object {where} is malformed.")
    return items


def _read_item(data: bytes, at: int, refs: Iterator[str]) -> tuple[Item, int]:
    kind, mode, length, size = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    name = check_name(data[at : at + length])
    at += length
    if len(name) != length or mode & ~MODE_BITS:
        raise IntegrityError(
            f"Damaged directory object: the entry {short_repr(name)} is truncated or has an "
            "invalid mode."
        )
    if kind == FILE:
        ref = next(refs)
        return Item(name, FILE, mode, size, ref, ref), at
    if kind in (_IN_CHUNKS, FOLDER):
        end = at + ID_BYTES
        if end > len(data) or (kind == FOLDER and size):
            raise IntegrityError(
                f"Damaged directory object: the entry {short_repr(name)} is truncated, or is a "
                "directory with a size."
            )
        kind = FOLDER if kind == FOLDER else FILE
        return Item(name, kind, mode, size, data[at:end].hex(), next(refs)), end
    if kind == LINK:
        target = data[at : at + size]
        if not 0 < size <= _MAX_TARGET_BYTES or len(target) != size or 0 in target:
            raise IntegrityError(
                "Damaged directory object: the symbolic link "
                f"{short_repr(name)} has an invalid target."
            )
        return Item(name, LINK, mode, size, target=target), at + size
    raise IntegrityError(
        f"Damaged directory object: the entry {short_repr(name)} has an unknown type."
    )
