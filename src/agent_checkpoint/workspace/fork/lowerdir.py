"""The lower directory of forks: the held workspace itself, or a materialized copy of its tree.

Owns the choice between the two; does not mount anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.fork.materialized import MaterializedTree, open_materialized
from agent_checkpoint.workspace.fork.overlay_mount import mounts_below
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.scan.snapshot_limit import SnapshotLimit
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace_lock import RootLock


class ForkOrigin(NamedTuple):
    """The workspace that forks start from."""

    path: Path
    store: Store
    held: Tree | None
    """The tree of the directory while nothing writes to it."""
    scanner: Scanner
    scan: Callable[[], DirState]
    """Scans the directory."""

    def present_id(self) -> str:
        """Return the id of the tree of the directory. Raises the same errors as `snapshot`."""
        return self.scan().stored.id if self.held is None else self.held.id


class Lowerdir(NamedTuple):
    """A lower directory. It must not change while forks use it."""

    lower: Path
    folder: DirState
    """The scanned state of the directory."""
    base: MaterializedTree | None
    """The materialized tree to release; None if the directory is the workspace."""

    def release(self) -> None:
        """Release the materialized tree, if any. May be called twice. Raises OSError."""
        if self.base is not None:
            self.base.release()


def open_lowerdir(origin: ForkOrigin, tree: Tree, bases: Path) -> Lowerdir:
    """Return the lower directory for forks of a tree.

    Args:
        origin: the workspace. It is the lower directory if it is held and equals the tree.
        tree: the initial state of the forks.
        bases: the directory of materialized trees.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: the tree cannot be written.
    """
    held, known = origin.held, origin.scanner.dir_state
    is_live = held is not None and held.id == tree.id and not mounts_below(origin.path)
    if is_live and known is not None and known.stored.id == tree.id:
        return Lowerdir(origin.path, known, None)
    base = open_materialized(bases, tree, lambda path: _scan(path, origin.store))
    return Lowerdir(base.files, base.folder, base)


def _scan(path: Path, store: Store) -> DirState:
    """Scan a materialized tree, so that its forks do not have to."""
    scanner = Scanner(path, Rules.of(()), SnapshotLimit(None, None), watch=False)
    with RootLock(path).held(exclusive=False) as root:
        return scanner.scan(root, store.writer(), ahead=True)
