"""Forks in a mount namespace: visible to one process, at the original path. Owns both sides.

    the exploring process       IsolatedForks: the lower directory, and a record for each fork
    the process of a fork       ForkNamespace: its mount namespace and its workspace

The exploring process owns the records. If it is killed, the next process that opens a workspace
ends the processes of its forks and removes their directories.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.disk.posix import make_directory
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.fork.drivers import ForkPaths, begin_fork, can_view, end_fork
from agent_checkpoint.workspace.fork.lowerdir import open_lowerdir, upper_changes
from agent_checkpoint.workspace.fork.namespace_view import enter_private_view
from agent_checkpoint.workspace.scan.stat_index import read_index, write_index
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace


def private_forks_dir() -> Path:
    """Return the directory for private directories of forks; create it if missing.

    Raises:
        WorkspaceError: it cannot be created.
    """
    path = data_home() / "branches"
    try:
        make_directory(path)
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be created ({error.strerror}).") from error
    return path


class IsolatedForks:
    """Creates isolated forks of one tree; holds the lower directory that they share."""

    def __init__(self, origin: Workspace, tree: Tree) -> None:
        """Prepare forks of a workspace.

        Raises:
            WorkspaceError: mount namespaces do not work here, or a file cannot be written.
            IntegrityError: an object of the tree is missing or damaged.
        """
        self._beside = private_forks_dir()
        if not can_view(self._beside):
            raise WorkspaceError("Private mount namespaces do not work here.")
        for own in (getattr(origin.store.backend, "path", None), self._beside):
            # In its namespace, each process would write to its own copy.
            if own is not None and origin.path in Path(os.path.realpath(own)).parents:
                raise WorkspaceError(
                    f"{own} is inside the workspace: isolated forks would each get a copy of it."
                )
        self._path = origin.path
        self._records = self._beside.parent / "forks"
        self._lowerdir = open_lowerdir(origin, tree, self._beside.parent / "bases")
        self._own: ForkPaths | None = None
        try:
            self._own = begin_fork(self._records, self._beside)
            write_index(self._index, self._lowerdir.folder)
        except OSError as error:
            self.close()
            raise WorkspaceError(f"{self._beside} cannot be written ({error}).") from error
        except BaseException:
            self.close()
            raise

    @property
    def _index(self) -> Path:
        if self._own is None:
            raise AssertionError("unreachable: it is closed")
        return self._own.private / "index"

    def fork(self) -> tuple[ForkPaths, dict[str, Any]]:
        """Begin a fork; return its paths, and the JSON arguments for `ForkNamespace`.

        Raises:
            WorkspaceError: something cannot be written.
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
    """Tell whether this process sees the same directories: it may be on another machine."""
    try:
        return bool(
            [_mark(Path(arguments[name])) for name in ("lower", "private")] == arguments["marks"]
        )
    except OSError:
        return False


class ForkNamespace:
    """The mount namespace of a fork, entered by this process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Enter it. The process must be single-threaded.

        Raises:
            WorkspaceError: the kernel refuses.
        """
        self._arguments = arguments
        lower, private = Path(arguments["lower"]), Path(arguments["private"])
        self._upper = private / "upper"
        # Opened before the mount covers it: change detection compares with it.
        self._lower = os.open(lower, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        at = Path(arguments["at"])
        enter_private_view(lower, self._upper, private / "work", at, name=arguments["name"])

    def open(self, store: Store, options: dict[str, Any]) -> Workspace:
        """Open the workspace in this namespace. Raises as `Workspace` does."""
        options = {**options, "watch": False, "force": True}
        workspace = Workspace(self._arguments["at"], store, **options)
        lower = Path(f"/proc/self/fd/{self._lower}")
        workspace._adopt_state(
            read_index(Path(self._arguments["index"])), upper_changes(self._upper, lower)
        )
        return workspace


def _mark(path: Path) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]
