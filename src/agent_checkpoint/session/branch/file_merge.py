"""Two sets of edits of the same files, path by path. Owns what is a conflict; guesses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agent_checkpoint.workspace.tree.compare import Change, Side, differences, is_same
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER


class Merge(NamedTuple):
    """What of the other side can be taken, and what cannot."""

    paths: list[bytes]
    """Only the other side has changed them."""
    conflicts: list[bytes]
    """Both have, each in its own way."""


def merge(base: Tree, ours: Tree, theirs: Tree) -> Merge:
    """Compare what two sides did to the same tree.

    A path conflicts if both changed it and do not agree, or if one needs a directory where the
    other has none.

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
            # What is taken is taken whole, with all that is below it.
            is_agreed = path not in inside and not any(
                _is_gone(mine, up) for up in _ancestors(path)
            )
            paths.append(path)
        if not is_agreed:
            conflicts.add(path)
    mine_alone = mine.keys() - other.keys()
    conflicts |= {
        path for path in mine_alone if any(_is_gone(other, up) for up in _ancestors(path))
    }
    return Merge(paths, sorted(conflicts))


def _edits(before: Tree, after: Tree) -> dict[bytes, Change]:
    sides = Side(before.root.ref, before.get), Side(after.root.ref, after.get)
    return {change.path: change for change in differences(*sides)}


def _agree(mine: Change, other: Change) -> bool:
    a, b = mine.after, other.after
    if a is not None and b is not None and a.type == b.type == FOLDER:
        return a.mode == b.mode  # what is in them is compared by itself
    return is_same(a, b)


def _is_gone(edits: dict[bytes, Change], path: bytes) -> bool:
    """Tell whether a side has no directory any more where there is or was one."""
    change = edits.get(path)
    return change is not None and (change.after is None or change.after.type != FOLDER)


def _ancestors(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path
