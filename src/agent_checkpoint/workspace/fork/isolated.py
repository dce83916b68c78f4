"""Forks that one process sees, at the original path, and nobody else. Owns what both sides need.

    the one who explores        IsolatedForks: what the forks read through to, and a record for each
    the process of a fork       enter: its view, and a workspace that knows what is in it

The records are of the one who explores: if that is killed, whoever opens a workspace next ends the
processes and takes away what they have left.
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
    """Return the directory for private directories of forks, made if it is missing.

    Raises:
        WorkspaceError: it cannot be made.
    """
    place = data_home() / "branches"
    try:
        make_directory(place)
    except OSError as error:
        raise WorkspaceError(f"{place} cannot be made ({error.strerror}).") from error
    return place


class IsolatedForks:
    """What the forks of one tree share, for as long as they are made and used."""

    def __init__(self, origin: Workspace, tree: Tree) -> None:
        """Prepare forks of a workspace.

        Raises:
            WorkspaceError: there can be no views here, or something cannot be written.
            IntegrityError: a part of the tree is missing or damaged.
        """
        self._beside = private_forks_dir()
        if not can_view(self._beside):
            raise WorkspaceError("Processes cannot have views of their own here.")
        for own in (getattr(origin.store.backend, "path", None), self._beside):
            # In a view, each process would write to one of its own.
            if own is not None and origin.path in Path(os.path.realpath(own)).parents:
                raise WorkspaceError(f"{own} is within the workspace.")
        self._at = origin.path
        self._records = self._beside.parent / "forks"
        self._ground = open_lowerdir(origin, tree, self._beside.parent / "bases")
        self._own: ForkPaths | None = None
        try:
            self._own = begin_fork(self._records, self._beside)
            write_index(self._index, self._ground.folder)
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
        """Begin a fork: return its places, and what its process has to be told, as JSON.

        Raises:
            WorkspaceError: something cannot be written.
        """
        places = begin_fork(self._records, self._beside)
        told = {
            "at": str(self._at),
            "lower": str(self._ground.lower),
            "private": str(places.private),
            "name": places.view_name,
            "index": str(self._index),
            "marks": [_mark(path) for path in (self._ground.lower, places.private)],
        }
        return places, told

    def close(self) -> None:
        """Let go of what the forks shared. Twice is fine. Raises WorkspaceError."""
        own, self._own = self._own, None
        try:
            if own is not None:
                end_fork(own)
        finally:
            self._ground.release()


def is_same_machine(told: dict[str, Any]) -> bool:
    """Tell whether this process sees the very directories of a fork: it may be another machine."""
    try:
        return bool([_mark(Path(told[name])) for name in ("lower", "private")] == told["marks"])
    except OSError:
        return False


class ForkNamespace:
    """A view that this process has entered."""

    def __init__(self, told: dict[str, Any]) -> None:
        """Enter it; the process must have no threads yet.

        Raises:
            WorkspaceError: the kernel refuses.
        """
        self._told = told
        lower, private = Path(told["lower"]), Path(told["private"])
        self._upper = private / "upper"
        # Open before it is covered: what it holds is needed to tell what is new.
        self._lower = os.open(lower, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        at = Path(told["at"])
        enter_private_view(lower, self._upper, private / "work", at, name=told["name"])

    def open(self, store: Store, options: dict[str, Any]) -> Workspace:
        """Open the workspace that is seen. Raises as `Workspace` does."""
        options = {**options, "watch": False, "force": True}
        workspace = Workspace(self._told["at"], store, **options)
        lower = Path(f"/proc/self/fd/{self._lower}")
        workspace._know(read_index(Path(self._told["index"])), upper_changes(self._upper, lower))
        return workspace


def _mark(path: Path) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino]
