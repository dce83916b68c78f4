"""Forks in a private mount namespace, visible to one process at the original path.

    the exploring process       IsolatedForks: the lower directory, and a record for each fork
    the process of a fork       ForkNamespace: its mount namespace and its workspace

The exploring process owns the records. If it is killed, the next process that opens a workspace
ends the processes of its forks and removes their directories.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper
from agent_checkpoint.workspace.fork.drivers import ForkPaths, begin_fork, can_view, end_fork
from agent_checkpoint.workspace.fork.lowerdir import ForkOrigin, open_lowerdir
from agent_checkpoint.workspace.fork.namespace_view import enter_private_view
from agent_checkpoint.workspace.fork.overlay_mount import changes, wrap_errors
from agent_checkpoint.workspace.safe_open import open_root
from agent_checkpoint.workspace.scan.stat_index import read_index, write_index
from agent_checkpoint.workspace.tree.snapshot import Tree


def private_forks_dir() -> Path:
    """Return the directory for private directories of forks; create it if missing.

    Raises:
        WorkspaceError: it cannot be created.
    """
    path = data_home() / "branches"
    with wrap_errors(f"create {str(path)!r}"):
        make_directory(path)
    return path


class IsolatedForks:
    """Creates isolated forks of one tree; holds the lower directory that they share."""

    def __init__(self, origin: ForkOrigin, tree: Tree) -> None:
        """Prepare forks of a workspace.

        Raises:
            WorkspaceError: private mount namespaces are not available, or a file cannot be written.
            IntegrityError: an object of the tree is missing or damaged.
        """
        self._beside = private_forks_dir()
        if not can_view(self._beside):
            raise WorkspaceError("Private mount namespaces are not available on this system.")
        for own in (origin.store.backend.properties.path, self._beside):
            # In its namespace, each process would write to its own copy.
            if own is not None and origin.path in Path(os.path.realpath(own)).parents:
                raise WorkspaceError(
                    f"Cannot create isolated forks: {own} is inside the workspace, so each "
                    "fork would write to its own copy. Move it out of the workspace."
                )
        self._path = origin.path
        self._records = self._beside.parent / "forks"
        self._lowerdir = open_lowerdir(origin, tree, self._beside.parent / "bases")
        self._own: ForkPaths | None = None
        try:
            self._own = begin_fork(self._records, self._beside)
            self._index = self._own.private / "index"
            with wrap_errors(f"write {str(self._index)!r}"):
                write_index(self._index, self._lowerdir.folder)
        except BaseException:
            self.close()
            raise

    def fork(self) -> tuple[ForkPaths, dict[str, Any]]:
        """Begin a fork; return its paths, and the JSON arguments for `ForkNamespace`.

        Raises:
            WorkspaceError: the record or a directory cannot be written.
        """
        paths = begin_fork(self._records, self._beside)
        arguments = {
            "at": str(self._path),
            "lower": str(self._lowerdir.lower),
            "private": str(paths.private),
            "name": paths.view_name,
            "index": str(self._index),
            "marks": [_mark(path) for path in (self._lowerdir.lower, paths.private)],
        }
        return paths, arguments

    def close(self) -> None:
        """Release the lower directory; may be called twice. Raises WorkspaceError."""
        own, self._own = self._own, None
        try:
            if own is not None:
                end_fork(own)
        finally:
            self._lowerdir.release()


def is_same_machine(arguments: dict[str, Any]) -> bool:
    """Return whether this process sees the same directories, that is, runs on the same machine."""
    try:
        return bool(
            [_mark(Path(arguments[name])) for name in ("lower", "private")] == arguments["marks"]
        )
    except OSError:
        return False


class ForkNamespace:
    """The mount namespace of a fork, entered by this process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Enter the mount namespace. The process must be single-threaded.

        Raises:
            WorkspaceError: the kernel refuses.
        """
        self.path = Path(arguments["at"])
        lower, private = Path(arguments["lower"]), Path(arguments["private"])
        upper = private / "upper"
        # Opened before the mount hides it; change detection compares with it.
        opened = open_root(lower)
        self.upper = OverlayUpper(partial(changes, upper, Path(f"/proc/self/fd/{opened}")))
        """Reports the changes since the fork."""
        enter_private_view(lower, upper, private / "work", self.path, name=arguments["name"])
        index = read_index(Path(arguments["index"]))
        self.state = None if index is None else index.root
        """The scanned state of the origin."""


def _mark(path: Path) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]
