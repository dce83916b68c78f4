"""Snapshots of a workspace: the record of a tree. Owns its format; never uses the disk.

"r"     JSON: id of the tree, files, bytes, the ignore rules, notes on paths that were left
out or torn; refers to the root directory
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.object_format import RECORD, Object
from agent_checkpoint.store.objects.reader import ObjectSource, fetch_objects
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree.dir_state import DirState, Note
from agent_checkpoint.workspace.tree.tree_format import Get, Put, Stored


class PathNote(NamedTuple):
    """A note on a path that was left out, or was captured incompletely."""

    path: str
    kind: str
    text: str


class Tree(NamedTuple):
    """A directory tree at one moment. Trees with equal content have equal `id`, and vice versa."""

    id: str
    ref: str
    """The object that holds the record."""
    root: Stored
    files: int
    bytes: int
    ignore: tuple[str, ...]
    """The ignore patterns in effect."""
    gitignore: bool
    notes: tuple[PathNote, ...]
    """Paths that are unreadable, torn, special, or captured without a mode bit."""
    source: ObjectSource
    """The store that holds it; not compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])

    def __repr__(self) -> str:
        fields = zip(self._fields, self[:-1])
        return f"Tree({', '.join(f'{name}={value!r}' for name, value in fields)})"

    @property
    def incomplete(self) -> bool:
        """Whether a file could not be read, or changed while it was read."""
        return any(Note(note.kind).is_loss for note in self.notes)

    def get(self, names: Sequence[str]) -> Sequence[Object]:
        """Return objects of the tree's store, each verified against its name.

        Raises:
            IntegrityError: one is missing or damaged.
            StorageError: the medium failed.
        """
        return objects_from(self.source)(names)


def tree_of(state: Tree | ObjectRef) -> Tree:
    """Return a tree; reads it if given by reference. Raises IntegrityError, StorageError."""
    return read_record(state.name, state.source) if isinstance(state, ObjectRef) else state


def objects_from(source: ObjectSource) -> Get:
    """Return a function that reads objects of a store, in the order of their names."""

    def get(names: Sequence[str]) -> list[Object]:
        objects = dict(fetch_objects(source, dict.fromkeys(names)))
        return [objects[name] for name in names]

    return get


def put_record(
    root: DirState, put: Put, source: ObjectSource, *, ignore: tuple[str, ...], gitignore: bool
) -> Tree:
    """Write the record of a tree; return the tree."""
    notes = tuple(
        sorted(PathNote(os.fsdecode(path), note.kind, note.text) for path, note in root.all_notes())
    )
    record = {
        "id": root.stored.id,
        "files": root.files,
        "bytes": root.bytes,
        "ignore": ignore,
        "gitignore": gitignore,
        "notes": notes,
    }
    payload = json.dumps(record, separators=(",", ":")).encode()
    ref = put(RECORD, payload, [root.stored.ref])
    return Tree(
        root.stored.id, ref, root.stored, root.files, root.bytes, ignore, gitignore, notes, source
    )


def read_record(name: str, source: ObjectSource) -> Tree:
    """Return the tree that a record describes.

    Raises:
        IntegrityError: the object is missing or damaged, or is not a snapshot record.
        StorageError: the medium failed.
    """
    (stored,) = objects_from(source)([name])
    if stored.kind != RECORD or len(stored.refs) != 1:
        raise IntegrityError(f"The object {name} is not a snapshot of a workspace.")
    try:
        record: dict[str, Any] = json.loads(stored.payload)
        return Tree(
            id=str(record["id"]),
            ref=name,
            root=Stored(str(record["id"]), stored.refs[0]),
            files=int(record["files"]),
            bytes=int(record["bytes"]),
            ignore=tuple(map(str, record["ignore"])),
            gitignore=bool(record["gitignore"]),
            notes=tuple(map(_read_note, record["notes"])),
            source=source,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise IntegrityError(f"The object {name} is a damaged snapshot of a workspace.") from None


def _read_note(row: Any) -> PathNote:
    """Return a note. Raises TypeError, or ValueError if its path is no valid file name."""
    note = PathNote(*map(str, row))
    os.fsencode(note.path)
    return note
