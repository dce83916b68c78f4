"""The lower directory of forks: the held workspace itself, or a tree written out as a directory.

Owns the choice between the two, and the written trees; does not mount anything.

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

from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.fork.overlay_mount import mounts_below, remove_tree, wrap_errors
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.apply import PlanExecutor
from agent_checkpoint.workspace.restore.journal import Journal, RestoreOptions
from agent_checkpoint.workspace.restore.plan import Planner
from agent_checkpoint.workspace.safe_open import open_root
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.scan.snapshot_limit import SnapshotLimit
from agent_checkpoint.workspace.scan.stat_index import read_index, write_index
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace_lock import RootLock, take_lock

_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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


class Lowerdir:
    """A lower directory in use. It must not change while forks use it."""

    def __init__(self, lower: Path, folder: DirState, lock: int = -1) -> None:
        """Use a directory, given its scanned state and, for a written tree, the lock on it."""
        self.lower = lower
        self.folder = folder
        self._lock = lock

    def release(self) -> None:
        """Release a written tree; remove it if no other fork uses it. May be called twice."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            try:
                _remove_if_unused(self.lower.parent, lock)
            finally:
                os.close(lock)


def open_lowerdir(origin: ForkOrigin, tree: Tree, bases: Path) -> Lowerdir:
    """Return the lower directory for forks of a tree; write the tree if necessary.

    Args:
        origin: the workspace. It is the lower directory if it is held and equals the tree.
        tree: the initial state of the forks.
        bases: the directory of written trees.

    Raises:
        IntegrityError: a part of the tree is missing or damaged.
        WorkspaceError: the tree cannot be written.
    """
    held, known = origin.held, origin.scanner.dir_state
    is_live = held is not None and held.id == tree.id and not mounts_below(origin.path)
    if is_live and known is not None and known.stored.id == tree.id:
        return Lowerdir(origin.path, known)
    place = bases / tree.root.ref
    with wrap_errors(f"create {str(place)!r}"):
        lock = _lock_place(place)
    try:
        index = read_index(place / "index")
        if index is None:
            take_lock(lock, fcntl.LOCK_EX, str(place))
            index = read_index(place / "index")
            folder = _write_tree(place, tree, origin.store) if index is None else index.root
            fcntl.flock(lock, fcntl.LOCK_SH)
        else:
            folder = index.root
        return Lowerdir(place / "files", folder, lock)
    except BaseException:
        os.close(lock)
        raise


def _lock_place(place: Path) -> int:
    """Return the descriptor of the shared lock on the directory of a tree."""
    while True:
        make_directory(place)
        try:
            _check_own(place)
            lock = os.open(place / "lock", _LOCK, 0o600)
        except FileNotFoundError:
            continue  # the last fork has just removed it
        try:
            take_lock(lock, fcntl.LOCK_SH, str(place))  # waits for the writer
            if _is_in_place(lock, place / "lock"):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def remove_unused_trees(bases: Path) -> None:
    """Remove written trees that no fork uses. Raises OSError."""
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


def _write_tree(place: Path, tree: Tree, store: Store) -> DirState:
    draft = place / f"draft-{secrets.token_hex(4)}"
    for old in place.glob("draft-*"):  # left by a killed process
        remove_tree(old)
    remove_tree(place / "files")
    materialize(tree, draft)
    os.rename(draft, place / "files")
    scanner = Scanner(place / "files", Rules.of(()), SnapshotLimit(None, None), watch=False)
    with RootLock(place / "files").held(exclusive=False) as root:
        folder = scanner.scan(root, store.writer(), ahead=True)
    if folder.stored.id != tree.id:
        raise WorkspaceError(f"{place} does not match the tree {tree.id} after writing it.")
    write_index(place / "index", folder)
    return folder


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
    plan = Planner(Side(None, tree.get), tree, RestoreOptions()).plan()
    with wrap_errors(f"write {str(target)!r}"):
        target.mkdir(mode=0o700)
        fd = open_root(target)
        try:
            executor = PlanExecutor(fd, plan)
            executor.run(Journal(os.fspath(target), tree.ref, tree.ref, None, (), ""))
        finally:
            os.close(fd)
    problems = {**executor.left, **executor.failed}
    if problems:
        path, reason = next(iter(problems.items()))
        raise WorkspaceError(f"{target} cannot be written: {path}: {reason}.")
