"""How much a tree in a store stands for. Owns the most that is gone through.

A directory that many others name is stored once, so few objects can stand for any number of
entries. What they come to is told from the objects alone, each looked at once.
"""

from __future__ import annotations

from typing import NamedTuple

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.tree.tree_format import FOLDER, Get, read_directory

MOST = 2 << 30
"""What a tree may come to, in bytes: about seven million entries with paths as they usually are."""
_LOOK_CLOSER = 8 << 20
_ENTRY = 256
"""What an entry counts beside its path."""


class _ExpandedSize(NamedTuple):
    entries: int
    paths: int

    @property
    def bytes(self) -> int:
        return self.entries * _ENTRY + self.paths


class TreeSizeLimit:
    """Goes along with a walk over trees, and ends it if they come to more than they may."""

    def __init__(self, *trees: tuple[object, Get]) -> None:
        """Take the trees, each by the name of its object; those that are on a disk are bounded."""
        self._trees = [(place, get) for place, get in trees if isinstance(place, str)]
        self._left = _LOOK_CLOSER

    def count(self, path: int, entries: int) -> None:
        """Count the entries of a directory whose path has so many bytes.

        Raises:
            IntegrityError: a tree comes to more than it may, or is damaged.
        """
        self._left -= entries * (_ENTRY + path)
        if self._left < 0:
            for name, get in self._trees:
                if _expanded_size(name, get).bytes > MOST:
                    raise IntegrityError("The tree has more entries than it may have.")
            self._trees = []


def _expanded_size(name: str, get: Get) -> _ExpandedSize:
    known: dict[str, _ExpandedSize] = {}
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


def _sum(items: list[tuple[int, str]], known: dict[str, _ExpandedSize]) -> _ExpandedSize:
    entries, paths = len(items), 0
    for length, ref in items:
        paths += length
        if ref:
            below = known[ref]
            entries += below.entries
            paths += below.entries * (length + 1) + below.paths
    return _ExpandedSize(entries, paths)
