"""Finds and reads the files of a tree in its store. Does not access the workspace."""

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
    Get,
    Item,
    read_chunks,
    read_directory,
)
from agent_checkpoint.workspace.tree.tree_limits import TreeSizeLimit


class TreeReader:
    """Finds entries of one tree by path; reads each directory once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._directories: dict[str, dict[bytes, Item]] = {}

    def find(self, path: str) -> Item | None:
        """Return the entry at a path; None for the root.

        Raises:
            NotFoundError: there is no such entry.
            IntegrityError: the tree is damaged.
        """
        item: Item | None = None
        directory = self.tree.root.ref
        for name in os.fsencode(path).split(b"/") if path else []:
            if item is not None and item.type != FOLDER:
                raise _missing(path)
            item = self._items(directory).get(name)
            if item is None:
                raise _missing(path)
            directory = item.ref
        return item

    def _items(self, ref: str) -> dict[bytes, Item]:
        if ref not in self._directories:
            items = read_directory(ref, self.tree.get)
            self._directories[ref] = {item.name: item for item in items}
        return self._directories[ref]


def find(tree: Tree, path: str) -> Item | None:
    """Return the entry at a path; None for the root.

    Raises the same errors as `TreeReader.find`.
    """
    return TreeReader(tree).find(path)


def walk(tree: Tree, path: str = "") -> Iterator[tuple[str, Item]]:
    """Iterate over all entries below a path, in order, a directory before its entries.

    Raises:
        NotFoundError: there is no such path.
        IntegrityError: the tree is damaged, or exceeds the limit of entries.
    """
    top = find(tree, path)
    if top is not None and top.type != FOLDER:
        yield path, top
        return
    ref = tree.root.ref if top is None else top.ref
    limit = TreeSizeLimit((ref, tree.get))
    stack = _below(f"{path}/" if path else "", ref, tree, limit)
    while stack:
        path, item = stack.pop()
        yield path, item
        if item.type == FOLDER:
            stack += _below(f"{path}/", item.ref, tree, limit)


def pieces(get: Get, item: Item) -> Iterator[bytes]:
    """Iterate over the content of a file in chunks. Raises IntegrityError, StorageError."""
    if item.type != FILE:
        return
    names: tuple[str, ...] = (item.ref,)
    if item.id != item.ref:
        names = read_chunks(item.ref, get).names
    left = item.size
    for name in names:
        (blob,) = get([name])  # one at a time, to bound memory
        left -= len(blob.payload)
        if blob.kind != BLOB or left < 0:  # a few chunks can expand to any number of bytes
            raise IntegrityError(
                "File content does not match its directory entry: it is longer than the "
                "recorded size, or a chunk is not a blob."
            )
        yield blob.payload


def _below(above: str, ref: str, tree: Tree, limit: TreeSizeLimit) -> list[tuple[str, Item]]:
    """Return the entries of a directory with their paths, the last first."""
    items = read_directory(ref, tree.get)
    limit.count(len(above), len(items))
    return [(above + os.fsdecode(item.name), item) for item in reversed(items)]


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"The checkpoint has no file {short_repr(path, 200)}.")
