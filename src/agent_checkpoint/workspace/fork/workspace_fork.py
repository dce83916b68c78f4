"""Forks: isolated workspaces that start as another one. Owns creating and removing them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.errors import InvalidInputError, UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.fork.drivers import (
    ForkPaths,
    begin_fork,
    best_driver,
    clean_up,
    end_fork,
)
from agent_checkpoint.workspace.fork.lowerdir import open_lowerdir, upper_changes
from agent_checkpoint.workspace.fork.materialized import (
    MaterializedTree,
    materialize,
    remove_unused_trees,
)
from agent_checkpoint.workspace.fork.overlay_mount import mount_overlay, remove_tree
from agent_checkpoint.workspace.fork.tree_copy import can_reflink, copy_tree
from agent_checkpoint.workspace.scan.entry_filter import STAGING
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace

DRIVERS = ("auto", "overlay", "reflink", "copy")


class Fork(Workspace):
    """A workspace that started as another one, and is isolated from it."""

    def __init__(
        self,
        path: Path,
        store: Store,
        options: dict[str, Any],
        *,
        driver: str,
        tree: Tree,
        places: ForkPaths | None = None,
        base: MaterializedTree | None = None,
    ) -> None:
        """Open a fork that exists; `Workspace.fork` creates one."""
        super().__init__(path, store, **options)
        self.driver = driver
        self.tree = tree
        """Its initial state."""
        self._places = places
        self._base = base
        self._is_open = True
        self._on_close: Callable[[], object] = lambda: None
        self._end: Callable[[], object] = self.close

    def belongs_to(self, end: Callable[[], object]) -> None:
        """Register the owner's way to end the fork: an owner saves more than files."""
        self._end = end

    def end(self) -> None:
        """Let the owner close it. Raises as `close` does."""
        self._end()

    def on_close(self, call: Callable[[], object]) -> None:
        """Register a callback for when the fork is removed."""
        self._on_close = call

    def close(self, *, save: bool = True) -> None:
        """Save the final state, then remove the fork and its directories. May be called twice.

        Args:
            save: whether to save the final state; unsaved changes are lost.

        Raises:
            WorkspaceError: the state cannot be saved, or a directory cannot be removed.
            StorageError: the store failed; the fork stays.
        """
        with self._lock:
            if not self._is_open:
                return
            if save:
                self.snapshot()
            super().close()
            self._scanner.forget_index()
            if self._places is not None:
                end_fork(self._places)
            else:
                try:
                    remove_tree(self.path)
                except OSError as error:
                    raise WorkspaceError(
                        f"The fork {short_repr(str(self.path))} cannot be removed "
                        f"({error.strerror})."
                    ) from error
            if self._base is not None:
                self._base.release()
            self._is_open = False
            self._on_close()


def make_fork(
    origin: Workspace, path: str | os.PathLike[str], tree: Tree | None, driver: str
) -> Fork:
    """Fork a workspace, from its current state or a tree. Raises as `Workspace.fork` does."""
    if driver not in DRIVERS:
        raise InvalidInputError(
            f"Unknown driver {short_repr(driver)}: use one of {', '.join(DRIVERS)}."
        )
    target = Path(os.path.realpath(path))
    if target == origin.path or origin.path in target.parents or target in origin.path.parents:
        raise UnsafeWorkspaceError(
            f"The fork {target} and the workspace {origin.path} must not contain each other."
        )
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise UnsafeWorkspaceError(
            f"{target} exists already: a fork needs a new or empty directory."
        )
    home = data_home()
    clean_up_all()
    builder = _ForkBuilder(origin, target, tree, home)
    if driver != "auto":
        return builder.build(driver)
    best = best_driver(target.parent)
    try:
        return builder.build(best)
    except WorkspaceError:
        if best == "copy":
            raise
        return builder.build("copy")


def clean_up_all() -> None:
    """Remove the mounts and directories of forks whose processes were killed.

    Failures are ignored: the next call retries them.
    """
    home = data_home()
    clean_up(home / "forks")
    with suppress(OSError):
        remove_unused_trees(home / "bases")


class _ForkBuilder:
    """Creates one fork."""

    def __init__(self, origin: Workspace, target: Path, tree: Tree | None, home: Path) -> None:
        self._origin = origin
        self._target = target
        self._home = home
        self._tree = tree or origin._held_tree or origin.snapshot()
        self._was_given = tree is not None

    def build(self, driver: str) -> Fork:
        """Create it with a driver. Raises WorkspaceError."""
        if driver == "overlay":
            return self._overlay()
        if driver == "reflink" and not can_reflink(self._target.parent):
            raise WorkspaceError(f"The file system of {self._target} does not support reflinks.")
        return self._copy(driver)

    def _overlay(self) -> Fork:
        lowerdir = open_lowerdir(self._origin, self._tree, self._home / "bases")
        try:
            places = begin_fork(self._home / "forks", self._target.parent, self._target)
        except BaseException:
            lowerdir.release()
            raise
        lower = lowerdir.lower
        try:
            mount_overlay(lower, places.upper, places.work, self._target, name=places.mount_name)
            fork = self._open("overlay", places=places, base=lowerdir.base)
            fork._adopt_state(lowerdir.folder, upper_changes(places.upper, lower))
        except BaseException:
            end_fork(places)
            lowerdir.release()
            raise
        return fork

    def _copy(self, driver: str) -> Fork:
        is_current = self._is_current()
        places = begin_fork(self._home / "forks", self._target.parent)
        try:
            if is_current:
                copy_tree(self._origin.path, places.files, leave_out=self._leaves_out)
            else:
                materialize(self._tree, places.files)
            os.rename(places.files, self._target)  # atomic: the fork is complete or absent
        except OSError as error:
            raise WorkspaceError(f"{self._target} cannot be created ({error.strerror}).") from error
        finally:
            end_fork(places)
        fork = self._open(driver)
        if is_current:
            fork._adopt_state(self._origin._last_state, None)
        return fork

    def _is_current(self) -> bool:
        """Tell whether the workspace equals the tree: then its files can be copied."""
        if not self._was_given:
            return True
        held = self._origin._held_tree
        present = self._origin._scan().stored.id if held is None else held.id
        return present == self._tree.id

    def _leaves_out(self, directory: bytes, name: bytes) -> bool:
        """Tell whether an entry is internal, not a part of the workspace."""
        store = getattr(self._origin.store.backend, "path", None)
        here = self._origin.path / os.fsdecode(directory) / os.fsdecode(name)
        return (name == STAGING and not directory) or here == store

    def _open(self, driver: str, **made: Any) -> Fork:
        origin = self._origin
        return Fork(
            self._target, origin.store, origin._options, driver=driver, tree=self._tree, **made
        )
