"""Compares two trees. Descends only into directories whose ids differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.objects.object_format import Object
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, DirState
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Get, Item, read_directory
from agent_checkpoint.workspace.tree.tree_limits import TreeSizeLimit

if TYPE_CHECKING:
    from agent_checkpoint.workspace.tree.snapshot import Tree

_EXECUTABLE = 0o111
_BATCH = 500
"""How many directories are read at a time."""
_MOST_AHEAD = 50_000
"""The number of entries of directories that are read ahead."""


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

    @property
    def stamp(self) -> bytes:
        """The stat signature of the entry on the first side, if it was scanned."""
        if self.folder is None or self.before is None:
            return READ_AGAIN
        return self.folder.signature_of(self.name) or READ_AGAIN

    @property
    def keeps_content(self) -> bool:
        """Whether only the mode changes."""
        before, after = self.before, self.after
        if before is None or after is None:
            return False
        return before.type == after.type == FOLDER or is_same(
            before._replace(mode=after.mode), after
        )

    @property
    def makes_executable(self) -> bool:
        """Whether a file becomes executable, or an executable file gets other content."""
        after = self.after
        is_executable = after is not None and after.type == FILE and after.mode & _EXECUTABLE
        was_executable = self.before is not None and self.before.mode & _EXECUTABLE
        return bool(is_executable and not (self.keeps_content and was_executable))

    @property
    def removes_folder(self) -> bool:
        """Whether a directory is removed, possibly to be replaced by a file or link."""
        was_folder = self.before is not None and self.before.type == FOLDER
        return was_folder and (self.after is None or self.after.type != FOLDER)


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
    ahead = [_ReadAhead(side.get) for side in (before, after)]
    stack = [(b"", before, after)]
    while stack:
        path, old, new = stack.pop()
        olds = {item.name: item for item in ahead[0].items(old)}
        news = {item.name: item for item in ahead[1].items(new)}
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
        ahead[0].read([(below.place, other.place) for _, below, other in deeper])
        ahead[1].read([(below.place, other.place) for _, other, below in deeper])
        stack += reversed(deeper)


def tree_changes(before: Tree | None, after: Tree) -> list[Change]:
    """Return the entries that differ between two trees; all of the second without a first one.

    Raises the same errors as `differences`.
    """
    old = Side(None, after.get) if before is None else Side(before.root.ref, before.get)
    return list(differences(old, Side(after.root.ref, after.get)))


class _ReadAhead:
    """Reads directory objects many at a time: the store may be far away."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._known: dict[str, list[Item]] = {}
        self._entries = 0

    def items(self, side: Side) -> list[Item]:
        """Return the entries of a directory. Raises the same errors as `Side.items`."""
        known = self._known.get(side.place) if isinstance(side.place, str) else None
        return side.items() if known is None else known

    def read(self, pairs: list[tuple[DirState | str | None, DirState | str | None]]) -> None:
        """Read the stored directories of pairs, given as this side and the other one.

        Where the other side has none, everything below is needed as well, and read level by level.
        """
        if self._entries > _MOST_AHEAD:
            self._known, self._entries = {}, 0
        level = {place: other is None for place, other in pairs if isinstance(place, str)}
        while level and self._entries <= _MOST_AHEAD:
            names = [name for name in level if name not in self._known]
            deeper: dict[str, bool] = {}
            for start in range(0, len(names), _BATCH):
                batch = names[start : start + _BATCH]
                for name, found in zip(batch, self._get(batch)):
                    items = read_directory(name, _first(name, found, self._get))
                    self._known[name] = items
                    self._entries += len(items)
                    if self._entries > _MOST_AHEAD:
                        return
                    if level[name]:
                        deeper.update({item.ref: True for item in items if item.type == FOLDER})
            level = deeper


def _first(name: str, found: Object, get: Get) -> Get:
    """Return a function that reads all objects but one, which is given."""
    return lambda names: [found] if list(names) == [name] else get(names)
