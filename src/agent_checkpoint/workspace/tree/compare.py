"""Compares two trees. Descends only into directories whose ids differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.tree_format import FOLDER, Get, Item, read_directory
from agent_checkpoint.workspace.tree.tree_limits import TreeSizeLimit


class Side(NamedTuple):
    """One side of a comparison: a scanned directory, or a directory object in a store."""

    place: DirState | str | None
    get: Get

    def items(self) -> list[Item]:
        """Return the entries; none if there is no directory. Raises the same errors as `get`."""
        if self.place is None:
            return []
        if isinstance(self.place, DirState):
            return self.place.items(self.get)
        return read_directory(self.place, self.get)

    def below(self, item: Item | None) -> Side:
        """Return the side of a subdirectory; an empty side if the entry is not a directory."""
        if item is None or item.type != FOLDER:
            return Side(None, self.get)
        if isinstance(self.place, DirState):
            return Side(self.place.subdirs[item.name], self.get)
        return Side(item.ref, self.get)


class Change(NamedTuple):
    """An entry that differs between the sides; None where it does not exist."""

    path: bytes
    before: Item | None
    after: Item | None
    folder: DirState | None
    """The parent directory on the first side with its signatures and notes, if it was scanned."""

    @property
    def name(self) -> bytes:
        """The last component of the path."""
        return self.path.rpartition(b"/")[2]


def is_same(before: Item | None, after: Item | None) -> bool:
    """Return whether two entries are equal, even if they are stored in different objects."""
    if before is None or after is None:
        return before is after
    return before._replace(ref="") == after._replace(ref="")


def differences(
    before: Side, after: Side, selects: Callable[[bytes, bool], bool] = lambda path, is_folder: True
) -> Iterator[Change]:
    """Iterate over the entries that differ, a directory before its entries.

    Args:
        before: one tree.
        after: the other.
        selects: returns whether to compare a path, given the path and whether it is a directory.

    Raises:
        IntegrityError: an object is missing or damaged, or a tree exceeds the limit of entries.
        StorageError: the medium failed.
    """
    limit = TreeSizeLimit(*((side.place, side.get) for side in (before, after)))
    stack = [(b"", before, after)]
    while stack:
        path, old, new = stack.pop()
        olds = {item.name: item for item in old.items()}
        news = {item.name: item for item in new.items()}
        limit.count(len(path), len(olds) + len(news))
        deeper = []
        for name in sorted(olds.keys() | news.keys()):
            a, b = olds.get(name), news.get(name)
            kinds = [item.type for item in (a, b) if item is not None]
            if is_same(a, b) or not selects(path + name, FOLDER in kinds):
                continue
            are_folders = a is not None and b is not None and kinds == [FOLDER, FOLDER]
            if not are_folders or (a and a.mode) != (b and b.mode):
                folder = old.place if isinstance(old.place, DirState) else None
                yield Change(path + name, a, b, folder)
            if FOLDER in kinds and (not are_folders or (a and a.id) != (b and b.id)):
                deeper.append((path + name + b"/", old.below(a), new.below(b)))
        stack += reversed(deeper)
