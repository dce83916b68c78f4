"""Paths of a directory's files, as people type and read them. Owns what they are relative to.

That is where one is, as with `git status`: what was shown can be typed. From elsewhere, and where
files are put elsewhere, they are relative to the directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_reader import find
from agent_checkpoint.workspace.tree_names import within

_GIT = ".git"


class Paths:
    """The paths of one directory, seen from another."""

    def __init__(self, root: Path | None, here: Path) -> None:
        """Take both.

        Args:
            root: the directory; None if nobody knows where it is.
            here: where one is; if that is not in the directory, it plays no part.
        """
        self._root = Path("/") if root is None else root
        is_inside = root is not None and (root == here or root in here.parents)
        self._base = here if is_inside else self._root

    def typed(self, said: Sequence[str]) -> list[str] | None:
        """Return paths that were said as those of the directory; None if one is all of it.

        Raises:
            InvalidInputError: one is not in the directory.
        """
        found = []
        for path in said:
            whole = os.path.normpath(self._base / path)
            if whole == str(self._root):
                return None
            found.append(os.fsdecode(within(self._root, whole)))
        return found

    def shown(self, path: str) -> str:
        """Return a path of the directory as one types it here."""
        if self._base == self._root:
            return path
        end = "/" if path.endswith("/") else ""
        return os.path.relpath(self._root / path, self._base) + end

    def missing(
        self, said: str, path: str, tree: Tree | None, checkpoint: Checkpoint
    ) -> NotFoundError:
        """Return the error for a path that is nowhere, with the one that may have been meant."""
        hint = ""
        if tree is not None and self._base != self._root and holds(tree, os.path.normpath(said)):
            hint = (
                f" Paths are relative to where you are: {short_repr(self.shown(said), 200)} is "
                "there."
            )
        name = f"{short_repr(checkpoint.id, 120)} (@{checkpoint.seq})"
        return NotFoundError(f"There is no {short_repr(path, 200)} in the checkpoint {name}.{hint}")


def holds(tree: Tree, path: str) -> bool:
    """Tell whether there is something at a path. Raises IntegrityError, StorageError."""
    try:
        find(tree, path)
    except NotFoundError:
        return False
    return True


def below(paths: Sequence[str]) -> Callable[[str], bool]:
    """Return what tells whether a path is one of some, or below one."""
    begins = tuple(f"{path}/" for path in paths)
    return lambda path: path in paths or f"{path.rstrip('/')}/".startswith(begins)


def git_above(path: str) -> str | None:
    """Return the directory of git that a path is in; None if it is in none."""
    names = path.rstrip("/").split("/")
    if _GIT not in names[:-1]:
        return None
    return "/".join(names[: names.index(_GIT) + 1])


def without_git(paths: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Part the paths that people care about from what git writes: how many are in which `.git`."""
    kept: list[str] = []
    counts: dict[str, int] = {}
    for path in paths:
        above = git_above(path)
        if above is None:
            kept.append(path)
        else:
            counts[above] = counts.get(above, 0) + 1
    return kept, counts
