"""Waits for a lock of another process with a timeout, and determines the holders of the lock.

A stopped process (Ctrl-Z, a debugger, a frozen container) keeps its locks, so the error message
names the process. On Linux the kernel lists the holders of locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from agent_checkpoint.named_tuple import NamedTuple

LOCK_TIMEOUT = 60.0
"""The default timeout, in seconds."""

_RUNNING_FACTOR = 10  # times the timeout while all holders are running: gc may take long
_MAX_UNSEEN = 5  # polls without a visible holder: the kernel does not list it
_FIRST_PAUSE, _SHORTEST_PAUSE, _NEXT_PAUSE, _CALM_PAUSE = 0.01, 0.002, 0.0003, 0.05  # seconds
_NEXT_FRACTION = 4
_HALVED_AFTER, _CALM_AFTER = 0.02, 5.0
_LOCKS = "/proc/locks"


class LockHolder(NamedTuple):
    """A process that holds a lock."""

    description: str
    is_running: bool
    """Whether the process is running, not stopped, so that it may release the lock."""


def acquire_lock(
    fd: int,
    how: int,
    seconds: float,
    *,
    extend_if_running: bool = True,
    is_first_waiter: bool = False,
) -> str | None:
    """Lock an open file with `flock`; return None, or on timeout a description of the holders.

    Args:
        fd: the open file.
        how: `LOCK_SH` or `LOCK_EX`.
        seconds: the timeout.
        extend_if_running: wait longer while all holders are running.
        is_first_waiter: no other process waits for the lock, so poll often.

    Raises:
        OSError: the file system failed.
    """
    started = time.monotonic()
    unseen = 0
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return None
        waited = time.monotonic() - started
        if waited >= seconds:
            holders = lock_holders(os.fstat(fd))
            unseen = 0 if holders else unseen + 1
            is_running = unseen < _MAX_UNSEEN and all(holder.is_running for holder in holders)
            if not (extend_if_running and is_running) or waited >= _RUNNING_FACTOR * seconds:
                return describe_holders(holders)
        time.sleep(_pause(waited, is_first_waiter=is_first_waiter))


def _pause(waited: float, *, is_first_waiter: bool) -> float:
    # Poll more often the longer the wait, so that the first waiter wins; not for holders that take
    # much longer than a save.
    if waited > _CALM_AFTER:
        return _CALM_PAUSE
    if is_first_waiter:
        # In proportion: a holder that waits for a processor is not disturbed all the time.
        return min(max(_NEXT_PAUSE, waited / _NEXT_FRACTION), _SHORTEST_PAUSE)
    return max(_SHORTEST_PAUSE, _FIRST_PAUSE / (1 + waited / _HALVED_AFTER))


def lock_holders(*files: os.stat_result, writing: bool = False) -> list[LockHolder]:
    """Return the processes that hold a lock on one of the files, according to the kernel.

    Args:
        files: the stat result of each file.
        writing: only holders of exclusive locks.
    """
    lines = [line for line in _held_locks() if not writing or line[3] == "WRITE"]
    numbers = {str(status.st_ino) for status in files}
    # The device is not compared: on btrfs it differs from that of `stat`.
    pids = {int(line[4]) for line in lines if line[5].rpartition(":")[2] in numbers}
    return [_describe(pid) for pid in sorted(pids)]


def describe_holders(holders: list[LockHolder]) -> str:
    """Return a list of the holders of a lock, for a message."""
    return ", ".join(holder.description for holder in holders) or "another process"


def _held_locks() -> Iterator[list[str]]:
    # 1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF
    with suppress(OSError), open(_LOCKS, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) >= 6 and fields[1] != "->":  # a waiting process
                yield fields


def _describe(pid: int) -> LockHolder:
    if pid == os.getpid():
        return LockHolder("another thread of this process", is_running=True)
    if pid <= 0:
        return LockHolder("a process in another container", is_running=False)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:  # its children share the open file, and with it the lock
        return LockHolder(f"a child of process {pid}, which has exited", is_running=False)
    if rest.split()[0] in ("T", "t"):
        return LockHolder(f"process {pid} ({name}), which is stopped", is_running=False)
    return LockHolder(f"process {pid} ({name})", is_running=True)
