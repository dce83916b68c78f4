"""Room kept back, so that deleting still works when the file system is full.

Owns one file of allocated blocks; knows nothing of what is stored beside it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.posix import free_bytes

SIZE = 2 << 20
"""Room for the database to grow by what is pending in its log, and for the log of a deletion."""

_SHARE = 64 << 10  # the memory that SQLite's processes share, with something to spare
_ROOM = 2 * SIZE  # it is not made where others need the last of the space
PLENTY = 1 << 30  # bytes free: the disk is not about to be full
_SMALL = 16 << 20  # bytes in the database: the reserve would be much beside it


class Reserve:
    """A file of two megabytes whose only use is to be given up."""

    def __init__(self, path: Path, tmp: Path, database: Path) -> None:
        """Keep the reserve at `path`; it is prepared in the directory `tmp` of new files."""
        self.path = path
        self._tmp = tmp
        self._database = database

    def keep(self) -> None:
        """Make the file if it is missing or cut, and there is room. Failing to is no error.

        A small store on a disk with plenty of room has no use for it. Whoever writes calls it,
        holding the lock alone.
        """
        with suppress(OSError):
            if self._size() >= SIZE:
                return
            free = free_bytes(self.path)
            if free >= _ROOM and (free < PLENTY or self._database.stat().st_size >= _SMALL):
                # Not synced: after a loss of power it is simply made again.
                fresh = self._tmp / os.urandom(12).hex()
                try:
                    _allocate(fresh)
                    fresh.rename(self.path)
                finally:
                    fresh.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Remove the file, so that its blocks are free. Failing to is no error."""
        with suppress(OSError):
            self.path.unlink()

    def give_share(self) -> bool:
        """Free just enough for a database to be opened; tell whether there was as much."""
        with suppress(OSError):
            left = self._size() - _SHARE
            if left >= 0:
                os.truncate(self.path, left)
                return True
        return False

    def _size(self) -> int:
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _allocate(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, SIZE)
        else:  # macOS
            view = memoryview(bytes(SIZE))
            while view:
                view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
