"""Room kept back, so that deleting still works when the file system is full.

Owns one file of allocated blocks; knows nothing of what is stored beside it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.disk.posix import open_single_link, share_like_folder

SIZE = 2 << 20
"""Room for the database to grow by what is pending in its log, and for the log of a deletion."""

_LEAST = 32 << 10  # bytes by which it is made larger


class Reserve:
    """A file of up to two megabytes whose only use is to be given up."""

    def __init__(self, path: Path) -> None:
        """Keep the reserve at `path`."""
        self.path = path

    def refill(self) -> None:
        """Make the file, or as much of it as there is room for. Failing to is no error.

        Whoever writes or deletes calls it at the end, holding the lock alone: what a deletion took
        of the reserve is taken back before others can fill the disk with it.
        """
        with suppress(OSError):
            if self._size() < SIZE:
                _allocate(self.path)

    def release(self) -> None:
        """Remove the file, so that its blocks and its inode are free. Failing to is no error."""
        with suppress(OSError):
            self.path.unlink()

    def release_half(self) -> bool:
        """Free half of it for a small record; tell whether that half was there.

        The other half is left for deletions.
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
    # Not synced: after a loss of power it is simply made again.
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
