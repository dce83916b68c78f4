"""What forks of a tree read through to: the held directory itself, or the tree written out.

Owns the choice between them; mounts nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.workspace.changes.changed_paths import Touched
from agent_checkpoint.workspace.changes.overlay_upper import Layer
from agent_checkpoint.workspace.fork.materialized import MaterializedTree, open_materialized
from agent_checkpoint.workspace.fork.overlay_mount import changes, mounts_below
from agent_checkpoint.workspace.tree.dir_state import Folder
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace


class Lowerdir(NamedTuple):
    """A directory that does not change, for as long as it is used."""

    lower: Path
    folder: Folder
    """What was seen in it."""
    base: MaterializedTree | None
    """What has to be released, if it was written out."""

    def release(self) -> None:
        """Let go of it. Twice is fine. Raises OSError."""
        if self.base is not None:
            self.base.release()


def open_lowerdir(origin: Workspace, tree: Tree, bases: Path) -> Lowerdir:
    """Return what forks of a tree of a workspace can read through to.

    Args:
        origin: the workspace; if it is held and is the tree, it is the ground itself.
        tree: what the forks begin as.
        bases: the directory for trees that are written out.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: it cannot be written.
    """
    held, known = origin._held, origin._known
    is_live = held is not None and held.id == tree.id and not mounts_below(origin.path)
    if is_live and known is not None and known.stored.id == tree.id:
        return Lowerdir(origin.path, known, None)
    base = open_materialized(bases, tree, lambda path: _look(origin, path))
    return Lowerdir(base.files, base.folder, base)


def upper_changes(upper: Path, lower: Path) -> Layer:
    """Return what tells the changes of a fork: the upper directory of a mount over a lower one."""

    def read() -> Touched:
        found = changes(upper, lower)
        return Touched(found.names, found.whole)

    return Layer(read)


def _look(origin: Workspace, path: Path) -> Folder:
    """Look at a base, for forks to know what is in it."""
    with Workspace(path, origin.store, watch=False, limit=None, force=True) as base:
        return base._look()
