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
from functools import cached_property

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.workspace.safe_open import is_racy
from agent_checkpoint.workspace.tree.dir_state import NO_TIMES, TIMES


class DirectoryTimes:
    """Compares the times of directories below a root during one scan."""

    def __init__(self, root: int) -> None:
        """Refer to an open root. Its mounts are looked up at the first use."""
        self._root = root
        self._began = time.time_ns()

    @cached_property
    def _mounts(self) -> bytes | None:
        """What identifies the mounts; None if no times are to be relied on."""
        with block_forks():
            from agent_checkpoint.workspace.changes.file_systems import mounts_identity

        return mounts_identity(self._root)

    def before_listing(self, fd: int) -> bytes:
        """Return the times of an open directory that is about to be listed, or NO_TIMES.

        Raises OSError.
        """
        if self._mounts is None:
            return NO_TIMES
        status = os.fstat(fd)
        return NO_TIMES if is_racy(status, self._began) else _packed(status, self._mounts)

    def are_same(self, known: bytes, status: os.stat_result) -> bool:
        """Return whether a directory has the same names as when its times were known."""
        if known == NO_TIMES or self._mounts is None:
            return False
        return known == _packed(status, self._mounts)


def _packed(status: os.stat_result, mounts: bytes) -> bytes:
    try:
        return TIMES.pack(status.st_mtime_ns, status.st_ctime_ns, mounts)
    except struct.error:  # a time outside 1677 to 2262
        return NO_TIMES
