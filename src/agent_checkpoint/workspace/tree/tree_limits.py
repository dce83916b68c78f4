"""The decode limit of stored trees, a protection against decompression bombs.

A directory object that is referenced many times is stored once, so a few objects can expand to any
number of entries. The expanded size is computed from the objects, each of which is read once.
"""

from __future__ import annotations

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.tree.tree_format import FOLDER, Get, read_directory

MAX_TREE_BYTES = 2 << 30
"""The largest expanded size of a tree, in bytes: about seven million entries of typical length."""
_CHECK_AFTER = 8 << 20
"""Walks below this size are not checked: computing the size reads every directory once."""
_ENTRY_BYTES = 256
"""The number of bytes counted for each entry in addition to its path."""


class TreeSizeLimit:
    """Counts the entries of a walk over trees, and stops it if a tree exceeds the limit."""

    def __init__(self, *trees: tuple[object, Get]) -> None:
        """Count for stored trees, given by object id; directories on disk need no limit."""
        self._trees = [(name, get) for name, get in trees if isinstance(name, str)]
        self._until_check = _CHECK_AFTER

    def count(self, path: int, entries: int) -> None:
        """Count the entries of a directory whose path has `path` bytes.

        Raises:
            IntegrityError: a tree exceeds the limit, or is damaged.
        """
        self._until_check -= entries * (_ENTRY_BYTES + path)
        if self._until_check < 0:
            for name, get in self._trees:
                number, paths = _expanded_size(name, get)
                if number * _ENTRY_BYTES + paths > MAX_TREE_BYTES:
                    raise IntegrityError("The tree exceeds the decode limit: too many entries.")
            self._trees = []


def _expanded_size(name: str, get: Get) -> tuple[int, int]:
    """Return the number of entries of a tree, and the bytes of their paths."""
    known: dict[str, tuple[int, int]] = {}
    waiting: dict[str, list[tuple[int, str]]] = {}
    stack = [name]
    while stack:
        name = stack[-1]
        if name in known:
            stack.pop()
        elif name not in waiting:
            items = read_directory(name, get)
            waiting[name] = [
                (len(item.name), item.ref if item.type == FOLDER else "") for item in items
            ]
            stack += {ref for _, ref in waiting[name] if ref and ref not in known}
        else:
            known[name] = _sum(waiting.pop(name), known)
    return known[name]


def _sum(items: list[tuple[int, str]], known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    entries, paths = len(items), 0
    for length, ref in items:
        paths += length
        if ref:
            entries_below, paths_below = known[ref]
            entries += entries_below
            paths += entries_below * (length + 1) + paths_below
    return entries, paths
