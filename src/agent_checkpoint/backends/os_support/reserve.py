"""Reserved disk space, so that deletions still work when the file system is full."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import open_single_link, share_like_folder

SIZE = 2 << 20
"""Space for the pending growth of the database, and for the WAL of a deletion."""

_LEAST = 32 << 10  # the smallest step, in bytes


class Reserve:
    """A file of up to 2 MiB, deleted on a full disk so that deletions and small records fit."""

    def __init__(self, path: Path) -> None:
        """Create a reserve at `path`. The file is not created yet."""
        self.path = path

    def refill(self) -> None:
        """Allocate the file, or as much of it as fits. Failures are ignored.

        Called at the end of a write or deletion under the exclusive lock: the reserve is refilled
        before other processes can fill the disk.
        """
        with suppress(OSError):
            if self._size() < SIZE:
                _allocate(self.path)

    def release(self) -> None:
        """Remove the file to free its blocks and its inode. Failures are ignored."""
        with suppress(OSError):
            self.path.unlink()

    def release_half(self) -> bool:
        """Free half of the reserve for a small record; return whether there was more than half.

        The other half stays reserved for deletions.
        """
        with suppress(OSError):
            if self._size() > SIZE // 2:
                with open_single_link(self.path, os.O_WRONLY) as fd:
                    os.ftruncate(fd, SIZE // 2)
                return True
        return False

    def _size(self) -> int:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _allocate(path: Path) -> None:
    # Not synced: after a power failure it is allocated again.
    with open_single_link(path, os.O_WRONLY | os.O_CREAT) as fd:
        share_like_folder(fd, path.parent)
        present = os.fstat(fd).st_size
        more = SIZE - present
        while more >= _LEAST and present < SIZE:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(fd, present, more)
                elif os.pwrite(fd, bytes(more), present) < more:  # macOS
                    more //= 2
            except OSError:
                more //= 2
            present = os.fstat(fd).st_size
            more = min(more, SIZE - present)
