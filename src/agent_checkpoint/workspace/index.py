"""The tree of folders as one file, so that a new process need not read every file again.

Owns its form. It is a cache: whatever is wrong with it, it is as if there were none. What it says
of objects is checked by the store when they are used.

    magic, SHA-256 of the rest, then each folder, before those below it:
    numbers of names and folders, lengths of names and notes, files, bytes, id, object;
    the names with slashes between them, the stamps, the places of folders among the names, notes
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.workspace.folders import NO_NOTES, STAMP, Folder, Note
from agent_checkpoint.workspace.tree import Stored

_MAGIC = b"agent-checkpoint index 1\n"
_HEAD = struct.Struct("<IIII?QQ32s32s")
_DIGEST = hashlib.sha256().digest_size


def write_index(path: Path, root: Folder) -> None:
    """Write the folders to a file. Raises OSError."""
    pieces: list[bytes] = []
    stack = [root]
    while stack:
        folder = stack.pop()
        places = [place for place, name in enumerate(folder.names) if name in folder.folders]
        names, notes = folder.packed_names, _write_notes(folder.notes)
        identity, ref = map(bytes.fromhex, folder.stored)
        counts = len(folder.names), len(places), len(names), len(notes)
        pieces += (
            _HEAD.pack(*counts, folder.is_noted, folder.files, folder.bytes, identity, ref),
            names,
            folder.stamps,
            struct.pack(f"<{len(places)}I", *places),
            notes,
        )
        stack += (folder.folders[folder.names[place]] for place in reversed(places))
    data = b"".join(pieces)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_MAGIC + hashlib.sha256(data).digest() + data)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def read_index(path: Path) -> Folder | None:
    """Return the folders of a file, or None if there is none that can be read."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if whole[: len(_MAGIC)] != _MAGIC or len(whole) < start:
        return None
    data = memoryview(whole)[start:]
    if hashlib.sha256(data).digest() != whole[len(_MAGIC) : start]:
        return None
    return _read(bytes(data))


def _read(data: bytes) -> Folder | None:
    """Return the folders; the data is what was written, as its hash says."""
    at = 0
    above: list[tuple[dict[bytes, Folder], list[bytes]]] = []
    root: Folder | None = None
    while at < len(data):
        head = _HEAD.unpack_from(data, at)
        count, folders, length, noted, is_noted, files, size, identity, ref = head
        at += _HEAD.size
        names = data[at : at + length]
        at += length
        stamps = data[at : at + count * STAMP.size]
        at += count * STAMP.size
        places = struct.unpack_from(f"<{folders}I", data, at) if folders else ()
        at += 4 * folders
        notes = _read_notes(data[at : at + noted]) if noted else NO_NOTES
        at += noted
        below: dict[bytes, Folder] = {}
        stored = Stored(identity.hex(), ref.hex())
        folder = Folder(
            names,
            stamps,
            below,
            notes,
            stored,
            files,
            size,
            is_noted=is_noted,
            is_stored=True,
        )
        while above and not above[-1][1]:
            above.pop()
        if above:
            inside, waiting = above[-1]
            inside[waiting.pop()] = folder
        else:
            root = folder
        if places:
            above.append((below, [folder.names[place] for place in reversed(places)]))
    return root


def _write_notes(notes: Mapping[bytes, Note]) -> bytes:
    if not notes:
        return b""
    return json.dumps([[os.fsdecode(name), *note] for name, note in notes.items()]).encode()


def _read_notes(text: bytes) -> dict[bytes, Note]:
    return {os.fsencode(name): Note(*note) for name, *note in json.loads(text)}
