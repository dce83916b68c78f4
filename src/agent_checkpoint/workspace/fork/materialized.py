"""Trees written out as directories, to be lower directories of forks. Owns these directories.

    <home>/bases/<tree>/files       the tree; never changed
    <home>/bases/<tree>/index       its stat index, so that forks do not scan it
    <home>/bases/<tree>/lock        held by every fork that uses it

All forks of a tree share one directory; the last fork removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.workspace.fork.overlay_mount import remove_tree
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.apply import PlanExecutor
from agent_checkpoint.workspace.restore.journal import Journal
from agent_checkpoint.workspace.restore.plan import Planner
from agent_checkpoint.workspace.safe_open import open_root
from agent_checkpoint.workspace.scan.stat_index import read_index, write_index
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree

_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MaterializedTree:
    """A materialized tree in use."""

    def __init__(self, place: Path, lock: int, folder: DirState) -> None:
        self.files = place / "files"
        self.folder = folder
        self._place = place
        self._lock = lock

    def release(self) -> None:
        """Release the tree, and remove it if no other fork uses it. May be called twice."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            try:
                _remove_if_unused(self._place, lock)
            finally:
                os.close(lock)


def open_materialized(
    bases: Path, tree: Tree, look: Callable[[Path], DirState]
) -> MaterializedTree:
    """Return the materialized copy of a tree; write it if it does not exist.

    Args:
        bases: the directory of materialized trees.
        tree: the tree.
        look: scans a directory that contains the tree.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: it cannot be written.
    """
    place = bases / tree.root.ref
    try:
        while True:
            make_directory(place)
            try:
                _check_own(place)
                lock = os.open(place / "lock", _LOCK, 0o600)
            except FileNotFoundError:
                continue  # the last fork has just removed it
            try:
                # Waits for the writer, which holds it exclusively.
                _take(lock, fcntl.LOCK_SH, place)
                if _is_in_place(lock, place / "lock"):
                    break
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
    except OSError as error:
        raise WorkspaceError(f"{place} cannot be created ({error.strerror or error}).") from error
    try:
        folder = read_index(place / "index")
        if folder is None:
            _take(lock, fcntl.LOCK_EX, place)
            folder = read_index(place / "index") or _write_tree(place, tree, look)
            fcntl.flock(lock, fcntl.LOCK_SH)
        return MaterializedTree(place, lock, folder)
    except BaseException:
        os.close(lock)
        raise


def remove_unused_trees(bases: Path) -> None:
    """Remove materialized trees that no fork uses. Raises OSError."""
    for place in bases.iterdir() if bases.is_dir() else ():
        _check_own(place)
        lock = os.open(place / "lock", _LOCK, 0o600)
        try:
            _remove_if_unused(place, lock)
        finally:
            os.close(lock)


def _check_own(place: Path) -> None:
    """Raise OSError if another user owns the directory or can write to it."""
    why = other_writer(place, os.lstat(place))
    if why is not None:
        raise OSError(why)


def _write_tree(place: Path, tree: Tree, look: Callable[[Path], DirState]) -> DirState:
    draft = place / f"draft-{secrets.token_hex(4)}"
    for old in place.glob("draft-*"):  # left by a killed process
        remove_tree(old)
    if (place / "files").exists():
        remove_tree(place / "files")
    materialize(tree, draft)
    os.rename(draft, place / "files")
    folder = look(place / "files")
    if folder.stored.id != tree.id:
        raise WorkspaceError(f"{place} does not match the tree {tree.id} after writing it.")
    write_index(place / "index", folder)
    return folder


def _take(lock: int, how: int, place: Path) -> None:
    holders = acquire_lock(lock, how, LOCK_TIMEOUT)
    if holders is not None:
        raise WorkspaceError(
            f"{place} has been locked by {holders} for more than {LOCK_TIMEOUT:g} s. Wait for "
            "that process or end it, then retry.",
            retryable=True,
        )


def _remove_if_unused(place: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if _is_in_place(lock, place / "lock"):
        remove_tree(place)


def _is_in_place(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def materialize(tree: Tree, target: Path) -> None:
    """Write a tree to a new directory.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: it cannot be written.
    """
    target.mkdir(mode=0o700)
    fd = open_root(target)
    try:
        plan = Planner(Side(None, tree.get), tree, exclude=Rules.of(())).plan()
        executor = PlanExecutor(fd, plan)
        executor.run(Journal(os.fspath(target), tree.ref, tree.ref, None, (), ""))
    except OSError as error:
        raise WorkspaceError(f"{target} cannot be written ({error.strerror}).") from error
    finally:
        os.close(fd)
    problems = {**executor.left, **executor.failed}
    if problems:
        path, reason = next(iter(problems.items()))
        raise WorkspaceError(f"{target} cannot be written: {path}: {reason}.")
