"""The lock on the root directory: one restore at a time, and no scan during one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.safe_open import open_root


class RootLock:
    """The root directory, opened and locked. For one thread at a time; may be nested."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._what = f"The workspace {short_repr(str(path))}"
        self._fd = -1

    @contextmanager
    def held(self, *, exclusive: bool, timeout: float = LOCK_TIMEOUT) -> Iterator[int]:
        """Yield the descriptor of the root directory under a shared or exclusive lock.

        A nested call keeps the lock that is held and ignores `exclusive`.

        Raises:
            WorkspaceError: the directory is missing, or the lock was not free within the timeout.
        """
        if self._fd >= 0:
            yield self._fd
            return
        try:
            fd = open_root(self.path)
        except OSError as error:
            raise WorkspaceError(f"{self._what} cannot be opened ({error.strerror}).") from error
        owner = os.getpid()
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            with suppress(OSError):  # the file system has no locks: work without one
                take_lock(fd, kind, self._what, timeout)
            self._fd = fd
            yield fd
        finally:
            self._fd = -1
            if os.getpid() == owner:  # a forked child shares the lock with its parent: leave it
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def take_lock(fd: int, how: int, what: str, timeout: float = LOCK_TIMEOUT) -> None:
    """Lock an open file.

    Args:
        fd: the file.
        how: `LOCK_SH` or `LOCK_EX`.
        what: what the file locks, for the error.
        timeout: in seconds.

    Raises:
        WorkspaceError: the lock was not free within the timeout.
        OSError: the file system failed.
    """
    holders = acquire_lock(fd, how, timeout)
    if holders is not None:
        raise WorkspaceError(
            f"{what} has been locked by {holders} for more than {timeout:g} s. Wait for that "
            "process or end it, then retry.",
            retryable=True,
        )
