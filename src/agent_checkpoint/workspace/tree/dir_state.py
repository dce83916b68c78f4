"""The state of a directory at its last scan: names, stat signatures, notes. Reads no files.

A `DirState` is immutable, apart from `is_stored` and `times`. A scan creates a new one, which
shares unchanged subdirectories with the old one.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from os import stat_result
from stat import S_IFDIR
from types import MappingProxyType

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.tree.tree_format import (
    EncodedDirectory,
    Get,
    Item,
    Stored,
    read_directories,
    read_directory,
)

SIGNATURE = struct.Struct("<QqqQI")
"""The stat signature of an entry: size, mtime, ctime, inode, type and mode.

That of a directory has a device instead of the mtime, and nothing instead of size and ctime.
"""
READ_AGAIN = bytes(SIGNATURE.size)
"""The signature of an entry that the next scan must read again; no file has it."""

TIMES = struct.Struct("<qq8s")
"""The mtime and the ctime of a directory, and the identity of its mount."""
NO_TIMES = bytes(TIMES.size)
"""No times that tell whether names were added or removed."""

_TYPE = 0o170000
_pack = SIGNATURE.pack

IGNORED, SPECIAL, UNREADABLE, TORN, SETUID = "ignored", "special", "unreadable", "torn", "setuid"
STORE, RULES = "store", "rules"


class Note(NamedTuple):
    """A note on an entry: the reason why it was not captured, or was captured incompletely."""

    kind: str
    text: str = ""
    type: int = 0
    """The file type of an entry that was skipped on purpose; 0 after an error."""

    @property
    def is_captured(self) -> bool:
        """Whether the tree contains the entry despite the note."""
        return self.kind in (TORN, SETUID, RULES)

    @property
    def is_loss(self) -> bool:
        """Whether the tree is incomplete because of the noted problem."""
        return self.kind in (UNREADABLE, TORN, STORE)


NO_NOTES: Mapping[bytes, Note] = MappingProxyType({})


def stat_signature(stat: stat_result, device: int | None = None) -> bytes:
    """Return the stat signature of an entry. Equal signatures mean that it is unchanged.

    Args:
        stat: its stat result.
        device: the device of the workspace, if the signature is to tell mounts below it apart.
    """
    mode = stat.st_mode
    if mode & _TYPE == S_IFDIR:  # its entries are compared one by one anyway
        return _pack(0, 0 if device is None else stat.st_dev - device, 0, stat.st_ino, mode)
    size, ino, mode = stat.st_size, stat.st_ino, mode & 0xFFFFFFFF
    try:
        return _pack(size, stat.st_mtime_ns, stat.st_ctime_ns, ino, mode)
    except struct.error:  # a time outside 1677 to 2262
        return _pack(size, _wrapped(stat.st_mtime_ns), _wrapped(stat.st_ctime_ns), ino, mode)


def _wrapped(ns: int) -> int:
    return (ns + (1 << 63)) % (1 << 64) - (1 << 63)


def is_other_mount(before: bytes | None, now: bytes) -> bool:
    """Return whether a directory is on another device than before: its inodes mean other files."""
    return before is not None and SIGNATURE.unpack(before)[1] != SIGNATURE.unpack(now)[1]


Copied = Mapping[bytes, tuple[bytes, bytes]]
"""The files and links of a copied tree, by path: stat signatures of the original and the copy."""


class DirState:
    """A directory: captured names with their signatures, subdirectories, id and object."""

    __slots__ = (
        "_encoded",
        "_items",
        "_names",
        "_texts",
        "bytes",
        "files",
        "has_notes",
        "is_stored",
        "notes",
        "packed_names",
        "signatures",
        "stored",
        "subdirs",
        "times",
    )

    def __init__(
        self,
        packed_names: bytes,
        signatures: bytes,
        subdirs: Mapping[bytes, DirState],
        notes: Mapping[bytes, Note],
        stored: Stored,
        files: int,
        size: int,
        *,
        has_notes: bool,
        is_stored: bool,
        times: bytes = NO_TIMES,
        items: list[Item] | None = None,
        names: list[bytes] | None = None,
        encoded: EncodedDirectory | None = None,
    ) -> None:
        """Create the state of a directory.

        Args:
            packed_names: the captured names, sorted and joined with slashes.
            signatures: the stat signatures of the names, concatenated.
            subdirs: the states of the subdirectories, by name.
            notes: notes on entries, captured or not.
            stored: the id and the root object.
            files: the number of files and links, here and below.
            size: the bytes of these files.
            has_notes: whether there are notes here or below, other than of ignored entries.
            is_stored: whether a durable checkpoint refers to the object.
            times: its times while it had these names and noted entries.
            items: the entries; None to read them on first use.
            names: the captured names, if they are already a list.
            encoded: the encoded entries; None to encode them on first use.
        """
        self.packed_names = packed_names
        self.signatures = signatures
        self.subdirs = subdirs
        self.notes = notes
        self.stored = stored
        self.files = files
        self.bytes = size
        self.has_notes = has_notes
        """Whether there are notes here or below, other than of ignored entries."""
        self.is_stored = is_stored
        """Whether a durable checkpoint refers to its object, and thus to all objects below it."""
        self.times = times
        """Its times while it had these names and noted entries, or NO_TIMES."""
        self._items = items
        self._names = names
        self._encoded = encoded
        self._texts: list[str] | None = None

    def entries(self) -> Entries:
        """Return what a stat pass compares. Nothing is kept: most directories are unchanged."""
        return self.times, self.names, self.signatures, self.notes, self.subdirs

    @property
    def names(self) -> list[bytes]:
        """The captured names, sorted."""
        if self._names is None:
            self._names = self.packed_names.split(b"/") if self.packed_names else []
        return self._names

    @property
    def texts(self) -> list[str]:
        """The names as text, in the same order."""
        if self._texts is None:
            self._texts = os.fsdecode(self.packed_names).split("/") if self.packed_names else []
        return self._texts

    def items(self, get: Get) -> list[Item]:
        """Return the entries.

        Raises:
            IntegrityError: the entries are not loaded, and their object is missing or damaged.
        """
        if self._items is None:
            self._items = read_directory(self.stored.ref, get)
        return self._items

    def set_items(self, items: list[Item]) -> None:
        """Set the entries, which were read."""
        self._items = items

    def encoded(self, get: Get) -> EncodedDirectory:
        """Return the encoded entries. Raises the same errors as `items`."""
        if self._encoded is None:
            self._encoded = EncodedDirectory(self.items(get))
        return self._encoded

    @property
    def has_items(self) -> bool:
        """Whether the entries are loaded."""
        return self._items is not None

    def signature_at(self, position: int) -> bytes:
        """Return the stat signature of the entry at an index."""
        return self.signatures[position * SIGNATURE.size : (position + 1) * SIGNATURE.size]

    def position_of(self, name: bytes) -> tuple[int, bool]:
        """Return the index of a name among the captured ones, and whether it is one of them."""
        at = bisect_left(self.names, name)
        return at, at < len(self.names) and self.names[at] == name

    def signature_of(self, name: bytes) -> bytes | None:
        """Return the stat signature of an entry; None if it is not captured."""
        at, is_known = self.position_of(name)
        return self.signature_at(at) if is_known else None

    def signature_list(self) -> list[bytes]:
        """Return the signatures, one for each name."""
        return [self.signature_at(position) for position in range(len(self.names))]

    def below(self, path: bytes) -> DirState | None:
        """Return the state of a directory by its path, empty for this one; None if unknown."""
        state: DirState | None = self
        for name in path.split(b"/") if path else ():
            state = None if state is None else state.subdirs.get(name)
        return state

    def left_out(self) -> Iterator[bytes]:
        """Iterate over the ignored paths, without the entries below them."""
        stack: list[tuple[bytes, DirState]] = [(b"", self)]
        while stack:
            path, state = stack.pop()
            for name, note in state.notes.items():
                if note.kind == IGNORED and not note.text:
                    yield path + name
            stack += [(path + name + b"/", below) for name, below in state.subdirs.items()]

    def all_notes(self) -> Iterator[tuple[bytes, Note]]:
        """Iterate over the notes of this directory and its subdirectories, with their paths.

        Ignored entries are skipped: they change often and can be derived from the rules.
        """
        stack: list[tuple[bytes, DirState]] = [(b"", self)] if self.has_notes else []
        while stack:
            path, state = stack.pop()
            for name, note in state.notes.items():
                if note.kind != IGNORED:
                    yield path + name, note
            for name, below in state.subdirs.items():
                if below.has_notes:
                    stack.append((path + name + b"/", below))


def load_items(states: Iterable[DirState], get: Get) -> None:
    """Load the entries of directories, all in one request. Raises the same errors as `items`."""
    missing = [state for state in states if not state.has_items]
    names = [state.stored.ref for state in missing]
    for state, items in zip(missing, read_directories(names, get)):
        state.set_items(items)


Entries = tuple[bytes, list[bytes], bytes, Mapping[bytes, Note], Mapping[bytes, DirState]]
"""The times of a directory, its captured names, their signatures, the notes and subdirectories."""


def signatures_by_name(state: DirState) -> dict[bytes, bytes]:
    """Return the signatures of the captured names."""
    return dict(zip(state.names, state.signature_list()))
