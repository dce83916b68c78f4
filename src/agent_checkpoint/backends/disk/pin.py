"""Which file a store is. Owns the comparison of an open store with its path; knows no layout.

Whoever removes, moves or replaces a store that is open leaves a process with files that nobody will
find again, and with knowledge (heads, ledgers, stored objects) of another store than the one at the
path. So a backend pins one file of its store at first sight, and refuses to go on with any other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

from agent_checkpoint.backends.disk.posix import FileIdentity, file_identity, wrap_os_errors
from agent_checkpoint.errors import StorageError

_O_PATH = getattr(os, "O_PATH", None)


class _PinnedFile(NamedTuple):
    identity: FileIdentity
    fd: int | None


class Pin:
    """The file or directory at a path, as it was when it was first seen there."""

    def __init__(self, path: Path) -> None:
        """Pin nothing yet."""
        self.path = path
        self._name = str(path)
        self._pinned: _PinnedFile | None = None

    def exists(self) -> bool:
        """Tell whether the store exists; from then on it is this one.

        Raises:
            StorageError: the one that was seen before is not at the path any more; or the file
                system failed.
        """
        with wrap_os_errors(f"look at {self._name}"):
            pinned = self._pinned  # before the look: another thread may make the store meanwhile
            now = file_identity(self._name)
            if pinned is None:
                if now is None:
                    return False
                self._pin()
            elif now != pinned.identity:
                raise StorageError(
                    f"{self._name} was removed, moved or replaced since it was opened, so nothing "
                    "was read or written. Put it back, or open the store that is there now anew."
                )
        return True

    def is_replaced(self) -> bool:
        """Tell whether the store that was seen is not at the path any more.

        Raises:
            StorageError: the file system failed.
        """
        with wrap_os_errors(f"look at {self._name}"):
            pinned = self._pinned
            return pinned is not None and file_identity(self._name) != pinned.identity

    def _pin(self) -> None:
        # Linux gives the inode number of a removed file to the next one; a descriptor keeps it
        # from that. Closing one that was opened as a mere path drops no lock of SQLite. macOS has
        # no such descriptors, and its file systems do not use a number twice.
        if _O_PATH is None:
            found = os.stat(self._name)
            self._pinned = _PinnedFile((found.st_dev, found.st_ino), None)
            return
        fd = os.open(self._name, _O_PATH | os.O_CLOEXEC)
        found = os.fstat(fd)
        self._pinned = _PinnedFile((found.st_dev, found.st_ino), fd)
        finalize(self, _close_descriptor, self._pinned).atexit = False


def _close_descriptor(pinned: _PinnedFile) -> None:
    """Close the descriptor, unless the program has closed it and it is another file by now."""
    with suppress(OSError):
        found = os.fstat(pinned.fd or 0)
        if pinned.fd is not None and (found.st_dev, found.st_ino) == pinned.identity:
            os.close(pinned.fd)
