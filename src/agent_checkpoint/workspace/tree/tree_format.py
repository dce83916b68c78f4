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
from typing import TypeVar

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.objects.object_format import (
    BLOB,
    CHUNKS,
    DIRECTORY,
    ID_BYTES,
    WIDE,
    Object,
    SplicedRefs,
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
_NAME_LENGTH = 3
"""The offset of the byte with the length of the name."""
_CHUNK_LIST = struct.Struct(f"<Q{ID_BYTES}s")

T = TypeVar("T")
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


class Edit(NamedTuple):
    """A change of one entry of a directory."""

    at: int
    """The position of the entry before the change; a new one comes before the entry there."""
    item: Item | None
    """None to remove the entry."""
    is_new: bool = False


def spliced(old: Sequence[T], edits: Iterable[Edit], new: Iterable[T]) -> list[T]:
    """Return a list with some elements inserted, replaced or removed.

    Args:
        old: the elements, one for each entry of a directory.
        edits: the changes, sorted by position.
        new: the elements of the edits that have an item, in the same order.
    """
    result: list[T] = []
    values, start = iter(new), 0
    for at, item, is_new in edits:
        result += old[start:at]
        if item is not None:
            result.append(next(values))
        start = at if is_new else at + 1
    result += old[start:]
    return result


class EncodedDirectory:
    """The encoded entries of a directory. An edit encodes only the entries that it changes."""

    __slots__ = ("_cuts", "_edited_refs", "_named", "_parts", "_refs", "_same", "_stored")

    def __init__(self, items: Iterable[Item]) -> None:
        """Encode all entries, which must be sorted by name."""
        self._named, self._stored, self._refs = _encoded(items)
        self._cuts: bytes | None = None
        self._parts: list[tuple[int, int, Stored]] = []
        self._same: dict[tuple[int, int], Stored] = {}
        self._edited_refs: tuple[list[str], list[str]] | None = None
        """The references that the edits added and replaced, unless it is or was in parts."""

    def edited(self, edits: Sequence[Edit]) -> EncodedDirectory:
        """Return the directory after some edits, sorted by position."""
        new = EncodedDirectory([edit.item for edit in edits if edit.item is not None])
        if self._cuts is not None:
            cuts = [_is_cut(edit.item.name) for edit in edits if edit.item is not None]
            new._cuts = bytes(spliced(self._cuts, edits, cuts))
            new._same = self._shifted(edits)
        elif len(self._named) < WIDE_FROM:
            replaced = [self._refs[edit.at] for edit in edits if not edit.is_new]
            pair = ([ref for ref in refs if ref is not None] for refs in (new._refs, replaced))
            new._edited_refs = next(pair), next(pair)
        new._named = spliced(self._named, edits, new._named)
        new._stored = spliced(self._stored, edits, new._stored)
        new._refs = spliced(self._refs, edits, new._refs)
        return new

    def put(self, put: Put, before: str | None = None) -> Stored:
        """Write the objects of the directory.

        Args:
            put: receives the objects.
            before: the object of the directory before the edits, if it is stored: then its
                unchanged parts are not written again.
        """
        parts = []
        for start, end in self._ranges():
            stored = None if before is None else self._same.get((start, end))
            parts.append((start, end, stored or self._put_part(start, end, put, before)))
        if len(parts) == 1:
            return parts[0][2]
        self._parts = parts
        digest = hashlib.sha256(b"wide\0" + bytes.fromhex("".join(part.id for *_, part in parts)))
        return Stored(digest.hexdigest(), put(WIDE, b"", [part.ref for *_, part in parts]))

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Iterate over the parts of the directory. Their ends depend only on the names."""
        count = len(self._named)
        if count < WIDE_FROM:
            self._cuts = None
            yield 0, count
            return
        if self._cuts is None:
            names = (named[_HEAD.size : _HEAD.size + named[_NAME_LENGTH]] for named in self._named)
            self._cuts = bytes(map(_is_cut, names))
        start = 0
        while start < count:
            end = self._cuts.find(1, start, start + _MAX_PART_ENTRIES) + 1
            end = end or min(start + _MAX_PART_ENTRIES, count)
            yield start, end
            start = end

    def _put_part(self, start: int, end: int, put: Put, before: str | None) -> Stored:
        named, stored, all_refs = self._named, self._stored, self._refs
        is_whole = end - start == len(named)
        if not is_whole:
            named, stored, all_refs = named[start:end], stored[start:end], all_refs[start:end]
        refs = [ref for ref in all_refs if ref is not None]
        if before is not None and self._edited_refs is not None and is_whole:
            refs = SplicedRefs(refs, before, *self._edited_refs)
        return _put_entries(named, stored, refs, put)

    def _shifted(self, edits: Sequence[Edit]) -> dict[tuple[int, int], Stored]:
        """Return the parts without an edit, by their range after the edits."""
        same: dict[tuple[int, int], Stored] = {}
        index = shift = 0
        for start, end, stored in self._parts:
            while index < len(edits) and (
                edits[index].at < start or (edits[index].at == start and edits[index].is_new)
            ):
                shift += edits[index].is_new - (edits[index].item is None)
                index += 1
            if index == len(edits) or edits[index].at >= end:
                same[start + shift, end + shift] = stored
        return same


def put_directory(items: Sequence[Item], put: Put) -> Stored:
    """Write the objects of a directory. The items must be sorted by name."""
    if len(items) >= WIDE_FROM:
        return EncodedDirectory(items).put(put)
    named, stored, refs = _encoded(items)
    return _put_entries(named, stored, [ref for ref in refs if ref is not None], put)


def _encoded(items: Iterable[Item]) -> tuple[list[bytes], list[bytes], list[str | None]]:
    """Return the forms of entries: for the id, for the object, and the references."""
    named: list[bytes] = []
    stored: list[bytes] = []
    refs: list[str | None] = []
    # Most of the time of the first change in a directory, so it calls no method.
    add_named, add_stored, add_ref = named.append, stored.append, refs.append
    pack, unhex = _HEAD.pack, bytes.fromhex
    for name, kind, mode, size, content, ref, target in items:
        head = pack(kind, mode, len(name), size) + name
        if kind == LINK:
            add_named(head + target)
            add_stored(head + target)
            add_ref(None)
            continue
        digest = unhex(content)
        add_named(head + digest)
        if kind == FILE and content == ref:
            add_stored(head)
            add_ref(ref if type(ref) is TerminalRef else TerminalRef(ref))
        else:
            add_stored((head if kind == FOLDER else _IN_CHUNKS + head[1:]) + digest)
            add_ref(ref)
    return named, stored, refs


def _put_entries(
    named: Sequence[bytes], stored: Sequence[bytes], refs: Sequence[str], put: Put
) -> Stored:
    """Write one object with these entries."""
    identity = hashlib.sha256(b"tree\0" + b"".join(named)).hexdigest()
    return Stored(identity, put(DIRECTORY, b"".join(stored), refs))


def read_directories(names: Sequence[str], get: Get) -> Iterator[list[Item]]:
    """Iterate over the items of directories, sorted by name, given the ids of their objects.

    Raises:
        IntegrityError: an object is not a directory object, or an entry is invalid.
    """
    for name, found in zip(names, get(names)):
        yield _items_of(found, name, get)


def read_directory(name: str, get: Get) -> list[Item]:
    """Return the items of one directory. Raises the same errors as `read_directories`."""
    (items,) = read_directories([name], get)
    return items


def _items_of(found: Object, name: str, get: Get) -> list[Item]:
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


def _is_cut(name: bytes) -> bool:
    """Return whether a part of a wide directory ends with this entry."""
    return zlib.crc32(name) % _AVERAGE_PART_ENTRIES == 0


def _get_parts(found: Object, get: Get) -> Iterator[Object]:
    """Iterate over the parts of a wide directory; only a few are in memory at a time."""
    for start in range(0, len(found.refs), _PARTS_AT_ONCE):
        yield from get(found.refs[start : start + _PARTS_AT_ONCE])


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
