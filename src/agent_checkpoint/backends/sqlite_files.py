"""Registers the databases that this process has open, and detects database files of stores.

A process loses all POSIX locks on a file when it closes any descriptor of that file. Closing a
second descriptor of a database would release the locks of SQLite, and another process could then
delete a WAL that is in use. Open databases are therefore registered by inode, and this module does
not open them again. Does not import sqlite3, which is slow.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

APPLICATION_ID = 0x41434B50  # "ACKP"
_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68
_HEADER_BYTES = 100
_SAFE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# Garbage collection can close a connection while its thread holds the lock.
_lock = RLock()
_open: dict[int, tuple[int, int]] = {}
"""Device and inode of each database that is open, by the id of its connection."""


@contextmanager
def database_open_lock() -> Iterator[None]:
    """Block `is_store_database` in other threads while the block opens and registers a database."""
    with _lock:
        yield


def register(connection: object, path: str | os.PathLike[str]) -> None:
    """Register the database of an open connection."""
    try:
        found = os.stat(path)
    except OSError:
        return  # the file was removed, so no path leads to it
    _open[id(connection)] = found.st_dev, found.st_ino


def unregister(connection: object) -> None:
    """Unregister a closed connection; may be called twice."""
    _open.pop(id(connection), None)


def open_databases() -> list[tuple[int, int]]:
    """Return device and inode of each database that is open in this process."""
    return list(_open.copy().values())


def open_in_parent(databases: Iterable[tuple[int, int]]) -> None:
    """Treat databases that the parent process has open as if they were open here."""
    for number, identity in enumerate(databases, 1):
        _open[-number] = identity  # no id of a connection


def is_open_here(directory: int, path: bytes) -> bool:
    """Return whether a file, relative to an open directory, is a database open in this process."""
    return _identity(directory, path) in _open.copy().values()


def is_store_database(directory: int, path: bytes) -> bool:
    """Return whether a file, relative to an open directory, is the database of a store."""
    with _lock:
        identity = _identity(directory, path)
        if identity is None or identity in _open.copy().values():
            return identity is not None
        try:
            fd = os.open(path, _SAFE_FLAGS, dir_fd=directory)
        except OSError:
            return False
        try:
            header = os.read(fd, _HEADER_BYTES)
        except OSError:
            return False
        finally:
            os.close(fd)
    return (
        len(header) == _HEADER_BYTES
        and header.startswith(_MAGIC)
        and struct.unpack_from(">I", header, _APPLICATION_ID_AT) == (APPLICATION_ID,)
    )


def _identity(directory: int, path: bytes) -> tuple[int, int] | None:
    """Return device and inode of a regular file; None if there is none."""
    try:
        found = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _after_fork_in_child() -> None:
    global _lock
    _lock = RLock()  # another thread may have held the old one
    _open.clear()  # a child has none of its parent's locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
