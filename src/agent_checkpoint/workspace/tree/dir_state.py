"""A directory as it was last seen. Owns what is remembered of one; reads no disk.

A `Folder` is never changed: what is new is a new folder, which shares the rest with the old one.
Forks and earlier trees keep theirs at no cost.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from os import stat_result
from stat import S_IFDIR
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from agent_checkpoint.workspace.tree.tree_format import Get, Item, Stored, read_directory

STAMP = struct.Struct("<QqqQI")
"""Size, times of content and of attributes, inode, type and mode: what tells that a file is new."""
READ_AGAIN = bytes(STAMP.size)
"""The stamp of what has to be read again, whatever it looks like: no file has it."""

_TYPE = 0o170000
_pack = STAMP.pack

IGNORED, SPECIAL, UNREADABLE, TORN, SETUID = "ignored", "special", "unreadable", "torn", "setuid"
STORE, RULES = "store", "rules"


class Note(NamedTuple):
    """What has to be said of an entry: why it was left out, or what it is captured without."""

    kind: str
    text: str = ""
    type: int = 0
    """Of what is left out for what it is and not for trouble: the type of the file."""

    @property
    def is_captured(self) -> bool:
        """Whether the entry is in the tree all the same."""
        return self.kind in (TORN, SETUID, RULES)

    @property
    def is_loss(self) -> bool:
        """Whether a tree is incomplete by it."""
        return self.kind in (UNREADABLE, TORN, STORE)


NO_NOTES: Mapping[bytes, Note] = MappingProxyType({})


def stamp_of(stat: stat_result) -> bytes:
    """Return what tells whether an entry is still the same."""
    mode = stat.st_mode
    if mode & _TYPE == S_IFDIR:  # what is in it is looked at anyway
        return _pack(0, 0, 0, stat.st_ino, mode)
    size, ino, mode = stat.st_size, stat.st_ino, mode & 0xFFFFFFFF
    try:
        return _pack(size, stat.st_mtime_ns, stat.st_ctime_ns, ino, mode)
    except struct.error:  # a time past the year 2262, or long ago
        return _pack(size, _wrapped(stat.st_mtime_ns), _wrapped(stat.st_ctime_ns), ino, mode)


def _wrapped(ns: int) -> int:
    return (ns + (1 << 63)) % (1 << 64) - (1 << 63)


def is_copied(before: bytes, now: bytes) -> bool:
    """Tell whether a stamp is that of a copy: another file with the same times of content."""
    old, new = STAMP.unpack(before), STAMP.unpack(now)
    return before != READ_AGAIN and (old[0], old[1], old[4]) == (new[0], new[1], new[4])


Handle = TypeVar("Handle")
Row = tuple[list[str], bytes, Mapping[bytes, Note], list[tuple[str, Handle]]]
"""A directory as a look compares with it: names, stamps, notes, and what the folders in it are
known by."""


class Folder:
    """A directory: its captured names with a stamp each, its folders, its id and its object."""

    __slots__ = (
        "_below",
        "_items",
        "_names",
        "_texts",
        "bytes",
        "files",
        "folders",
        "is_noted",
        "is_stored",
        "notes",
        "packed_names",
        "stamps",
        "stored",
    )

    def __init__(
        self,
        packed_names: bytes,
        stamps: bytes,
        folders: Mapping[bytes, Folder],
        notes: Mapping[bytes, Note],
        stored: Stored,
        files: int,
        size: int,
        *,
        is_noted: bool,
        is_stored: bool,
        items: list[Item] | None = None,
    ) -> None:
        """Remember a directory.

        Args:
            packed_names: what is captured, sorted, with slashes between the names.
            stamps: one for each name.
            folders: the directories among them.
            notes: what is to be said of entries, captured or not.
            stored: the id and the topmost object.
            files: how many files and links there are, here and below.
            size: how many bytes these files have.
            is_noted: whether there is anything to be said of what is here or below.
            is_stored: whether a checkpoint that is durable has it.
            items: the entries, if they are at hand; else they are read when asked for.
        """
        self.packed_names = packed_names
        self.stamps = stamps
        self.folders = folders
        self.notes = notes
        self.stored = stored
        self.files = files
        self.bytes = size
        self.is_noted = is_noted
        """Whether there is anything to be said of what is here or below, but that it is ignored."""
        self.is_stored = is_stored
        """Whether a checkpoint that is durable has it, and so all below it."""
        self._items = items
        self._names: list[bytes] | None = None
        self._texts: list[str] | None = None
        self._below: list[tuple[str, Folder]] | None = None

    @property
    def names(self) -> list[bytes]:
        """What is captured, sorted."""
        if self._names is None:
            self._names = self.packed_names.split(b"/") if self.packed_names else []
        return self._names

    @property
    def texts(self) -> list[str]:
        """The names as text, in the same order."""
        if self._texts is None:
            self._texts = os.fsdecode(self.packed_names).split("/") if self.packed_names else []
        return self._texts

    @property
    def below(self) -> list[tuple[str, Folder]]:
        """The folders by their names as text: a list that is the caller's."""
        if self._below is None:
            self._below = [(os.fsdecode(name), one) for name, one in self.folders.items()]
        return self._below.copy()

    def items(self, get: Get) -> list[Item]:
        """Return the entries.

        Raises:
            IntegrityError: they are to be read, and are missing or damaged.
        """
        if self._items is None:
            self._items = read_directory(self.stored.ref, get)
        return self._items

    @property
    def has_items(self) -> bool:
        """Whether the entries are at hand."""
        return self._items is not None

    def stamp(self, place: int) -> bytes:
        """Return the stamp of a name by its place."""
        return self.stamps[place * STAMP.size : (place + 1) * STAMP.size]

    def stamp_of(self, name: bytes) -> bytes:
        """Return the stamp of a name that is captured."""
        return self.stamp(bisect_left(self.names, name))

    def all_stamps(self) -> list[bytes]:
        """Return the stamps, one for each name."""
        return [self.stamp(place) for place in range(len(self.names))]

    def left_out(self) -> Iterator[bytes]:
        """Iterate over the paths that the rules leave out; what is below one is not looked at."""
        stack: list[tuple[bytes, Folder]] = [(b"", self)]
        while stack:
            path, folder = stack.pop()
            for name, note in folder.notes.items():
                if note.kind == IGNORED and not note.text:
                    yield path + name
            stack += [(path + name + b"/", below) for name, below in folder.folders.items()]

    def all_notes(self) -> Iterator[tuple[bytes, Note]]:
        """Iterate over what is to be said of this directory and all below it, by path.

        What is ignored is left out: it comes and goes, and the rules say which it is.
        """
        stack: list[tuple[bytes, Folder]] = [(b"", self)] if self.is_noted else []
        while stack:
            path, folder = stack.pop()
            for name, note in folder.notes.items():
                if note.kind != IGNORED:
                    yield path + name, note
            for name, below in folder.folders.items():
                if below.is_noted:
                    stack.append((path + name + b"/", below))


class FolderRows:
    """A tree of folders in memory, to be compared with."""

    def __init__(self, top: Folder) -> None:
        self.top = top

    def row(self, folder: Folder) -> Row[Folder]:
        """Return what a look compares with."""
        return (
            folder.texts,
            folder.stamps,
            folder.notes,
            folder.below if folder.folders else [],
        )


def stamps_by_name(folder: Folder) -> dict[bytes, bytes]:
    """Return the stamps of a folder by name."""
    return dict(zip(folder.names, folder.all_stamps()))
