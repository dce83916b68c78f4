"""Files of a tree, read where they are stored. Owns finding and reading them; knows no disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agent_checkpoint.errors import IntegrityError, NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.objects.object_format import BLOB
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    FOLDER,
    Item,
    read_chunks,
    read_directory,
)
from agent_checkpoint.workspace.tree.tree_limits import TreeSizeLimit

_AT_ONCE = 8


class TreeReader:
    """Looks for entries of one tree; a directory is read once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._directories: dict[str, dict[bytes, Item]] = {}

    def find(self, path: str) -> Item | None:
        """Return the entry at a path; None for the root.

        Raises:
            NotFoundError: there is none.
            IntegrityError: the tree is damaged.
        """
        found: Item | None = None
        place = self.tree.root.ref
        for name in os.fsencode(path).split(b"/") if path else []:
            if found is not None and found.type != FOLDER:
                raise _missing(path)
            found = self._items(place).get(name)
            if found is None:
                raise _missing(path)
            place = found.ref
        return found

    def _items(self, place: str) -> dict[bytes, Item]:
        if place not in self._directories:
            items = read_directory(place, self.tree.get)
            self._directories[place] = {item.name: item for item in items}
        return self._directories[place]


def find(tree: Tree, path: str) -> Item | None:
    """Return the entry at a path; None for the root. Raises as `TreeReader.find` does."""
    return TreeReader(tree).find(path)


def walk(tree: Tree, path: str = "") -> Iterator[tuple[str, Item]]:
    """Iterate over all that is below a path, in order, a directory before what is in it.

    Raises:
        NotFoundError: there is no such path.
        IntegrityError: the tree is damaged, or there is no end of entries.
    """
    top = find(tree, path)
    if top is not None and top.type != FOLDER:
        yield path, top
        return
    ref = tree.root.ref if top is None else top.ref
    bound = TreeSizeLimit((ref, tree.get))
    stack = [(f"{path}/" if path else "", iter(_below(ref, tree, bound, 0)))]
    while stack:
        above, items = stack[-1]
        item = next(items, None)
        if item is None:
            stack.pop()
            continue
        whole = above + os.fsdecode(item.name)
        yield whole, item
        if item.type == FOLDER:
            stack.append((f"{whole}/", iter(_below(item.ref, tree, bound, len(whole)))))


def pieces(tree: Tree, item: Item) -> Iterator[bytes]:
    """Iterate over the bytes of a file, some at a time. Raises IntegrityError, StorageError."""
    if item.type != FILE:
        return
    names: tuple[str, ...] = (item.ref,)
    if item.id != item.ref:
        names = read_chunks(item.ref, tree.get).names
    left = item.size
    for start in range(0, len(names), _AT_ONCE):
        for found in tree.get(names[start : start + _AT_ONCE]):
            left -= len(found.payload)
            if found.kind != BLOB or left < 0:  # few chunks can stand for any number of bytes
                raise IntegrityError("A file is not what its directory says.")
            yield found.payload


def _below(ref: str, tree: Tree, bound: TreeSizeLimit, length: int) -> list[Item]:
    items = read_directory(ref, tree.get)
    bound.count(length, len(items))
    return items


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"The checkpoint has no file {short_repr(path, 200)}.")
