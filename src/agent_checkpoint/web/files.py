"""Files of a checkpoint, read where they are stored. Owns finding and reading them, bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from agent_checkpoint.errors import IntegrityError, NotFoundError
from agent_checkpoint.records import show
from agent_checkpoint.store.objects import BLOB
from agent_checkpoint.workspace.snapshots import Tree
from agent_checkpoint.workspace.tree import FILE, FOLDER, LINK, Item, read_chunks, read_directory

MOST_SHOWN = 256_000
"""Bytes of a file that are shown."""
MOST_ENTRIES = 2_000
_PROBE = 8000
_AT_ONCE = 8


class Row(NamedTuple):
    """An entry of a directory."""

    name: str
    path: str
    type: str
    """`file`, `directory` or `link`."""
    size: int
    mode: str
    target: str


class Content(NamedTuple):
    """What is shown of a file."""

    text: str
    """Nothing of a binary one. Bytes that are no text are kept apart, as in names of files."""
    is_binary: bool
    is_whole: bool

    @property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return self.text.splitlines()


class Look:
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
    """Return the entry at a path; None for the root. Raises as `Look.find` does."""
    return Look(tree).find(path)


def rows(tree: Tree, item: Item | None, path: str, start: int) -> tuple[list[Row], int]:
    """Return entries of a directory, directories first, and how many there are in all."""
    items = read_directory(tree.root.ref if item is None else item.ref, tree.get)
    items.sort(key=lambda one: (one.type != FOLDER, one.name))
    return [_row(one, path) for one in items[start : start + MOST_ENTRIES]], len(items)


def content(tree: Tree, item: Item, most: int = MOST_SHOWN) -> Content:
    """Return the beginning of a file, as lines. Raises IntegrityError, StorageError."""
    if item.type == LINK:
        return Content(os.fsdecode(item.target), False, True)
    data = b""
    for piece in pieces(tree, item):
        data += piece
        if len(data) > most:
            break
    is_whole = len(data) == item.size and item.size <= most
    if b"\0" in data[:_PROBE]:
        return Content("", True, is_whole)
    return Content(data[:most].decode("utf-8", "surrogateescape"), False, is_whole)


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


def _row(item: Item, path: str) -> Row:
    name = os.fsdecode(item.name)
    types = {FILE: "file", FOLDER: "directory", LINK: "link"}
    return Row(
        name,
        f"{path}/{name}" if path else name,
        types.get(item.type, "?"),
        item.size,
        f"{item.mode:03o}",
        os.fsdecode(item.target) if item.type == LINK else "",
    )


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"The checkpoint has no file {show(path, 200)}.")
