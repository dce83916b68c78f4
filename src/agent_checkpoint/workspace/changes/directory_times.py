"""The times of directories: whether they tell that no name was added or removed.

Adding, removing or renaming an entry sets mtime and ctime of its directory, and no program can set
ctime. But a crash can leave a new name with old times, and while a file system is not mounted,
other layers or machines may change it. So times are compared only within one mount, and are kept
only if they were not too recent to tell of a later change.
"""

from __future__ import annotations

import os
import struct
import time

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.workspace.safe_open import is_racy
from agent_checkpoint.workspace.tree.dir_state import NO_TIMES, TIMES


class DirectoryTimes:
    """Compares the times of directories below a root during one scan."""

    def __init__(self, root: int) -> None:
        """Refer to an open root. The mounts are looked up at the first use."""
        self._root = root
        self._began = time.time_ns()
        self._is_looked_up = False
        self._mounts: bytes | None = None

    def before_listing(self, fd: int) -> bytes:
        """Return the times of an open directory that is about to be listed, or NO_TIMES.

        Raises OSError.
        """
        if self._identity() is None:
            return NO_TIMES
        status = os.fstat(fd)
        return NO_TIMES if is_racy(status, self._began) else self._packed(status)

    def are_same(self, known: bytes, status: os.stat_result) -> bool:
        """Return whether a directory has the same names as when its times were known."""
        return known != NO_TIMES and self._identity() is not None and known == self._packed(status)

    def _packed(self, status: os.stat_result) -> bytes:
        try:
            return TIMES.pack(status.st_mtime_ns, status.st_ctime_ns, self._mounts or b"")
        except struct.error:  # a time outside 1677 to 2262
            return NO_TIMES

    def _identity(self) -> bytes | None:
        if not self._is_looked_up:
            with block_forks():
                from agent_checkpoint.workspace.changes.file_systems import mounts_identity

            self._mounts = mounts_identity(self._root)
            self._is_looked_up = True
        return self._mounts
