"""One restore at a time, and no snapshot of half of one. Owns the lock on the root directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.disk.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.safe_open import open_root


class RootLock:
    """The root directory, opened and locked. Used by one thread at a time; may be nested."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @contextmanager
    def held(self, *, exclusive: bool, patience: float = LOCK_TIMEOUT) -> Iterator[int]:
        """Give the root directory, open, while others neither restore nor, if exclusive, look.

        Raises:
            WorkspaceError: it is not there, or another process keeps it for too long.
        """
        if self._fd >= 0:
            yield self._fd
            return
        try:
            fd = open_root(self.path)
        except OSError as error:
            raise WorkspaceError(
                f"The workspace {short_repr(str(self.path))} cannot be opened ({error.strerror})."
            ) from error
        owner = os.getpid()
        try:
            self._lock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, patience)
            self._fd = fd
            yield fd
        finally:
            self._fd = -1
            if os.getpid() == owner:  # a fork of the process has the lock, too, if it has the file
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def _lock(self, fd: int, kind: int, patience: float) -> None:
        try:
            holders = acquire_lock(fd, kind, patience)
        except OSError:
            return  # there are file systems without such locks, and snapshots all the same
        if holders is not None:
            raise WorkspaceError(
                f"The workspace {short_repr(str(self.path))} is locked by {holders}, for longer "
                f"than {patience:g} s. Let that end or go on, then try again.",
                retryable=True,
            )
