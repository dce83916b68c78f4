"""Creates and removes the directories of forks. Does not open them as workspaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import Driver, check_option
from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper
from agent_checkpoint.workspace.fork.drivers import (
    ForkPaths,
    begin_fork,
    best_driver,
    clean_up,
    end_fork,
    remove_old_probes,
)
from agent_checkpoint.workspace.fork.lowerdir import (
    ForkOrigin,
    Lowerdir,
    materialize,
    open_lowerdir,
    remove_unused_trees,
)
from agent_checkpoint.workspace.fork.namespace_view import is_in_any_view
from agent_checkpoint.workspace.fork.overlay_mount import (
    changes,
    mount_overlay,
    remove_tree,
    wrap_errors,
)
from agent_checkpoint.workspace.fork.reflink import can_reflink
from agent_checkpoint.workspace.fork.tree_copy import copy_tree
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.dir_state import Copied, DirState
from agent_checkpoint.workspace.tree.snapshot import Tree

F = TypeVar("F")


class ForkDirectory(NamedTuple):
    """The directory of a fork."""

    path: Path
    driver: str
    tree: Tree
    """The initial tree."""
    state: DirState | None
    """The scanned state of the origin, if it has the same files."""
    upper: OverlayUpper | None = None
    """Reports the changes since then, in an overlay."""
    places: ForkPaths | None = None
    """The directories of an overlay."""
    lowerdir: Lowerdir | None = None
    copied: Copied | None = None
    """The signatures of the copied files; None for an overlay."""

    def remove(self) -> None:
        """Remove the directory, with its mount. Raises WorkspaceError."""
        if self.places is not None:
            end_fork(self.places)
        else:
            with wrap_errors(f"remove the fork {str(self.path)!r}"):
                remove_tree(self.path)
        if self.lowerdir is not None:
            self.lowerdir.release()


def checked_target(origin: Path, path: str | os.PathLike[str], driver: Driver) -> Path:
    """Return the real path for a new fork of a directory. Raises the same errors as `fork`."""
    check_option("driver", driver, Driver)
    target = Path(os.path.realpath(path))
    if target == origin or origin in target.parents or target in origin.parents:
        raise UnsafeWorkspaceError(
            f"The fork {target} and the workspace {origin} must not contain each other."
        )
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise UnsafeWorkspaceError(
            f"{target} already exists. Choose a new or empty directory for the fork."
        )
    return target


def make_fork(
    origin: ForkOrigin,
    target: Path,
    tree: Tree,
    driver: Driver,
    open_fork: Callable[[ForkDirectory], F],
    *,
    is_captured: bool,
) -> F:
    """Create the directory of a fork and open it.

    Args:
        origin: the workspace.
        target: a result of `checked_target`.
        tree: the initial files.
        driver: the driver; `auto` picks one.
        open_fork: opens the directory. If it fails, the directory is removed.
        is_captured: whether the tree was just captured from the workspace.

    Raises the same errors as `Workspace.fork`.
    """
    clean_up_all()

    def build(name: str) -> F:
        if name == "overlay":
            made = _overlay(origin, target, tree)
        elif name == "reflink" and not can_reflink(target.parent):
            raise WorkspaceError(f"The file system of {target} does not support reflinks.")
        else:
            made = _copy(origin, target, tree, name, is_captured=is_captured)
        try:
            return open_fork(made)
        except BaseException:
            made.remove()
            raise

    if driver != "auto":
        return build(driver)
    best = best_driver(target.parent)
    try:
        return build(best)
    except WorkspaceError:
        if best == "copy":
            raise
        return build("copy")


def clean_up_all() -> None:
    """Remove the mounts and directories of forks whose processes were killed.

    Failures are ignored: the next call retries them. A process in a view does nothing: it cannot
    unmount what is mounted outside, and the process that made the view does this already.
    """
    if is_in_any_view():
        return
    home = data_home()
    clean_up(home / "forks")
    with suppress(OSError):
        remove_unused_trees(home / "bases")
    with suppress(OSError):
        remove_old_probes(home / "branches")


def _overlay(origin: ForkOrigin, target: Path, tree: Tree) -> ForkDirectory:
    home = data_home()
    lowerdir = open_lowerdir(origin, tree, home / "bases")
    try:
        places = begin_fork(home / "forks", target.parent, target)
    except BaseException:
        lowerdir.release()
        raise
    lower = lowerdir.lower
    upper = OverlayUpper(partial(changes, places.upper, lower))
    made = ForkDirectory(target, "overlay", tree, lowerdir.folder, upper, places, lowerdir)
    try:
        mount_overlay(lower, places.upper, places.work, target, name=places.mount_name)
    except BaseException:
        made.remove()
        raise
    return made


def _copy(
    origin: ForkOrigin, target: Path, tree: Tree, driver: str, *, is_captured: bool
) -> ForkDirectory:
    internal = {STAGING}
    own = origin.store.backend.properties.path
    if own is not None and origin.path in own.parents:
        internal.add(os.fsencode(own.relative_to(origin.path)))
    is_current = is_captured or origin.present_id() == tree.id
    places = begin_fork(data_home() / "forks", target.parent)
    copied: Copied = {}
    try:
        if is_current:
            copied = copy_tree(origin.path, places.files, leave_out=internal)
        else:
            materialize(tree, places.files)
        with wrap_errors(f"create {str(target)!r}"):
            os.rename(places.files, target)  # atomic: the fork is complete or absent
    finally:
        end_fork(places)
    state = origin.scanner.dir_state if is_current else None
    return ForkDirectory(target, driver, tree, state, copied=copied)
