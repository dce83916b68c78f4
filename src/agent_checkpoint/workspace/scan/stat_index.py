"""The tree of folders as one file, so that a new process need not read every file again.

Owns its form. It is a cache: whatever is wrong with it, it is as if there were none. What it says
of objects is checked by the store when they are used.

    magic, SHA-256 of the rest, then four numbers: of folders, and the bytes of the next three
    rows    one a folder, each before those below it: numbers of names, folders and all folders
            below, where its stamps, places and notes begin, length of its notes, whether anything
            below is noted, files, bytes, id, object
    names   with slashes between those of a folder, and NULs between the folders
    stamps  of all names
    places  of the folders among the names
    notes   as JSON

A look that finds everything as it was needs only names and stamps of each folder. So nothing is
made of the rest until somebody asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.disk.posix import make_directory
from agent_checkpoint.file_ownership import other_writer
from agent_checkpoint.workspace.tree.dir_state import NO_NOTES, STAMP, Folder, Note, Row
from agent_checkpoint.workspace.tree.tree_format import Stored

_MAGIC = b"agent-checkpoint index 3\n"
_DIGEST = hashlib.sha256().digest_size
_SIZES = struct.Struct("<QQQQ")
_ROW = struct.Struct("<IIIQQQI?QQ32s32s")
_BEGIN = struct.Struct("<IIIQQQI")
"""The beginning of a row, which is all that a look at the same things needs."""
_GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FOLDERS: Mapping[bytes, Folder] = {}


def remove_indexes(place: Path) -> None:
    """Remove all indexes of a directory: they hold the names of files. Raises OSError."""
    for path in place.iterdir() if place.is_dir() else ():
        path.unlink(missing_ok=True)


def write_index(path: Path, root: Folder) -> None:
    """Write the folders to a file. Raises OSError."""
    folders = list(_in_order(root))
    below = _numbers_below(folders)
    rows: list[bytes] = []
    stamps: list[bytes] = []
    places: list[int] = []
    notes: list[bytes] = []
    stamps_at = notes_at = 0
    for folder, inside in zip(folders, below):
        names, noted = folder.names, _write_notes(folder.notes)
        own = [place for place, name in enumerate(names) if name in folder.folders]
        starts = stamps_at, len(places), notes_at
        identity, ref = bytes.fromhex(folder.stored.id), bytes.fromhex(folder.stored.ref)
        counts = folder.files, folder.bytes
        is_noted = folder.is_noted
        rows.append(
            _ROW.pack(
                len(names), len(own), inside, *starts, len(noted), is_noted, *counts, identity, ref
            )
        )
        stamps.append(folder.stamps)
        places += own
        notes.append(noted)
        stamps_at += len(folder.stamps)
        notes_at += len(noted)
    texts = b"\0".join([folder.packed_names for folder in folders])
    sizes = _SIZES.pack(len(folders), len(texts), stamps_at, 4 * len(places))
    packed = struct.pack(f"<{len(places)}I", *places)
    data = b"".join([sizes, *rows, texts, *stamps, packed, *notes])
    make_directory(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(draft, flags, 0o600), "wb") as file:
            file.write(_MAGIC + hashlib.sha256(data).digest())
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def read_index(path: Path) -> Folder | None:
    """Return the folders of a file, or None if there is none that can be read."""
    index = open_index(path)
    return None if index is None else index.root


def open_index(path: Path) -> Index | None:
    """Return the index in a file, or None if there is none that can be read.

    One that another user owns or may write is none: it could say that a changed file is unchanged.
    """
    try:
        with open(os.open(path, _GUARDED), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or other_writer(path, found) is not None:
                return None
            data = file.read()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + _SIZES.size:
        return None
    if hashlib.sha256(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        return None
    return Index(data, start)


class Index:
    """A tree of folders as it was written. Folders are told by their numbers, the root is 0."""

    top = 0

    def __init__(self, data: bytes, start: int) -> None:
        """Take the bytes of an index, which are those that were written, and where it begins."""
        folders, names, stamps, places = _SIZES.unpack_from(data, start)
        self._data = data
        self._rows = start + _SIZES.size
        at = self._rows + folders * _ROW.size
        self._texts = os.fsdecode(data[at : at + names]).split("\0")
        self._stamps = at + names
        self._places = self._stamps + stamps
        self._notes = self._places + places
        self.root = self.folder(self.top)

    def row(self, number: int) -> Row[int]:
        """Return what a look compares with."""
        begin = _BEGIN.unpack_from(self._data, self._rows + number * _ROW.size)
        count, folders, _, stamps, places, notes, noted = begin
        text = self._texts[number]
        texts = text.split("/") if text else []
        stamps += self._stamps
        return (
            texts,
            self._data[stamps : stamps + count * STAMP.size],
            self._noted(notes, noted) if noted else NO_NOTES,
            self._below(number, texts, folders, places) if folders else [],
        )

    def folder(self, number: int) -> Folder:
        """Return a folder; those below it are made when they are asked for."""
        found = _ROW.unpack_from(self._data, self._rows + number * _ROW.size)
        count, folders, _, stamps, _, notes, noted, is_noted, files, size, identity, ref = found
        stamps += self._stamps
        return Folder(
            os.fsencode(self._texts[number]),
            self._data[stamps : stamps + count * STAMP.size],
            _Below(self, number) if folders else _NO_FOLDERS,
            self._noted(notes, noted) if noted else NO_NOTES,
            Stored(identity.hex(), ref.hex()),
            files,
            size,
            is_noted=is_noted,
            is_stored=True,
        )

    def _below(
        self, number: int, texts: list[str], folders: int, places: int
    ) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        number += 1
        at = self._places + 4 * places
        for place in struct.unpack_from(f"<{folders}I", self._data, at):
            found.append((texts[place], number))
            number += 1 + _BEGIN.unpack_from(self._data, self._rows + number * _ROW.size)[2]
        return found

    def _noted(self, start: int, length: int) -> dict[bytes, Note]:
        start += self._notes
        return _read_notes(self._data[start : start + length])


class _Below(Mapping[bytes, Folder]):
    """The folders in one of an index, made when one of them is asked for."""

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self._number = number
        self._made: dict[bytes, Folder] | None = None

    @property
    def _folders(self) -> dict[bytes, Folder]:
        if self._made is None:
            _, _, _, below = self._index.row(self._number)
            self._made = {os.fsencode(name): self._index.folder(one) for name, one in below}
        return self._made

    def __getitem__(self, name: bytes) -> Folder:
        return self._folders[name]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


def _in_order(root: Folder) -> Iterator[Folder]:
    """Iterate over all folders, each before those below it, by their names."""
    stack = [root]
    while stack:
        folder = stack.pop()
        yield folder
        if folder.folders:
            stack += [folder.folders[name] for name in sorted(folder.folders, reverse=True)]


def _numbers_below(folders: list[Folder]) -> list[int]:
    """Return how many folders are below each, of folders in their order."""
    numbers = [0] * len(folders)
    waiting: list[int] = []
    for place in range(len(folders) - 1, -1, -1):  # those below come after it
        own = len(folders[place].folders)
        inside = 0
        for _ in range(own):
            inside += 1 + waiting.pop()
        numbers[place] = inside
        waiting.append(inside)
    return numbers


def _write_notes(notes: Mapping[bytes, Note]) -> bytes:
    if not notes:
        return b""
    return json.dumps([[os.fsdecode(name), *note] for name, note in notes.items()]).encode()


def _read_notes(text: bytes) -> dict[bytes, Note]:
    return {os.fsencode(name): Note(*note) for name, *note in json.loads(text)}
