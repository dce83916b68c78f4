"""The stat index: the state of a directory tree in one file, like git's index. Owns its format.

With it, a new process does not read every file again. It is a cache: an invalid index is ignored,
and the store verifies the objects that it refers to when they are used. Directories are decoded
when they are used: a scan of a few changed paths decodes only the directories on these paths.

    header      magic, SHA-256 of the rest, the number of directories, and the sizes in bytes of
                the names, signatures and positions
    rows        one per directory, parents first: numbers of names, of subdirectories and of all
                directories below; offsets of its names, signatures, positions and notes; lengths
                of its names and notes; whether there are notes here or below; files, bytes, id,
                object
    names       joined with slashes within a directory
    signatures  of all names
    positions   of the subdirectories among the names
    notes       as JSON
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
from typing import Any

from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.tree.dir_state import NO_NOTES, SIGNATURE, DirState, Note
from agent_checkpoint.workspace.tree.tree_format import Stored

_MAGIC = b"agent-checkpoint index 4\n"
_DIGEST = hashlib.sha256().digest_size
_SIZES = struct.Struct("<QQQQ")
_ROW = struct.Struct("<IIIQQQQII?QQ32s32s")
_BELOW = struct.Struct("<8xI")
"""The number of directories below, in a row."""
_STORED = struct.Struct(f"<{_ROW.size - 64}x32s32s")
"""The ids, in a row."""
_GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SUBDIRS: Mapping[bytes, DirState] = {}


def remove_indexes(directory: Path) -> None:
    """Remove all indexes in a directory; they contain file names. Raises OSError."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.suffix not in (".sock", ".lock"):  # of the change service
            path.unlink(missing_ok=True)


class Index(NamedTuple):
    """The content of an index file."""

    root: DirState
    digest: bytes
    """The hash of the file, which identifies its content."""

    @property
    def is_read(self) -> bool:
        """Whether it was read from the file, and not written by this process."""
        return isinstance(self.root, _IndexedDir)


class IndexFile(NamedTuple):
    """An index file, and the content that was read from it."""

    path: Path
    content: Index


def write_index(path: Path, root: DirState) -> bytes:
    """Write the state of a directory tree to a file; return its hash. Raises OSError."""
    states = list(_in_order(root))
    rows, texts, signatures, notes = bytearray(), bytearray(), bytearray(), bytearray()
    positions: list[int] = []
    for state, below in zip(states, _counts_below(states)):
        own_notes = _encode_notes(state.notes)
        own = [position for position, name in enumerate(state.names) if name in state.subdirs]
        offsets = len(texts), len(signatures), len(positions), len(notes)
        lengths = len(state.packed_names), len(own_notes)
        about = state.has_notes, state.files, state.bytes
        ids = map(bytes.fromhex, state.stored)
        rows += _ROW.pack(len(state.names), len(own), below, *offsets, *lengths, *about, *ids)
        texts += state.packed_names
        signatures += state.signatures
        positions += own
        notes += own_notes
    sizes = _SIZES.pack(len(states), len(texts), len(signatures), 4 * len(positions))
    packed = struct.pack(f"<{len(positions)}I", *positions)
    data = b"".join([sizes, rows, texts, signatures, packed, notes])
    digest = hashlib.sha256(data).digest()
    replace_private(path, _MAGIC, digest, data)
    return digest


def replace_private(path: Path, *pieces: bytes) -> None:
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
    try:
        with open(os.open(path, _GUARDED), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or other_writer(path, status) is not None:
                return None
            return file.read()
    except OSError:
        return None


def read_index(path: Path) -> Index | None:
    """Return the content of an index file; None if it is missing or invalid.

    An index that another user owns or can write to is invalid: it could hide a changed file.
    """
    data = read_private(path)
    if data is None:
        return None
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + _SIZES.size:
        return None
    digest = data[len(_MAGIC) : start]
    if hashlib.sha256(memoryview(data)[start:]).digest() != digest:
        return None
    directories, *sizes = _SIZES.unpack_from(data, start)
    rows = start + _SIZES.size
    names = rows + directories * _ROW.size
    signatures = names + sizes[0]
    positions = signatures + sizes[1]
    sections = _Sections(data, rows, names, signatures, positions, positions + sizes[2])
    return Index(_IndexedDir(sections, 0), digest)


class _Sections(NamedTuple):
    """The content of an index file, and the offsets of its sections."""

    data: bytes
    rows: int
    names: int
    signatures: int
    positions: int
    notes: int


class _IndexedDir(DirState):
    """A directory in an index. Its attributes are set when they are used."""

    __slots__ = ("_number", "_sections")

    def __init__(self, sections: _Sections, number: int) -> None:
        """Refer to a directory.

        Args:
            sections: the index.
            number: the number of its row.
        """
        self._sections = sections
        self._number = number
        self.is_stored = True

    def __getattr__(self, name: str) -> Any:
        # Called only for an attribute that is not set.
        if name == "stored":
            at = self._sections.rows + self._number * _ROW.size
            identity, ref = _STORED.unpack_from(self._sections.data, at)
            self.stored = Stored(identity.hex(), ref.hex())
        else:
            self._decode()
        return object.__getattribute__(self, name)

    def _decode(self) -> None:
        sections, number = self._sections, self._number
        data, rows, names_at, signatures_at, positions_at, notes_at = sections
        row = _ROW.unpack_from(data, rows + number * _ROW.size)
        count, below, _, names, signatures, positions, notes, names_size, notes_size = row[:9]
        self.has_notes, self.files, self.bytes = row[9:12]
        names += names_at
        signatures += signatures_at
        self.packed_names = packed_names = data[names : names + names_size]
        self.signatures = data[signatures : signatures + count * SIGNATURE.size]
        if below:
            all_names = packed_names.split(b"/")
            self.subdirs = subdirs = {}
            number += 1
            for at in struct.unpack_from(f"<{below}I", data, positions_at + 4 * positions):
                subdirs[all_names[at]] = _IndexedDir(sections, number)
                number += 1 + _BELOW.unpack_from(data, rows + number * _ROW.size)[0]
        else:
            self.subdirs = _NO_SUBDIRS
        notes += notes_at
        self.notes = _decode_notes(data[notes : notes + notes_size]) if notes_size else NO_NOTES
        self._items = self._encoded = self._names = self._texts = None


def _in_order(root: DirState) -> Iterator[DirState]:
    """Iterate over all directories in preorder, siblings sorted by name."""
    stack = [root]
    while stack:
        state = stack.pop()
        yield state
        if state.subdirs:
            stack += [state.subdirs[name] for name in sorted(state.subdirs, reverse=True)]


def _counts_below(states: list[DirState]) -> list[int]:
    """Return the number of directories below each directory of a preorder list."""
    counts = [0] * len(states)
    pending: list[int] = []
    for position in range(len(states) - 1, -1, -1):  # backwards, so children come before parents
        below = 0
        for _ in range(len(states[position].subdirs)):
            below += 1 + pending.pop()
        counts[position] = below
        pending.append(below)
    return counts


def _encode_notes(notes: Mapping[bytes, Note]) -> bytes:
    if not notes:
        return b""
    return json.dumps([[os.fsdecode(name), *note] for name, note in notes.items()]).encode()


def _decode_notes(data: bytes) -> dict[bytes, Note]:
    return {os.fsencode(name): Note(*note) for name, *note in json.loads(data)}
