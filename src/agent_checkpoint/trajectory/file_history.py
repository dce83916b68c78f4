"""The files of a line of checkpoints, and when each of them last changed. Read-only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.plan import is_git_index
from agent_checkpoint.workspace.tree.compare import tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER

_GIT_INDEX_NS = 10**9
"""Git trusts its cached stat data of files older than its index: with this time it reads them."""


class FileHistory:
    """The trees of a line, oldest first, and the times of their files."""

    def __init__(self, store: Store, line: Sequence[Checkpoint]) -> None:
        """Compare neighbouring trees of a line.

        Raises:
            IntegrityError: a tree is missing or damaged.
            StorageError: the medium failed.
        """
        self._store = store
        self.line = line
        self._changed: dict[bytes, list[int]] = {}
        """The positions at which each path got new content."""
        last: Checkpoint | None = None
        before: Tree | None = None
        for index, checkpoint in enumerate(line):
            if FILES not in checkpoint.parts:
                continue
            if last is not None and last.parts[FILES] == checkpoint.parts[FILES]:
                continue
            after = self.tree(index)
            for change in () if before is None else tree_changes(before, after):
                is_folder = change.after is not None and change.after.type == FOLDER
                if change.after is not None and not is_folder and not change.keeps_content:
                    self._changed.setdefault(change.path, []).append(index)
            last, before = checkpoint, after

    def tree(self, index: int) -> Tree:
        """Return the files at a position.

        Raises:
            InvalidInputError: the checkpoint has no files.
            IntegrityError: the tree is missing or damaged.
        """
        tree = tree_in(self._store, self.line[index])
        if tree is None:
            raise InvalidInputError(f"The checkpoint {self.line[index].id} has no files.")
        return tree

    def time_of(self, path: bytes, index: int) -> int:
        """Return when a file at a position last got new content, in nanoseconds.

        A file that is as old as the line has the time of the first checkpoint.
        """
        if is_git_index(path):
            return _GIT_INDEX_NS
        at = self._changed.get(path, [])
        number = bisect_right(at, index)
        return self.line[at[number - 1] if number else 0].ts_ns

    def changed_between(self, one: int, other: int) -> list[bytes]:
        """Return the paths that got new content after one position, up to another."""
        low, high = sorted((one, other))
        return [
            path
            for path, at in self._changed.items()
            if bisect_right(at, low) != bisect_right(at, high)
        ]
