"""File paths in arguments and output. Owns the choice of the base directory.

If the current directory is inside the saved directory, paths are relative to the current directory,
as in `git status`, so that displayed paths can be used as arguments. Otherwise, and with --into,
they are relative to the root of the saved directory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import relative_path, tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_reader import find

_GIT = ".git"


class RelativePaths:
    """The paths of a directory's files, relative to a base directory."""

    def __init__(self, root: Path | None, here: Path) -> None:
        """Set the base.

        Args:
            root: the root of the files; None if unknown.
            here: the current directory. It is the base if it is inside the root; otherwise the root
                is.
        """
        self._root = Path("/") if root is None else root
        is_inside = root is not None and (root == here or root in here.parents)
        self._base = here if is_inside else self._root

    def resolve(self, typed: Sequence[str]) -> list[str] | None:
        """Return typed paths relative to the root; None if one of them is the root.

        Raises:
            InvalidInputError: a path is outside of the root.
        """
        found = []
        for path in typed:
            whole = os.path.normpath(self._base / path)
            if whole == str(self._root):
                return None
            found.append(os.fsdecode(relative_path(self._root, whole)))
        return found

    def display(self, path: str) -> str:
        """Convert a path relative to the root to the form that is displayed and typed."""
        if self._base == self._root:
            return path
        end = "/" if path.endswith("/") else ""
        return os.path.relpath(self._root / path, self._base) + end

    def not_found(
        self, typed: str, path: str, tree: Tree | None, checkpoint: Checkpoint
    ) -> NotFoundError:
        """Return the error for a missing path, with a hint if the path exists at the root."""
        hint = ""
        if tree is not None and self._base != self._root and holds(tree, os.path.normpath(typed)):
            fitting = short_repr(self.display(typed), 200)
            hint = f" Paths are relative to the current directory: did you mean {fitting}?"
        name = f"{short_repr(checkpoint.id, 120)} (@{checkpoint.seq})"
        return NotFoundError(
            f"No such path in the checkpoint {name}: {short_repr(path, 200)}.{hint}"
        )


def files_of(store: Store, checkpoint: Checkpoint) -> Tree:
    """Return the files of a checkpoint.

    Raises:
        NotFoundError: the checkpoint has none.
        IntegrityError: data of the checkpoint is missing or damaged.
    """
    tree = tree_in(store, checkpoint)
    if tree is None:
        raise NotFoundError(f"The checkpoint {short_repr(checkpoint.id, 120)} has no files.")
    return tree


def holds(tree: Tree, path: str) -> bool:
    """Return whether a tree has a path. Raises IntegrityError, StorageError."""
    try:
        find(tree, path)
    except NotFoundError:
        return False
    return True


def below(paths: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate: whether a path is one of the given paths, or inside one."""
    begins = tuple(f"{path}/" for path in paths)
    return lambda path: path in paths or f"{path.rstrip('/')}/".startswith(begins)


def git_above(path: str) -> str | None:
    """Return the .git directory that contains a path, or None."""
    names = path.rstrip("/").split("/")
    if _GIT not in names[:-1]:
        return None
    return "/".join(names[: names.index(_GIT) + 1])


def without_git(paths: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """Return the paths outside of .git, and the number of paths inside each .git directory."""
    above = {path: git_above(path) for path in paths}
    kept = [path for path in paths if above[path] is None]
    return kept, Counter(git for path in paths if (git := above[path]) is not None)
