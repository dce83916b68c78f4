"""Detects that an open store was removed, moved or replaced.

Writes to such a store would be lost, and cached heads, ledgers and object ids would not match the
store at the path. A backend therefore records the identity of one file of its store at first use,
and raises an error if the file at that path is another one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from agent_checkpoint.backends.os_support.posix import FileIdentity, file_identity, wrap_os_errors
from agent_checkpoint.errors import StorageError

_O_PATH = getattr(os, "O_PATH", None)


class Pin:
    """The identity of the file or directory at a path, recorded at first use."""

    def __init__(self, path: Path) -> None:
        """Create a pin. The identity is recorded by the first call of `exists`."""
        self.path = path
        self._name = str(path)
        self._pinned: FileIdentity | None = None

    def exists(self) -> bool:
        """Return whether the store exists, and record its identity at the first call.

        Raises:
            StorageError: the pinned store is no longer at the path, or the file system failed.
        """
        with wrap_os_errors("check", self._name):
            pinned = self._pinned  # before the stat: another thread may create the store meanwhile
            now = file_identity(self._name)
            if pinned is None:
                if now is None:
                    return False
                self._pin(now)
            elif now != pinned:
                raise StorageError(
                    f"{self._name} was removed, moved or replaced after it was opened. Nothing was "
                    "read or written. Move it back, or reopen the store at this path."
                )
        return True

    def is_replaced(self) -> bool:
        """Return whether the pinned store is no longer at the path.

        Raises:
            StorageError: the file system failed.
        """
        with wrap_os_errors("check", self._name):
            pinned = self._pinned
            return pinned is not None and file_identity(self._name) != pinned

    def _pin(self, now: FileIdentity) -> None:
        # Linux reuses the inode number of a removed file; an open descriptor prevents that. Closing
        # an O_PATH descriptor drops no lock of SQLite. macOS lacks O_PATH, but its file systems do
        # not reuse inode numbers.
        if _O_PATH is None:
            self._pinned = now
            return
        fd = os.open(self._name, _O_PATH | os.O_CLOEXEC)
        found = os.fstat(fd)
        self._pinned = found.st_dev, found.st_ino
        finalize(self, _close_descriptor, fd, self._pinned).atexit = False


def _close_descriptor(fd: int, identity: FileIdentity) -> None:
    """Close the descriptor, unless the program closed it and it now refers to another file."""
    with suppress(OSError):
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == identity:
            os.close(fd)
