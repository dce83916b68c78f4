"""Reserved disk space, so that deletions still work when the file system is full."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import (
    free_bytes,
    open_single_link,
    share_like_folder,
)

SIZE = 2 << 20
"""Space for the pending growth of the database, and for the WAL of a deletion."""

_LEAST = 8 << 10  # the smallest step, in bytes
_LEAST_AT_REST = 104 << 10  # the changed pages of one deleted row, with those of a rebalanced tree
_SHARE_AT_REST = 20
_MIN_ROOM = 4 * SIZE  # bytes free on the disk


def size_at_rest(database_bytes: int) -> int:
    """Return the size of the reserve of a closed database: space for the WAL of a deletion alone.

    It grows with the database, whose deletions change more pages.
    """
    return min(SIZE, max(_LEAST_AT_REST, database_bytes // _SHARE_AT_REST))


class Reserve:
    """A file of up to 2 MiB, deleted on a full disk so that deletions and small records fit.

    `size` is its planned size; 0 if it is not planned yet.
    """

    def __init__(self, path: Path) -> None:
        """Create a reserve at `path`. The file is not created yet."""
        self.path = path
        self.size = 0

    def plan(self, least: int) -> None:
        """Plan the size: SIZE; on an almost full disk the present size, or `least` if that is more.

        There, growing would take the blocks that a deletion has just freed.

        Raises:
            OSError: the file system failed.
        """
        has_room = free_bytes(self.path.parent) > _MIN_ROOM
        self.size = SIZE if has_room else min(SIZE, max(least, self._present()))

    def refill(self) -> None:
        """Allocate the planned size, or as much of it as fits. Failures are ignored.

        Called at the end of a write or deletion under the exclusive lock: the reserve is refilled
        before other processes can fill the disk.
        """
        with suppress(OSError):
            if self._present() < self.size:
                _allocate(self.path, self.size)

    def settle(self, size: int) -> None:
        """Make the file `size` bytes long, or as long as fits. Failures are ignored."""
        with suppress(OSError):
            if not self.cut(size) and self._present() < size:
                _allocate(self.path, size)

    def release(self) -> None:
        """Remove the file to free its blocks and its inode. Failures are ignored."""
        with suppress(OSError):
            self.size = self.size or self._present()
            self.path.unlink()

    def cut(self, size: int) -> bool:
        """Free what exceeds `size`; return whether there was more. Failures are ignored."""
        with suppress(OSError):
            if self._present() > size:
                with open_single_link(self.path, os.O_WRONLY) as fd:
                    os.ftruncate(fd, size)
                return True
        return False

    def _present(self) -> int:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _allocate(path: Path, size: int) -> None:
    # Not synced: after a power failure it is allocated again.
    with open_single_link(path, os.O_WRONLY | os.O_CREAT) as fd:
        share_like_folder(fd, path.parent)
        present = os.fstat(fd).st_size
        more = size - present
        while more >= _LEAST and present < size:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(fd, present, more)
                elif os.pwrite(fd, bytes(more), present) < more:  # macOS
                    more //= 2
            except OSError:
                more //= 2
            present = os.fstat(fd).st_size
            more = min(more, size - present)
