"""Files below a root, without ever following a symlink. Owns opening them and reading them whole.

Every step of a path is opened by itself, relative to the directory before it: whoever swaps a
parent for a link meanwhile gets an error, not our hands.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, stat_signature

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for a writer if a fifo takes the place of the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_PIECE = 1 << 20
_TRIES = 3
_FINE, _COARSE = 20_000_000, 2_000_000_000
"""How long, in ns, two changes may have the same time: the tick of a kernel; that of old disks."""
_ONE_WRITE = 30_000_000
"""How long, in ns, a file that is open for writing is left in peace after a write has begun."""


class EntryChanged(Exception):
    """An entry is no longer of the type that it was a moment ago."""


class OpenFile(NamedTuple):
    """A file as it was when it was opened."""

    fd: int
    stat: os.stat_result
    ns: int


def open_root(path: str | os.PathLike[str]) -> int:
    """Open the root directory itself, which may be named through links. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_directory(name: bytes, parent: int) -> int:
    """Open a directory in another one. Raises OSError."""
    return os.open(name, DIRECTORY, dir_fd=parent)


@contextmanager
def directory_below(root: int, path: bytes) -> Iterator[int]:
    """Give a directory by its path below the root, opened. Raises OSError."""
    fd = os.dup(root)
    try:
        for name in path.split(b"/") if path else ():
            below = open_directory(name, fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_file(directory: int, name: bytes) -> Iterator[OpenFile]:
    """Give a regular file, opened for reading.

    Raises:
        EntryChanged: it is something else now.
        OSError: it cannot be opened.
    """
    fd = _open_file(directory, name)
    try:
        now = time.time_ns()
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise EntryChanged
        yield OpenFile(fd, found, now)
    finally:
        os.close(fd)


def _open_file(directory: int, name: bytes) -> int:
    try:
        return os.open(name, _FILE, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link; a socket; a device
            raise EntryChanged from error
        raise


def read_whole(directory: int, name: bytes) -> tuple[bytes, os.stat_result, bytes, bool]:
    """Return a file's content, its stat and its stamp, and whether it held still for us.

    Raises:
        EntryChanged: it is something else now.
        OSError: it cannot be read.
    """
    return _read_settled(directory, name) or _read_unsettled(directory, name)


def _read_settled(directory: int, name: bytes) -> tuple[bytes, os.stat_result, bytes, bool] | None:
    """Read a file that was left alone for a while, as nearly all are; None if it was not.

    A first snapshot does this for every file, so it takes the fewest steps that are enough.
    """
    fd = _open_file(directory, name)
    try:
        now = time.time_ns()
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise EntryChanged
        if max(found.st_mtime_ns, found.st_ctime_ns) > now - _COARSE:
            return None
        data = os.read(fd, found.st_size + 1)
        stamp = stat_signature(found)
        if len(data) != found.st_size or stat_signature(os.fstat(fd)) != stamp:
            return None
        return data, found, stamp, True
    finally:
        os.close(fd)


def _read_unsettled(directory: int, name: bytes) -> tuple[bytes, os.stat_result, bytes, bool]:
    """Read a file that may be written to at this very moment."""
    for _ in range(_TRIES):
        with opened_file(directory, name) as file:
            is_busy = is_being_written(file)
            is_whole = not is_busy or wait_for_writer(file)
            data = read_all(file.fd, file.stat.st_size)
            stamp = READ_AGAIN if is_busy else reliable_signature_of(file)
            is_still = is_whole and is_unchanged(file, len(data))
            if is_still and stamp == READ_AGAIN:
                # Its time cannot tell a change of this very moment, so the content has to.
                os.lseek(file.fd, 0, os.SEEK_SET)
                is_still = read_all(file.fd, len(data)) == data
        if is_still:
            break
    return data, file.stat, stamp if is_still else READ_AGAIN, is_still


def read_all(fd: int, size: int) -> bytes:
    """Return what is left of a file that should have so many bytes; little more if it has more.

    Raises OSError.
    """
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    pieces, left = [data], size + _PIECE - len(data)
    while data and left > 0:  # one that grows as fast as it is read would never end
        data = os.read(fd, left)
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)


def is_being_written(file: OpenFile) -> bool:
    """Tell whether somebody writes to a file: it is open for that, and was changed just now."""
    age = file.ns - file.stat.st_mtime_ns
    return abs(age) < _COARSE and is_open_for_writing(file.fd)


def wait_for_writer(file: OpenFile) -> bool:
    """Wait for the end of a write that may be under way; tell whether there was no other one.

    The time of a write is that of its beginning, and whoever writes may be waiting for a processor
    or a disk in the middle of it: then neither the time nor a second look tells.
    """
    left = _ONE_WRITE - max(file.ns - file.stat.st_mtime_ns, 0)
    if left <= 0:
        return True
    time.sleep(left / 1e9)
    return stat_signature(os.fstat(file.fd)) == stat_signature(file.stat)


def is_open_for_writing(fd: int) -> bool:
    """Ask the kernel, by way of a lease that is given back at once; False if it cannot tell."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    with block_forks():
        from signal import SIGURG  # slow to load, and seldom wanted

    try:
        # Whoever opens it at this very moment has this sent to us; the usual signal would kill.
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return False


def is_unchanged(file: OpenFile, size: int) -> bool:
    """Tell whether a file is as it was when it was opened, now that so many bytes were read."""
    now = os.fstat(file.fd)
    return stat_signature(now) == stat_signature(file.stat) and now.st_size == size


def reliable_signature_of(file: OpenFile) -> bytes:
    """Return the stamp of a file, or READ_AGAIN if a later change could have the same."""
    return reliable_signature(file.stat, file.ns)


def reliable_signature(found: os.stat_result, ns: int) -> bytes:
    """Return the stamp of what was looked at then, or READ_AGAIN if a change could have the same.

    A time in the future says nothing; whole seconds are those of a disk that knows no others.
    """
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    is_coarse = found.st_mtime_ns % 1_000_000_000 == 0 == found.st_ctime_ns % 1_000_000_000
    return READ_AGAIN if newest > ns - (_COARSE if is_coarse else _FINE) else stat_signature(found)
