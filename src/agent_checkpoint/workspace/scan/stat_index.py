"""The stat index: the state of a directory tree in one file, like git's index. Owns its format.

With it, a new process does not read every file again. It is a cache: an invalid index is ignored,
and the store verifies the objects that it refers to when they are used.

    header      magic, SHA-256 of the rest, the number of directories, and the sizes in bytes of
                the names, signatures and positions
    rows        one per directory, parents first: numbers of names, of subdirectories and of all
                directories below; offsets of its signatures, positions and notes; length of its
                notes; whether there are notes here or below; files, bytes, id, object
    names       joined with slashes within a directory, and with NULs between directories
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
from itertools import accumulate, islice
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.workspace.tree.dir_state import NO_NOTES, SIGNATURE, DirState, Note
from agent_checkpoint.workspace.tree.tree_format import Stored

_MAGIC = b"agent-checkpoint index 3\n"
_DIGEST = hashlib.sha256().digest_size
_SIZES = struct.Struct("<QQQQ")
_ROW = struct.Struct("<IIIQQQI?QQ32s32s")
_GUARDED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SUBDIRS: Mapping[bytes, DirState] = {}


def remove_indexes(directory: Path) -> None:
    """Remove all indexes in a directory; they contain file names. Raises OSError."""
    for path in directory.iterdir() if directory.is_dir() else ():
        path.unlink(missing_ok=True)


def write_index(path: Path, root: DirState) -> None:
    """Write the state of a directory tree to a file. Raises OSError."""
    states = list(_in_order(root))
    rows, signatures, notes = bytearray(), bytearray(), bytearray()
    positions: list[int] = []
    for state, below in zip(states, _counts_below(states)):
        own_notes = _encode_notes(state.notes)
        own = [position for position, name in enumerate(state.names) if name in state.subdirs]
        offsets = len(signatures), len(positions), len(notes)
        about = len(own_notes), state.has_notes, state.files, state.bytes
        ids = map(bytes.fromhex, state.stored)
        rows += _ROW.pack(len(state.names), len(own), below, *offsets, *about, *ids)
        signatures += state.signatures
        positions += own
        notes += own_notes
    texts = b"\0".join([state.packed_names for state in states])
    sizes = _SIZES.pack(len(states), len(texts), len(signatures), 4 * len(positions))
    packed = struct.pack(f"<{len(positions)}I", *positions)
    data = b"".join([sizes, rows, texts, signatures, packed, notes])
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


def read_index(path: Path) -> DirState | None:
    """Return the root state of an index file; None if it is missing or invalid.

    An index that another user owns or can write to is invalid: it could hide a changed file.
    """
    try:
        with open(os.open(path, _GUARDED), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or other_writer(path, status) is not None:
                return None
            data = file.read()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start + _SIZES.size:
        return None
    if hashlib.sha256(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        return None
    return _decode(data, start)


def _decode(data: bytes, start: int) -> DirState:
    """Return the root state in an index file, given the offset after its digest."""
    directories, *sizes = _SIZES.unpack_from(data, start)
    rows_at = start + _SIZES.size
    names_at = rows_at + directories * _ROW.size
    signatures_at, positions_at, notes_at = islice(accumulate(sizes, initial=names_at), 1, None)
    all_names = data[names_at:signatures_at].split(b"\0")
    pending: list[DirState] = []
    for number in reversed(range(directories)):  # backwards, so children come before parents
        row = _ROW.unpack_from(data, rows_at + number * _ROW.size)
        count, below, _, signatures, positions, notes, notes_size, has_notes, *rest = row
        files, size, identity, ref = rest
        subdirs = _NO_SUBDIRS
        if below:
            names = all_names[number].split(b"/")
            own = struct.unpack_from(f"<{below}I", data, positions_at + 4 * positions)
            subdirs = {names[position]: pending.pop() for position in own}
        signatures += signatures_at
        notes += notes_at
        state = DirState(
            all_names[number],
            data[signatures : signatures + count * SIGNATURE.size],
            subdirs,
            _decode_notes(data[notes : notes + notes_size]) if notes_size else NO_NOTES,
            Stored(identity.hex(), ref.hex()),
            files,
            size,
            has_notes=has_notes,
            is_stored=True,
        )
        pending.append(state)
    return pending.pop()


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
