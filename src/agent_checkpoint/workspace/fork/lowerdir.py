"""The lower directory of forks: the held workspace itself, or a materialized copy of its tree.

Owns the choice between them; mounts nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper
from agent_checkpoint.workspace.fork.materialized import MaterializedTree, open_materialized
from agent_checkpoint.workspace.fork.overlay_mount import changes, mounts_below
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace


class Lowerdir(NamedTuple):
    """A lower directory. It must not change while forks use it."""

    lower: Path
    folder: DirState
    """Its scanned state."""
    base: MaterializedTree | None
    """The materialized tree to release; None if it is the workspace itself."""

    def release(self) -> None:
        """Release it; may be called twice. Raises OSError."""
        if self.base is not None:
            self.base.release()


def open_lowerdir(origin: Workspace, tree: Tree, bases: Path) -> Lowerdir:
    """Return the lower directory for forks of a tree.

    Args:
        origin: the workspace. If it is held and equals the tree, it is the lower directory.
        tree: the initial state of the forks.
        bases: the directory of materialized trees.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: the tree cannot be written.
    """
    held, known = origin._held_tree, origin._last_state
    is_live = held is not None and held.id == tree.id and not mounts_below(origin.path)
    if is_live and known is not None and known.stored.id == tree.id:
        return Lowerdir(origin.path, known, None)
    base = open_materialized(bases, tree, lambda path: _look(origin, path))
    return Lowerdir(base.files, base.folder, base)


def upper_changes(upper: Path, lower: Path) -> OverlayUpper:
    """Return the source of changed paths of a fork: the upper directory of its mount."""

    def read() -> ChangedPaths:
        found = changes(upper, lower)
        return ChangedPaths(found.names, found.whole)

    return OverlayUpper(read)


def _look(origin: Workspace, path: Path) -> DirState:
    """Scan a materialized tree, so that forks need not."""
    with Workspace(path, origin.store, watch=False, limit=None, force=True) as base:
        return base._scan()
