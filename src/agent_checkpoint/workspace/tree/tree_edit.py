"""A tree with some entries of another one. Reads and writes changed directories only."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.tree.compare import Change
from agent_checkpoint.workspace.tree.snapshot import Tree, put_record
from agent_checkpoint.workspace.tree.tree_format import (
    FOLDER,
    Get,
    Item,
    Put,
    Stored,
    put_directory,
    read_directory,
)


class EditedTree:
    """A tree with some entries taken from another; a part that writes its own objects."""

    def __init__(self, base: Tree, edits: Iterable[Change], source: Tree) -> None:
        """Prepare.

        Args:
            base: the tree to start from.
            edits: the entries to replace; all entries of a removed or new directory are listed.
            source: the tree that the new entries are taken from, with its notes.
        """
        self._base = base
        self._edits = {edit.path: edit for edit in edits}
        self._source = source

    def checkpoint_to(self, writer: Writer) -> str:
        """Put the objects of changed directories; return the name of the snapshot object.

        Raises:
            IntegrityError: a directory of the base tree is missing or damaged.
            StorageError: the store failed.
        """
        root = _Directory()
        for path, edit in self._edits.items():
            root.add(path.split(b"/"), edit)
        olds = [edit.before for edit in self._edits.values() if _is_leaf(edit.before)]
        news = [edit.after for edit in self._edits.values() if _is_leaf(edit.after)]
        brought = {path for path, edit in self._edits.items() if edit.after is not None}
        stored = root.put(self._base.root.ref, self._base.get, writer.put)
        tree = self._base._replace(
            id=stored.id,
            root=stored,
            files=self._base.files + len(news) - len(olds),
            bytes=self._base.bytes + _size(news) - _size(olds),
            notes=tuple(
                sorted(
                    [note for note in self._base.notes if os.fsencode(note.path) not in self._edits]
                    + [note for note in self._source.notes if os.fsencode(note.path) in brought]
                )
            ),
        )
        return put_record(tree, writer.put).ref


class _Directory:
    """The edits in one directory, by name."""

    def __init__(self) -> None:
        self._edits: dict[bytes, Change] = {}
        self._below: dict[bytes, _Directory] = {}

    def add(self, names: list[bytes], edit: Change) -> None:
        if len(names) == 1:
            self._edits[names[0]] = edit
        else:
            self._below.setdefault(names[0], _Directory()).add(names[1:], edit)

    def put(self, ref: str | None, get: Get, put: Put) -> Stored:
        """Write the directory with the edits, and the changed ones below it."""
        old = {} if ref is None else {item.name: item for item in read_directory(ref, get)}
        items = dict(old)
        for name, edit in self._edits.items():
            if edit.after is None:
                items.pop(name, None)
            else:
                items[name] = edit.after
        for name in {*self._below, *self._edits}:
            item = items.get(name)
            if item is not None and item.type == FOLDER:
                before = old.get(name)
                known = before.ref if before is not None and before.type == FOLDER else None
                stored = self._below.get(name, _Directory()).put(known, get, put)
                items[name] = item._replace(id=stored.id, ref=stored.ref)
        return put_directory([items[name] for name in sorted(items)], put)


def _is_leaf(item: Item | None) -> bool:
    return item is not None and item.type != FOLDER


def _size(items: Iterable[Item | None]) -> int:
    return sum(item.size for item in items if item is not None)
