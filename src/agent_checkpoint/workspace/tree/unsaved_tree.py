"""Trees whose new objects are not stored yet: of an edit, or of a scan without a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.store.objects.object_format import BLOB, PlainObject
from agent_checkpoint.store.objects.reader import ObjectSource
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.tree.compare import Change
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import (
    Tree,
    objects_from,
    put_record,
    read_record,
    sorted_notes,
)
from agent_checkpoint.workspace.tree.tree_edit import EditedTree
from agent_checkpoint.workspace.tree.tree_format import put_directory


class UnsavedObjects:
    """Objects in memory, before those of a store."""

    def __init__(self, objects: Mapping[str, PlainObject], behind: ObjectSource) -> None:
        self.objects = objects
        self._behind = behind

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return objects as they would be stored. Raises StorageError."""
        names = list(ids)
        found = {name: self.objects[name].stored("zlib") for name in names if name in self.objects}
        return {**self._behind.get_objects([n for n in names if n not in found]), **found}


class UnsavedTree:
    """A tree with edits; a part of a checkpoint that writes the new objects."""

    def __init__(self, base: Tree, edits: Iterable[Change], contents: Iterable[bytes]) -> None:
        """Build the tree in memory.

        Args:
            base: the tree to start from.
            edits: the entries to replace, as for `EditedTree`.
            contents: new contents of files.

        Raises:
            IntegrityError: a directory of the base tree is missing or damaged.
            StorageError: the store failed.
        """
        writer = Writer(WeakKeyDictionary())
        for content in contents:
            writer.put(BLOB, content)
        name = EditedTree(base, edits, base).checkpoint_to(writer)
        self._objects = dict(writer.pending())
        self.tree = read_record(name, UnsavedObjects(self._objects, base.source))

    def checkpoint_to(self, writer: Writer) -> str:
        """Put the new objects; return the name of the snapshot object."""
        writer.adopt(self._objects)
        return self.tree.ref


def scanned_tree(
    state: DirState, behind: Backend, ignore: tuple[str, ...], gitignore: bool
) -> Tree:
    """Return the tree of a scan that no checkpoint followed; its contents must be stored.

    Raises:
        IntegrityError: a stored directory is missing or damaged.
        StorageError: the medium failed.
    """
    writer = Writer(WeakKeyDictionary())
    get = objects_from(behind)

    def put(directory: DirState) -> None:
        if directory.is_stored:  # and so is everything below
            return
        for below in directory.subdirs.values():
            put(below)
        put_directory(directory.items(get), writer.put)

    put(state)
    tree = Tree(
        id=state.stored.id,
        ref="",
        root=state.stored,
        files=state.files,
        bytes=state.bytes,
        ignore=ignore,
        gitignore=gitignore,
        notes=sorted_notes(state.all_notes()),
        source=behind,
    )
    return put_record(tree, writer.put)._replace(
        source=UnsavedObjects(dict(writer.pending()), behind)
    )
