"""The stat index: the state of a directory tree in two files, like git's index. Owns their format.

With it, a new process does not read every file again. It is a cache: an invalid index is ignored,
and the store verifies the objects that it refers to when they are used. Directories are decoded
when they are used: a scan of a few changed paths decodes only the directories on these paths.

The index has a record per directory. The update beside it adds the records of the directories that
changed since, up to the root, and is replaced at each change; the index is written again when the
update is large. A record refers to those of its subdirectories by their places: offsets count from
the first record of the index and go on in the update.

    index       magic, SHA-256 of the head and the hashes; head: bytes of the records, place of the
                root, device and inode of the directory; the SHA-256 of each block of the records;
                records
    update      magic, SHA-256 of the rest; SHA-256 in the index, place of the root, bytes of the
                records; records; the position in a change journal, which may be empty
    record      numbers of names and subdirectories, bytes of names and notes, whether there are
                notes here or below, files, bytes, times, id, object; names, joined with slashes;
                signatures; per subdirectory its place and its number among the names; notes (JSON)
    place       offset, bytes
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.tree.dir_state import (
    NO_NOTES,
    SIGNATURE,
    TIMES,
    DirState,
    Entries,
    Note,
)
from agent_checkpoint.workspace.tree.tree_format import Stored

_MAGIC = b"agent-checkpoint index 7\n"
_UPDATE_MAGIC = b"agent-checkpoint index update 7\n"
_DIGEST = hashlib.sha256().digest_size
_HEAD = struct.Struct("<QQIQQ")
_UPDATE_HEAD = struct.Struct(f"<{_DIGEST}sQIQ")
_ROW = struct.Struct(f"<IIII?QQ{TIMES.size}s32s32s")
_STORED = struct.Struct(f"<{_ROW.size - 64}x32s32s")
"""The ids, in a record."""
_SUBDIR = struct.Struct("<QII")
_BLOCK = 1 << 14
"""Bytes that are hashed together: a change of one file uses a few blocks."""
_FIRST_READ = 1 << 16
"""Bytes of the first read, which has the hashes of most indexes."""
_MOST_ADDED = 256
"""An update has up to this many times the root of the bytes of the index.

An update is read, hashed and written at each change, and an index is written once per full update:
the sum is least at a size that grows with this root. The factor is measured.
"""
_GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SUBDIRS: Mapping[bytes, DirState] = {}


def remove_indexes(directory: Path) -> None:
    """Remove all indexes in a directory; they contain file names. Raises OSError."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.suffix not in (".sock", ".lock"):  # of the change service
            path.unlink(missing_ok=True)


class Index(NamedTuple):
    """The content of an index and its update."""

    root: DirState
    digest: bytes
    """A hash that identifies the content."""
    records: Records
    position: bytes = b""
    """The encoded position in a change journal; empty if there is none."""
    directory: tuple[int, int] = (0, 0)
    """Device and inode of the directory."""

    @property
    def is_read(self) -> bool:
        """Whether its root was read from the files, and not written by this process."""
        return isinstance(self.root, _IndexedDir)


class IndexFile(NamedTuple):
    """The path of an index, and the content that was read from it."""

    path: Path
    content: Index


def update_path(index: Path) -> Path:
    """Return the path of the update of an index."""
    return index.with_name(f"{index.name}.update")


def encode_records(root: DirState) -> Encoded:
    """Return the records of a directory tree, for `write_index`.

    Raises:
        IntegrityError: the state is partly in a damaged index.
    """
    return _encode(root, Records(None, 0, b"", (0, 0), b""), None)


def write_index(
    path: Path,
    root: DirState,
    position: bytes = b"",
    directory: tuple[int, int] = (0, 0),
    encoded: Encoded | None = None,
) -> Index:
    """Write the state of a directory tree to a new index.

    Args:
        path: the path of the index.
        root: the state.
        position: its encoded position in a change journal.
        directory: device and inode of the directory, if the reader is to compare them.
        encoded: the records of the state, if they are known.

    Raises:
        IntegrityError: the state is partly in a damaged index.
        OSError: the file system failed.
    """
    records, places = encoded or encode_records(root)
    blocks = memoryview(records)
    hashes = [
        hashlib.sha256(blocks[start : start + _BLOCK]).digest()
        for start in range(0, len(records), _BLOCK)
    ]
    head = b"".join([_HEAD.pack(len(records), *places[root], *directory), *hashes])
    digest = hashlib.sha256(head).digest()
    replace_private(path, _MAGIC, digest, head, blocks)
    known = Records(None, len(records), digest, places[root], b"")
    index = Index(root, digest, known, directory=directory)
    return _write_update(path, index, b"", places[root], position) if position else index


def write_update(path: Path, index: Index, root: DirState, position: bytes) -> Index | None:
    """Write the state of a directory tree as an update of its index; None if it is too large.

    Args:
        path: the path of the index.
        index: the content of its files, which was read, or has the same state.
        root: the state. Directories that are not in the files are added.
        position: its encoded position in a change journal; empty if there is none.

    Raises the same errors as `write_index`.
    """
    known = index.records
    if root is index.root:
        return _write_update(path, index, known.added, known.root, position)
    most = _MOST_ADDED * math.isqrt(known.size) - len(known.added)
    added, places = _encode(root, known, most)
    if len(added) > most:
        return None
    added = known.added + added
    written = _write_update(path, index._replace(root=root), added, places[root], position)
    known.places.update(places)
    return written


def _write_update(
    path: Path, index: Index, added: bytes, root: tuple[int, int], position: bytes
) -> Index:
    known = index.records
    head = _UPDATE_HEAD.pack(known.digest, *root, len(added))
    digest = hashlib.sha256(b"".join([head, added, position])).digest()
    replace_private(update_path(path), _UPDATE_MAGIC, digest, head, added, position)
    known.added, known.root = added, root
    return index._replace(digest=digest, position=position)


def replace_private(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file that only this user can read; replace an old one at once. Raises OSError."""
    make_directory(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(draft, flags, 0o600), "wb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def read_private(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing, or another user can write it."""
    file = _open_private(path)
    if file is None:
        return None
    try:
        return file.read(0, os.fstat(file.fd).st_size)
    except OSError:
        return None


def _open_private(path: Path) -> _OpenFile | None:
    """Open a file; None if it is missing, or another user can write it."""
    try:
        file = _OpenFile(os.open(path, _GUARDED))
    except OSError:
        return None
    status = file.status
    if not stat.S_ISREG(status.st_mode) or other_writer(path, status) is not None:
        return None
    return file


def read_index(path: Path) -> Index | None:
    """Return the content of an index and its update; None if the index is missing or invalid.

    An index that another user owns or can write to is invalid: it could hide a changed file. The
    blocks of an index with a position are read and verified when they are used: few of them are.
    """
    file = _open_private(path)
    start = len(_MAGIC) + _DIGEST
    try:
        data = b"" if file is None else file.read(0, _FIRST_READ)
        if file is None or data[: len(_MAGIC)] != _MAGIC or len(data) < start + _HEAD.size:
            return None
        size, at, length, *directory = _HEAD.unpack_from(data, start)
        hashes = start + _HEAD.size
        first = hashes + _DIGEST * -(-size // _BLOCK)
        if file.status.st_size != first + size:
            return None
        if first > len(data):
            data = file.read(0, first)
    except OSError:
        return None
    digest = data[len(_MAGIC) : start]
    if hashlib.sha256(data[start:first]).digest() != digest:
        return None
    update = _read_update(update_path(path), digest)
    if update is None:
        update = _Update(digest, (at, length), b"", b"")
    blocks = _Blocks(file, first, size, data[hashes:first])
    records = Records(blocks, size, digest, update.root, update.added)
    if not update.position:
        try:
            blocks.read_all()
        except IntegrityError:
            return None
    root = _IndexedDir(records, *update.root)
    return Index(root, update.digest, records, update.position, (directory[0], directory[1]))


class _Update(NamedTuple):
    """The content of an update."""

    digest: bytes
    root: tuple[int, int]
    added: bytes
    position: bytes


def _read_update(path: Path, index: bytes) -> _Update | None:
    """Return the update of an index with a given hash; None if it is missing or invalid."""
    data = read_private(path)
    start = len(_UPDATE_MAGIC) + _DIGEST
    if data is None or data[: len(_UPDATE_MAGIC)] != _UPDATE_MAGIC or len(data) < start:
        return None
    digest = data[len(_UPDATE_MAGIC) : start]
    if hashlib.sha256(memoryview(data)[start:]).digest() != digest:
        return None
    of_index, at, length, size = _UPDATE_HEAD.unpack_from(data, start)
    if of_index != index:
        return None
    added = start + _UPDATE_HEAD.size
    return _Update(digest, (at, length), data[added : added + size], data[added + size :])


class _OpenFile:
    """An open file, which is closed with the object."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.status = os.fstat(fd)

    def read(self, at: int, size: int) -> bytes:
        """Return the bytes at an offset; fewer at the end of the file. Raises OSError."""
        return os.pread(self.fd, size, at)

    def __del__(self) -> None:
        with suppress(OSError):
            # A program that closed all descriptors may have another file under this number.
            if os.path.samestat(os.fstat(self.fd), self.status):
                os.close(self.fd)


class _Blocks:
    """The blocks of an index. Each is read and verified once, when it is used first."""

    def __init__(self, file: _OpenFile, start: int, size: int, hashes: bytes) -> None:
        """Refer to the blocks.

        Args:
            file: the index.
            start: the offset of the first block in it.
            size: the bytes of all blocks.
            hashes: the hash of each block.
        """
        self._file: _OpenFile | None = file
        self._start = start
        self._size = size
        self._hashes = hashes
        self._blocks: list[bytes] = [b""] * (len(hashes) // _DIGEST)

    def find(self, at: int, size: int) -> tuple[bytes, int]:
        """Return bytes that include a part of the blocks, and its offset in them.

        Raises:
            IntegrityError: a block is damaged, or cannot be read.
        """
        first, last = at // _BLOCK, (at + size - 1) // _BLOCK
        if first == last:
            return self._blocks[first] or self._read(first), at - first * _BLOCK
        blocks = [self._blocks[each] or self._read(each) for each in range(first, last + 1)]
        return b"".join(blocks), at - first * _BLOCK

    def read_all(self) -> None:
        """Read all blocks. Raises IntegrityError."""
        for block in range(len(self._blocks)):
            self._read(block)
        self._file = None

    def _read(self, block: int) -> bytes:
        at = block * _BLOCK
        try:
            data = (
                b""
                if self._file is None
                else self._file.read(self._start + at, min(_BLOCK, self._size - at))
            )
        except OSError:
            data = b""
        place = block * _DIGEST
        if hashlib.sha256(data).digest() != self._hashes[place : place + _DIGEST]:
            raise IntegrityError(
                "The stat index of the workspace is damaged. Take a snapshot with full=True."
            )
        self._blocks[block] = data
        return data


class Records:
    """The records of an index and its update."""

    def __init__(
        self,
        blocks: _Blocks | None,
        size: int,
        digest: bytes,
        root: tuple[int, int],
        added: bytes,
    ) -> None:
        """Refer to the records.

        Args:
            blocks: the records of the index; None if this process wrote it.
            size: their bytes.
            digest: the hash of the index.
            root: the place of the root.
            added: the records of the update.
        """
        self._blocks = blocks
        self.size = size
        self.digest = digest
        self.root = root
        self.added = added
        self.places: dict[DirState, tuple[int, int]] = {}
        """The places of directories that this process added."""

    def find(self, at: int, size: int) -> tuple[bytes, int]:
        """Return bytes with a record, and its offset in them. Raises IntegrityError."""
        if at >= self.size or self._blocks is None:
            return self.added, at - self.size
        return self._blocks.find(at, size)

    @property
    def is_read(self) -> bool:
        """Whether the places of all directories are known, because they were read."""
        return self._blocks is not None

    def place_of(self, state: DirState) -> tuple[int, int] | None:
        """Return the place of a directory; None if it is not in the files."""
        if isinstance(state, _IndexedDir) and state.records is self:
            return state.place
        return self.places.get(state)


class _IndexedDir(DirState):
    """A directory in an index. Its attributes are set when they are used."""

    __slots__ = ("_at", "_is_decoded", "_size", "records")

    def __init__(self, records: Records, at: int, size: int) -> None:
        """Refer to a directory.

        Args:
            records: the records of the index.
            at: the offset of its record.
            size: the bytes of its record.
        """
        self.records = records
        self._at = at
        self._size = size
        self._is_decoded = False
        self.is_stored = True

    @property
    def place(self) -> tuple[int, int]:
        """The place of its record."""
        return self._at, self._size

    def __getattr__(self, name: str) -> Any:
        # Called only for an attribute that is not set.
        if name == "stored":
            identity, ref = _STORED.unpack_from(*self.records.find(self._at, self._size))
            self.stored = Stored(identity.hex(), ref.hex())
        else:
            self._decode()
        return object.__getattribute__(self, name)

    def entries(self) -> Entries:
        """Return what a stat pass compares, without decoding the rest."""
        if self._is_decoded:
            return super().entries()
        row, packed_names, signatures, subdirs, notes = self._pieces()
        names = packed_names.split(b"/") if packed_names else []
        return row[7], names, signatures, notes, self._subdirs(subdirs, names)

    def _decode(self) -> None:
        row, self.packed_names, self.signatures, subdirs, self.notes = self._pieces()
        self.has_notes, self.files, self.bytes, self.times = row[4:8]
        self.subdirs = self._subdirs(subdirs, self.packed_names.split(b"/") if subdirs else ())
        self._items = self._encoded = self._names = self._texts = None
        self._is_decoded = True

    def _pieces(self) -> tuple[tuple[Any, ...], bytes, bytes, bytes, Mapping[bytes, Note]]:
        """Return the row of the record, names, signatures, subdirectories and notes."""
        data, at = self.records.find(self._at, self._size)
        row = _ROW.unpack_from(data, at)
        names = at + _ROW.size
        signatures = names + row[2]
        subdirs = signatures + row[0] * SIGNATURE.size
        notes = subdirs + row[1] * _SUBDIR.size
        found = _decode_notes(data[notes : notes + row[3]]) if row[3] else NO_NOTES
        return row, data[names:signatures], data[signatures:subdirs], data[subdirs:notes], found

    def _subdirs(self, subdirs: bytes, names: Sequence[bytes]) -> Mapping[bytes, DirState]:
        if not subdirs:
            return _NO_SUBDIRS
        records = self.records
        return {
            names[number]: _IndexedDir(records, offset, size)
            for offset, size, number in _SUBDIR.iter_unpack(subdirs)
        }


Encoded = tuple[bytes, dict[DirState, tuple[int, int]]]
"""The records of directories, and their places by directory."""


def _encode(root: DirState, known: Records, most: int | None) -> Encoded:
    """Return the records of directories that are not known yet, and their places by directory.

    Stops if they have more than `most` bytes.
    """
    new: list[DirState] = []
    places: dict[DirState, tuple[int, int]] = {}
    new_places: dict[DirState, tuple[int, int]] = {}
    stack = [root]
    while stack:
        state = stack.pop()
        place = known.place_of(state)
        if place is None:
            new.append(state)
            stack += state.subdirs.values()
        else:
            places[state] = place
    records: list[bytes] = []
    start = known.size + len(known.added)
    at = start
    for state in reversed(new):  # subdirectories first
        names, signatures, subdirs = state.packed_names, state.signatures, state.subdirs
        notes = _encode_notes(state.notes) if state.notes else b""
        below = b""
        if subdirs:
            numbered = enumerate(state.names)
            rows = [(subdirs[name], number) for number, name in numbered if name in subdirs]
            below = b"".join([_SUBDIR.pack(*places[each], number) for each, number in rows])
        row = _ROW.pack(
            len(signatures) // SIGNATURE.size,
            len(subdirs),
            len(names),
            len(notes),
            state.has_notes,
            state.files,
            state.bytes,
            state.times,
            *map(bytes.fromhex, state.stored),
        )
        record = b"".join((row, names, signatures, below, notes))
        records.append(record)
        places[state] = new_places[state] = at, len(record)
        at += len(record)
        if most is not None and at - start > most:
            break
    return b"".join(records), new_places


def _encode_notes(notes: Mapping[bytes, Note]) -> bytes:
    if not notes:
        return b""
    return json.dumps([[os.fsdecode(name), *note] for name, note in notes.items()]).encode()


def _decode_notes(data: bytes) -> dict[bytes, Note]:
    return {os.fsencode(name): Note(*note) for name, *note in json.loads(data)}
