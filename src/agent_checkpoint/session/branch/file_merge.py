"""Three-way merge of trees, path by path. Defines conflicts; never merges file contents."""

from __future__ import annotations

from collections.abc import Iterator

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.tree.compare import Change, is_same, tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER


class Merge(NamedTuple):
    """The result of a three-way merge."""

    paths: list[bytes]
    """Paths that only the other side changed."""
    conflicts: list[bytes]
    """Paths that both sides changed differently."""


def merge(base: Tree, ours: Tree, theirs: Tree) -> Merge:
    """Merge the changes of two sides to the same base tree.

    A path conflicts if both sides changed it differently, or if one side needs a directory that
    the other side removed or replaced.

    Raises:
        IntegrityError: a part of a tree is missing or damaged.
        StorageError: the medium failed.
    """
    mine, other = _edits(base, ours), _edits(base, theirs)
    inside = {above for path in mine for above in _ancestors(path)}
    paths, conflicts = [], set()
    for path, change in other.items():
        if path in mine:
            is_agreed = _agree(mine[path], change)
        else:
            # A path is taken as a whole, with everything below it.
            is_agreed = path not in inside and not any(
                _lost_directory(mine, up) for up in _ancestors(path)
            )
            paths.append(path)
        if not is_agreed:
            conflicts.add(path)
    mine_alone = mine.keys() - other.keys()
    conflicts |= {
        path for path in mine_alone if any(_lost_directory(other, up) for up in _ancestors(path))
    }
    return Merge(paths, sorted(conflicts))


def _edits(before: Tree, after: Tree) -> dict[bytes, Change]:
    return {change.path: change for change in tree_changes(before, after)}


def _agree(mine: Change, other: Change) -> bool:
    a, b = mine.after, other.after
    if a is not None and b is not None and a.type == b.type == FOLDER:
        return a.mode == b.mode  # their entries are compared separately
    return is_same(a, b)


def _lost_directory(edits: dict[bytes, Change], path: bytes) -> bool:
    """Return whether a side removed or replaced a directory."""
    change = edits.get(path)
    return change is not None and (change.after is None or change.after.type != FOLDER)


def _ancestors(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path
