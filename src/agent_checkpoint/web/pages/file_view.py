"""Displays the files of a checkpoint. Owns the display limits."""

from __future__ import annotations

import os

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.web.masking import mask
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, LINK, Item, read_directory
from agent_checkpoint.workspace.tree.tree_reader import pieces

MAX_SHOWN = 256_000
"""Bytes of a file that are shown."""
MAX_ENTRIES = 2_000
_PROBE = 8000


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
    """The displayed part of a file."""

    text: str
    """Empty if binary. Undecodable bytes are kept as surrogates, as in file names."""
    is_binary: bool
    is_whole: bool

    @property
    def lines(self) -> list[str]:
        """The lines without line ends, with secrets masked."""
        return mask(self.text).splitlines()


def rows(tree: Tree, item: Item | None, path: str, start: int) -> tuple[list[Row], int]:
    """Return entries of a directory, directories first, and their total number."""
    items = read_directory(tree.root.ref if item is None else item.ref, tree.get)
    items.sort(key=lambda one: (one.type != FOLDER, one.name))
    return [_row(one, path) for one in items[start : start + MAX_ENTRIES]], len(items)


def content(tree: Tree, item: Item, most: int = MAX_SHOWN) -> Content:
    """Return the beginning of a file, as lines. Raises IntegrityError, StorageError."""
    if item.type == LINK:
        return Content(os.fsdecode(item.target), False, True)
    data = b""
    for piece in pieces(tree.get, item):
        data += piece
        if len(data) > most:
            break
    is_whole = len(data) == item.size and item.size <= most
    if b"\0" in data[:_PROBE]:
        return Content("", True, is_whole)
    return Content(data[:most].decode("utf-8", "surrogateescape"), False, is_whole)


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
