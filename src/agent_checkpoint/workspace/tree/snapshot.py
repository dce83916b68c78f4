"""Snapshots of a workspace: the record of a tree. Owns its format; reads no files.

"r"     JSON: id of the tree, files, bytes, the ignore rules, notes on paths that were left
out or torn; refers to the root directory
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.objects.object_format import RECORD, Object
from agent_checkpoint.store.objects.reader import ObjectSource, fetch_objects
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree.dir_state import Note
from agent_checkpoint.workspace.tree.tree_format import Get, Put, Stored

_COMPACT = json.JSONEncoder(separators=(",", ":"))


class PathNote(NamedTuple):
    """A note on a path that was left out, or was captured incompletely."""

    path: str
    kind: str
    text: str


class Tree(NamedTuple):
    """A directory tree at one moment. Trees with equal content have equal `id`, and vice versa."""

    id: str
    ref: str
    """The id of the object that holds the record."""
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

    def get(self, names: Sequence[str]) -> Iterable[Object]:
        """Iterate over objects of the tree's store, each verified against its id.

        Raises:
            IntegrityError: an object is missing or damaged.
            StorageError: the medium failed.
        """
        return objects_from(self.source)(names)


def tree_of(state: Tree | ObjectRef) -> Tree:
    """Return a tree; a reference is resolved. Raises IntegrityError, StorageError."""
    return read_record(state.name, state.source) if isinstance(state, ObjectRef) else state


def objects_from(source: ObjectSource) -> Get:
    """Return a function that reads objects of a store, in the order of the given ids."""

    def get(names: Sequence[str]) -> Iterator[Object]:
        return (item for _, item in fetch_objects(source, names))

    return get


def put_record(tree: Tree, put: Put) -> Tree:
    """Write the record of a tree; return the tree with its name."""
    record = {
        "id": tree.root.id,
        "files": tree.files,
        "bytes": tree.bytes,
        "ignore": tree.ignore,
        "gitignore": tree.gitignore,
        "notes": tree.notes,
    }
    payload = _COMPACT.encode(record).encode()
    return tree._replace(ref=put(RECORD, payload, [tree.root.ref]))


def sorted_notes(notes: Iterable[tuple[bytes, Note]]) -> tuple[PathNote, ...]:
    """Return notes by path as a tree has them."""
    return tuple(sorted(PathNote(os.fsdecode(path), note.kind, note.text) for path, note in notes))


def read_record(name: str, source: ObjectSource) -> Tree:
    """Return the tree that a record describes.

    Raises:
        IntegrityError: the object is missing or damaged, or is not a snapshot record.
        StorageError: the medium failed.
    """
    (stored,) = objects_from(source)([name])
    if stored.kind != RECORD or len(stored.refs) != 1:
        raise IntegrityError(f"The object {name} is not a snapshot record of a workspace.")
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
        raise IntegrityError(f"The snapshot record {name} is damaged.") from None


def _read_note(row: Any) -> PathNote:
    """Return a note. Raises TypeError, or ValueError if its path is not a valid file name."""
    note = PathNote(*map(str, row))
    os.fsencode(note.path)
    return note
