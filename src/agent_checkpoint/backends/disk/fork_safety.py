"""Keeps forks apart from SQLite connections, locks and imports. Owns the gate between them.

A child that is forked while a connection is open inherits SQLite's notes of its parent's locks:
each then takes the other for gone, and one of them may delete the log that the other writes to. So
a fork waits until nothing is in use, and whoever has connections open closes them before it.

A child that is forked while another thread imports a module inherits the lock of that module, and
would wait for ever if it imported the same. So whatever is imported at its first use, in a save or
a load, is imported behind the gate.

A lock of `flock` belongs to the open file, which a child has as well: it would keep the lock of a
parent that is killed, from itself too. So a child closes the lock files of its parent.
"""

from __future__ import annotations

import atexit  # noqa: F401 - `weakref.finalize` imports it at its first use
import fcntl

# Hooks before a fork run in reverse order of registration. The one of `logging` takes a lock: it
# must run after ours, or a thread behind the gate that logs waits for the thread that forks.
import logging  # noqa: F401
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

_LONGEST_WAIT = 30.0


class SupportsClose(Protocol):
    """Something that must be closed before a fork."""

    def close(self) -> None:
        """Close what is open; it is opened anew when it is next used."""


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.mine = threading.local()


_gate = _Gate()
_closed_before: WeakSet[SupportsClose] = WeakSet()
_lock_files: set[int] = set()


def close_before_fork(pool: SupportsClose) -> None:
    """Have something closed before every fork of this process."""
    _closed_before.add(pool)


@contextmanager
def block_forks() -> Iterator[None]:
    """Let no other thread fork during the block."""
    gate = _gate
    with gate.changed:
        gate.inside += 1
    gate.mine.depth = getattr(gate.mine, "depth", 0) + 1
    try:
        yield
    finally:
        gate.mine.depth -= 1
        if gate is _gate:  # else this is a child, which was forked within the block
            with gate.changed:
                gate.inside -= 1
                gate.changed.notify_all()


@contextmanager
def open_lock_file(open_it: Callable[[], int]) -> Iterator[int]:
    """Give an open file to lock, which is unlocked and closed at the end; no child has it.

    Raises:
        OSError: it cannot be opened.
    """
    with block_forks():
        gate, fd = _gate, open_it()
        _lock_files.add(fd)
    try:
        yield fd
    finally:
        try:
            if gate is _gate:  # else this is a child, which has closed it
                # Unlock first: an interrupt after this leaks a descriptor, but no lock. Closing is
                # not enough: a program that another thread starts has the file until it runs.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            if gate is _gate:
                _lock_files.discard(fd)
                os.close(fd)


def _before_fork() -> None:
    gate = _gate
    gate.changed.acquire()
    own = getattr(
        gate.mine, "depth", 0
    )  # a thread that forks within its own use: nobody to wait for
    gate.changed.wait_for(lambda: gate.inside <= own, timeout=_LONGEST_WAIT)
    for pool in list(_closed_before):
        pool.close()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()  # the old one is held, or counts threads that are not here
    while _lock_files:
        with suppress(OSError):
            os.close(_lock_files.pop())  # which unlocks nothing: the parent has it open


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _gate.changed.release(),
        after_in_child=_after_fork_in_child,
    )
