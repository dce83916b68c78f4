"""Waiting for a lock of another process, for a bounded time. Owns who is named as its holder.

A process that was stopped (Ctrl-Z, a debugger, a frozen container) keeps its locks. Whoever waits
for one must be told which process that is. The kernel lists the holders of locks, on Linux.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

LOCK_SECONDS = 60.0
"""How long to wait for a lock if nothing else is said."""

_BUSY = 10  # times as long, while its holders are seen to run: a collection may take its time
_UNSEEN = 5  # looks at which nobody has it: somebody whom the kernel does not show
_FIRST_PAUSE, _SHORTEST_PAUSE, _NEXT_PAUSE, _CALM_PAUSE = 0.01, 0.002, 0.0003, 0.05  # seconds
_HALVED_AFTER, _CALM_AFTER = 0.02, 5.0
_LOCKS = "/proc/locks"


class Holder(NamedTuple):
    """A process that holds a lock, in words."""

    words: str
    may_go_on: bool
    """Whether it is seen to run, and so may let go of the lock."""


def take_lock(
    fd: int, how: int, seconds: float, *, or_busy: bool = True, is_next: bool = False
) -> str | None:
    """Lock an open file as `flock` does; return None when it is locked, else who holds it.

    Args:
        fd: the open file.
        how: `LOCK_SH` or `LOCK_EX`.
        seconds: how long to wait.
        or_busy: whether to wait longer while all holders are seen to run.
        is_next: whether nobody else waits for it.

    Raises:
        OSError: the file system refuses.
    """
    started = time.monotonic()
    unseen = 0
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return None
        waited = time.monotonic() - started
        if waited >= seconds:
            holders = holders_of(os.fstat(fd))
            unseen = 0 if holders else unseen + 1
            may_go_on = unseen < _UNSEEN and all(holder.may_go_on for holder in holders)
            if not (or_busy and may_go_on) or waited >= _BUSY * seconds:
                return in_words(holders)
        time.sleep(_pause(waited, is_next=is_next))


def _pause(waited: float, *, is_next: bool) -> float:
    # Whoever has waited for longer looks more often, and so comes first. A holder that takes much
    # longer than a save is not worth that.
    if waited > _CALM_AFTER:
        return _CALM_PAUSE
    if is_next:
        return _NEXT_PAUSE
    return max(_SHORTEST_PAUSE, _FIRST_PAUSE / (1 + waited / _HALVED_AFTER))


def holders_of(*files: os.stat_result, writing: bool = False) -> list[Holder]:
    """Return the processes that hold a lock on one of the files, as far as the kernel tells.

    Args:
        files: what `stat` says of each.
        writing: whether only those count that hold one alone.
    """
    lines = [line for line in _locks() if not writing or line[3] == "WRITE"]
    numbers = {str(found.st_ino) for found in files}
    # The device is not compared: file systems such as btrfs show another one here than in `stat`.
    pids = {int(line[4]) for line in lines if line[5].rpartition(":")[2] in numbers}
    return [_describe(pid) for pid in sorted(pids)]


def in_words(holders: list[Holder]) -> str:
    """Return the holders of a lock for a message."""
    return ", ".join(holder.words for holder in holders) or "another process"


def _locks() -> Iterator[list[str]]:
    # 1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234567 0 EOF
    with suppress(OSError), open(_LOCKS, encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) >= 6 and fields[1] != "->":  # which waits
                yield fields


def _describe(pid: int) -> Holder:
    if pid == os.getpid():
        return Holder("another thread of this process", may_go_on=True)
    if pid <= 0:
        return Holder("a process in another container", may_go_on=False)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:  # its children have the open file, and with it the lock
        return Holder(f"a process started by process {pid}, which has ended", may_go_on=False)
    if rest.split()[0] in ("T", "t"):
        return Holder(f"process {pid} ({name}), which is stopped", may_go_on=False)
    return Holder(f"process {pid} ({name})", may_go_on=True)
