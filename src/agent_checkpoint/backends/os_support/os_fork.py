"""Fork safety: blocks `os.fork` while SQLite connections, locks or lazy imports are in use.

A child forked while an SQLite connection is open inherits the lock bookkeeping of its parent: each
process assumes that the other has exited, and one may delete the WAL that the other writes. A fork
therefore waits until no connection is in use, and open connections are closed before it.

A child forked while another thread imports a module inherits the locked import lock, and would
deadlock on the same import. Lazy imports in saves and loads therefore block forks, too.

An `flock` lock belongs to the open file description, which a child shares: it would keep the lock
of a killed parent. A child therefore closes the lock files of its parent.
"""

from __future__ import annotations

import atexit  # noqa: F401 - `weakref.finalize` imports it at its first use
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol
from weakref import WeakSet

from agent_checkpoint.named_tuple import NamedTuple

_LONGEST_WAIT = 30.0


class SupportsClose(Protocol):
    """A resource that must be closed before a fork."""

    def close(self) -> None:
        """Close the resource; the next use reopens it."""


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.is_awaited = False
        self.mine = threading.local()


_gate = _Gate()
_closed_before: WeakSet[SupportsClose] = WeakSet()
_lock_files: dict[int, LockFile] = {}
_is_before_logging = False
"""Whether our hooks were registered before those of `logging`."""


def close_before_fork(pool: SupportsClose) -> None:
    """Register a pool to be closed before every fork of this process."""
    _register_hooks()
    _closed_before.add(pool)


class block_forks:  # a class: a generator costs more than most blocks
    """Block forks by other threads during the block."""

    _entered: _Gate | None = None
    # Not set by `__init__`, which an interrupt may prevent: then there is only `__del__`.

    def __enter__(self) -> None:
        _register_hooks()
        gate = _gate
        with gate.changed:
            gate.inside += 1
            gate.mine.depth = getattr(gate.mine, "depth", 0) + 1
            self._entered = gate

    def __exit__(self, *error: object) -> None:
        gate, self._entered = self._entered, None
        if gate is None:
            return
        gate.mine.depth -= 1
        if gate is _gate:  # otherwise this is a child forked within the block
            with gate.changed:
                gate.inside -= 1
                if gate.is_awaited:
                    gate.changed.notify_all()
        self.__class__ = _Left  # type: ignore[assignment]

    __del__ = __exit__  # if an interrupt comes before the first statement of `__exit__`


class _Left:
    """A block that was left. It has no `__del__`, in which an interrupt would be lost."""


class LockFile(NamedTuple):
    """An open lock file."""

    fd: int
    identity: tuple[int, int]
    """The device and inode of the file."""

    def is_open(self) -> bool:
        """Return whether the descriptor is still that of the file: a program may close any."""
        with suppress(OSError):
            found = os.fstat(self.fd)
            return (found.st_dev, found.st_ino) == self.identity
        return False


class KeptLockFiles:
    """Descriptors of one lock file that stay open between uses, each for one thread at a time.

    Opening a lock file and checking what was opened takes longer than locking it.
    """

    def __init__(self) -> None:
        self._idle: list[LockFile] = []  # pop and append are atomic
        self._pid = os.getpid()

    def take(self) -> LockFile | None:
        """Return an idle one, None if there is none."""
        if self._pid != os.getpid():  # a child, which has closed them
            self._idle, self._pid = [], os.getpid()
        with suppress(IndexError):
            while True:
                file = self._idle.pop()
                if file.is_open():
                    return file
                _lock_files.pop(file.fd, None)
        return None

    def give_back(self, file: LockFile) -> None:
        """Keep an unlocked one for the next use."""
        self._idle.append(file)

    def close(self) -> None:
        """Close the idle ones."""
        while (file := self.take()) is not None:
            _lock_files.pop(file.fd, None)
            os.close(file.fd)


class LockFileUse:
    """One use of a lock file: it is open until the use ends; forked children close it."""

    def __init__(self, kept: KeptLockFiles | None = None) -> None:
        """Prepare a use; `kept` has the descriptors to take it from, and to give it back to."""
        self.kept = kept
        self._file: LockFile | None = None
        self._gate = _gate

    def begin(self, open_it: Callable[[], int]) -> LockFile:
        """Return an open lock file, to be locked. Raises OSError if `open_it` does."""
        with block_forks():
            self._gate = _gate
            file = None if self.kept is None else self.kept.take()
            if file is None:
                fd = open_it()
                found = os.fstat(fd)
                file = LockFile(fd, (found.st_dev, found.st_ino))
            self._file = _lock_files[file.fd] = file
        return file

    def end(self, *, is_good: bool = False) -> None:
        """Unlock and close it, if it is open; if `is_good`, it is kept open for the next use."""
        file = self._file
        if file is None:
            return
        if self._gate is not _gate:  # this is a child, which has closed it
            self._file = None
            return
        try:
            # Unlock first: an interrupt after this leaks a descriptor, but no lock. Closing is
            # not enough: a process being spawned by another thread shares the file until exec.
            fcntl.flock(file.fd, fcntl.LOCK_UN)
            if self.kept is not None and is_good:
                self._file = None  # first: what is kept must not be closed
                self.kept.give_back(file)
        finally:
            if self._file is not None:
                self._file = None
                _lock_files.pop(file.fd, None)
                os.close(file.fd)


def _before_fork() -> None:
    gate = _gate
    gate.changed.acquire()
    own = getattr(gate.mine, "depth", 0)  # a thread does not wait for itself
    with _logging_unlocked():
        gate.is_awaited = True
        gate.changed.wait_for(lambda: gate.inside <= own, timeout=_LONGEST_WAIT)
        gate.is_awaited = False
        for pool in list(_closed_before):
            pool.close()


@contextmanager
def _logging_unlocked() -> Iterator[None]:
    """Release the lock of `logging` for the block, if its hook took it for this fork before ours.

    Hooks before a fork run in reverse order of registration, so that of a `logging` that is loaded
    later runs first: a thread behind the gate that logs would wait for the forking thread, which
    waits for it. To load `logging` before would take longer than a save.
    """
    lock = getattr(sys.modules.get("logging"), "_lock", None) if _is_before_logging else None
    try:
        if lock is not None:
            lock.release()
    except RuntimeError:  # another thread is loading it: its hook is not registered yet
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.acquire()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()  # the old one is locked, or counts threads of the parent
    while _lock_files:
        _, file = _lock_files.popitem()
        if file.is_open():
            os.close(file.fd)  # does not unlock: the parent has it open


@cache
def _register_hooks() -> None:
    """Register the hooks, at the first use of the gate."""
    global _is_before_logging
    _is_before_logging = not hasattr(sys.modules.get("logging"), "captureWarnings")  # its last name
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _gate.changed.release(),
        after_in_child=_after_fork_in_child,
    )
