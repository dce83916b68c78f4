"""The isolated directories of probes. Owns their files, times, environment and removal.

    <base>      the files of one checkpoint; moved from checkpoint to checkpoint, never written by
                a probe
    <private>   the directory of one probe: an overlay of the base, or a copy, and its home

Only files are isolated, with HOME and the directory for temporary files. A probe can use the
network, and can write wherever the user can.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_checkpoint.agents.directory_keys import session_directory, tracked_directory
from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.store.directory_claims import newest_readable
from agent_checkpoint.store.store import Store
from agent_checkpoint.trajectory.file_history import FileHistory
from agent_checkpoint.workspace.fork.drivers import (
    ForkPaths,
    begin_fork,
    best_driver,
    can_view,
    end_fork,
)
from agent_checkpoint.workspace.fork.isolated import private_forks_dir
from agent_checkpoint.workspace.fork.namespace_view import view_command
from agent_checkpoint.workspace.fork.overlay_mount import mount_overlay, wrap_errors
from agent_checkpoint.workspace.fork.supervised_command import supervised
from agent_checkpoint.workspace.fork.tree_copy import copy_tree
from agent_checkpoint.workspace.fork.tree_update import TreeUpdate, set_times
from agent_checkpoint.workspace.tree.compare import tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree

_NOT_INHERITED = (
    "AGENT_CHECKPOINT_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


class ProbeBase:
    """A directory with the files of one checkpoint at a time, for one probe at a time."""

    def __init__(self, history: FileHistory) -> None:
        """Create an empty directory.

        Raises:
            WorkspaceError: it cannot be created.
        """
        self._history = history
        self._beside = private_forks_dir()
        self._records = self._beside.parent / "forks"
        self._own = begin_fork(self._records, self._beside)
        self.files = self._own.files
        with wrap_errors(f"create {str(self.files)!r}"):
            self.files.mkdir(mode=0o700)
        self._at: int | None = None
        self._tree: Tree | None = None

    def move_to(self, index: int) -> None:
        """Write the files of a position of the line, with their times.

        Raises:
            IntegrityError: a file is missing from the store, or damaged.
            WorkspaceError: a file cannot be written.
        """
        tree, history = self._history.tree(index), self._history
        changes = tree_changes(self._tree, tree)
        TreeUpdate(self.files).run(changes, tree.get)
        paths = {change.path for change in changes}
        if self._at is not None:
            paths.update(history.changed_between(self._at, index))
        set_times(self.files, list(paths), lambda path: history.time_of(path, index))
        self._at, self._tree = index, tree

    @contextmanager
    def probe(self) -> Iterator[ForkPaths]:
        """Yield the paths of a probe; everything in them is removed afterwards.

        Raises:
            WorkspaceError: a directory cannot be created or removed.
        """
        paths = begin_fork(self._records, self._beside)
        try:
            for name in ("home", "tmp"):
                make_directory(paths.private / name)
            yield paths
        finally:
            end_fork(paths)

    @contextmanager
    def mounted(self) -> Iterator[tuple[ForkPaths, Path]]:
        """Yield a directory that this process can write to: an overlay, or a copy of the files.

        Raises the same errors as `probe`.
        """
        if best_driver(self._beside) != "overlay":
            with self.probe() as paths:
                copy_tree(self.files, paths.files)
                yield paths, paths.files
            return
        with self.probe() as paths:
            target = paths.private.with_name(f"{paths.private.name}-files")
            shown = begin_fork(self._records, self._beside, target)
            try:
                mount_overlay(self.files, shown.upper, shown.work, target, name=shown.mount_name)
                yield paths, target
            finally:
                end_fork(shown)

    def command(
        self, paths: ForkPaths, command: list[str], at: Path | None
    ) -> tuple[list[str], Path]:
        """Return the command line that runs a command on the files, and its directory.

        Args:
            paths: the paths of the probe.
            command: the command.
            at: the original directory, where the files appear if the system allows it.

        Raises the same errors as `probe`.
        """
        if not can_view(self._beside):
            copy_tree(self.files, paths.files)
            return supervised(command), paths.files
        is_usable = at is not None and at.is_dir() and at not in self.files.parents
        if at is None or not is_usable:
            at = paths.files
            make_directory(at)
        view = view_command(
            self.files,
            paths.upper,
            paths.work,
            at,
            command,
            name=paths.view_name,
            ends_with=os.getpid(),
        )
        return view, at

    def close(self) -> None:
        """Remove the directory. May be called twice. Raises WorkspaceError."""
        end_fork(self._own)


def original_directory(store: Store, key: str) -> Path | None:
    """Return the directory of a key, if this user chose it. Raises StorageError."""
    head = newest_readable(store, key)
    found = None
    if head is not None:
        found = session_directory(store, head) or tracked_directory(store, head)
    return None if found is None else Path(found)


def environment(paths: ForkPaths, directory: Path) -> dict[str, str]:
    """Return the environment of a probe: this one, with a private home and temporary directory."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    temporary = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(paths.private / "tmp"))
    return {**kept, **temporary, "HOME": str(paths.private / "home"), "PWD": str(directory)}
