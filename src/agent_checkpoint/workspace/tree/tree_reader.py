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
    Item,
    read_chunks,
    read_directory,
)
from agent_checkpoint.workspace.tree.tree_limits import TreeSizeLimit

_CHUNKS_AT_ONCE = 8


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
    stack = [(f"{path}/" if path else "", iter(_below(ref, tree, limit, 0)))]
    while stack:
        above, items = stack[-1]
        item = next(items, None)
        if item is None:
            stack.pop()
            continue
        whole = above + os.fsdecode(item.name)
        yield whole, item
        if item.type == FOLDER:
            stack.append((f"{whole}/", iter(_below(item.ref, tree, limit, len(whole)))))


def pieces(tree: Tree, item: Item) -> Iterator[bytes]:
    """Iterate over the content of a file in chunks. Raises IntegrityError, StorageError."""
    if item.type != FILE:
        return
    names: tuple[str, ...] = (item.ref,)
    if item.id != item.ref:
        names = read_chunks(item.ref, tree.get).names
    left = item.size
    for start in range(0, len(names), _CHUNKS_AT_ONCE):
        for blob in tree.get(names[start : start + _CHUNKS_AT_ONCE]):
            left -= len(blob.payload)
            if blob.kind != BLOB or left < 0:  # a few chunks can expand to any number of bytes
                raise IntegrityError(
                    "File content does not match its directory entry: it is longer than the "
                    "recorded size, or a chunk is not a blob."
                )
            yield blob.payload


def _below(ref: str, tree: Tree, limit: TreeSizeLimit, length: int) -> list[Item]:
    items = read_directory(ref, tree.get)
    limit.count(length, len(items))
    return items


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"The checkpoint has no file {short_repr(path, 200)}.")
