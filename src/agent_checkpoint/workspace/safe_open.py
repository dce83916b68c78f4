"""Opens and reads files below a root without following symlinks.

Each component of a path is opened relative to the directory before it, with O_NOFOLLOW. If a parent
is swapped for a symlink meanwhile, opening fails instead of leaving the workspace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from _signal import SIGURG  # type: ignore[import-not-found] # `signal` is slow to load
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, stat_signature
from agent_checkpoint.workspace.tree.tree_format import ContentHash

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening must not block if a FIFO replaces the file.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_EXTRA = _PIECE = 1 << 20
_TRIES = 3
_MAX_OPEN = 64
_FINE_NS, _COARSE_NS = 20_000_000, 2_000_000_000
"""Timestamp granularity in ns: a kernel tick; file systems with coarse timestamps."""
_WRITE_NS = 30_000_000
"""How long, in ns, to wait for the end of a write to a file that is open for writing."""

_UNSEEN_NS = 60_000_000_000
"""How long, in ns, a change of a file that is open for writing may leave its timestamps.

A write sets them when it starts, and a store to a mapped page only if the page is clean: Linux
cleans pages after 35 s by default.
"""
_UNSEEN_BYTES = 16 << 20
"""Larger files are read again only if they changed within `_COARSE_NS`: reading them takes long."""

T = TypeVar("T")


class EntryChanged(Exception):
    """An entry was replaced by an entry of another type."""


class OpenFile(NamedTuple):
    """An open file, with its stat result and the time when it was opened."""

    fd: int
    stat: os.stat_result
    ns: int


def open_root(path: str | os.PathLike[str]) -> int:
    """Open the root directory, whose path may contain symlinks. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_directory(name: bytes, parent: int) -> int:
    """Open a subdirectory of an open directory. Raises OSError."""
    return os.open(name, DIRECTORY, dir_fd=parent)


def exists(name: bytes, directory: int) -> bool:
    """Return whether an open directory has an entry, which may be a link. Raises OSError."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def new_file(name: bytes, directory: int) -> Iterator[int]:
    """Yield a new or emptied private file, opened for writing. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a file. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextmanager
def directory_below(root: int, path: bytes) -> Iterator[int]:
    """Yield a directory below the root, opened by its path. Raises OSError."""
    fd = os.dup(root)
    try:
        for name in path.split(b"/") if path else ():
            subdir = open_directory(name, fd)
            os.close(fd)
            fd = subdir
        yield fd
    finally:
        os.close(fd)


class DirectoryOpener:
    """Opens directories below a root by path, component by component, without following links.

    Parent directories stay open, since the next path is usually nearby. Directories below a certain
    depth are closed, to stay within the limit of open files.
    """

    def __init__(self, root: int) -> None:
        """Start at an open directory, which is closed at the end."""
        self._root = root
        self._names: list[bytes] = []
        self._fds: list[int] = []
        self._deep = -1

    def __enter__(self) -> DirectoryOpener:
        return self

    def __exit__(self, *problem: object) -> None:
        self._back_to(0)
        os.close(self._root)

    def open(self, path: bytes) -> int:
        """Return the descriptor of a directory by its path; it is valid until the next call.

        Raises:
            OSError: the directory does not exist, or a component is not a directory.
        """
        names = path.split(b"/") if path else []
        same = max(len(names) - 1, 0)
        if names[:same] != self._names[:same]:  # not below a directory that is open
            same = 0
            for mine, name in zip(self._names, names):
                if mine != name:
                    break
                same += 1
        if len(self._fds) > same or self._deep >= 0:
            self._back_to(same)
        fd = self._fds[-1] if self._fds else self._root
        for name in names[same:]:
            fd = os.open(name, DIRECTORY, dir_fd=fd)
            if len(self._fds) < _MAX_OPEN:
                self._fds.append(fd)
                self._names.append(name)
            else:
                self._close_deep()
                self._deep = fd
        return fd

    def _back_to(self, length: int) -> None:
        self._close_deep()
        while len(self._fds) > length:
            self._names.pop()
            os.close(self._fds.pop())

    def _close_deep(self) -> None:
        if self._deep >= 0:
            os.close(self._deep)
            self._deep = -1


@contextmanager
def opened_file(directory: int, name: bytes) -> Iterator[OpenFile]:
    """Yield a regular file, opened for reading.

    Raises:
        EntryChanged: the entry is no longer a regular file.
        OSError: it cannot be opened.
    """
    fd = _open_file(directory, name)
    try:
        now = time.time_ns()
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise EntryChanged
        yield OpenFile(fd, status, now)
    finally:
        os.close(fd)


def _open_file(directory: int, name: bytes) -> int:
    try:
        return os.open(name, FILE, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):  # a link; a socket; a device
            raise EntryChanged from error
        raise


def read_whole(directory: int, name: bytes) -> tuple[bytes, os.stat_result, bytes, bool]:
    """Return the content of a file, its stat result and signature, and whether it is consistent.

    Raises:
        EntryChanged: the entry is no longer a regular file.
        OSError: it cannot be read.
    """
    # The first snapshot calls this for every file, so it makes as few system calls as possible.
    fd = _open_file(directory, name)
    try:
        now = time.time_ns()
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise EntryChanged
        if max(status.st_mtime_ns, status.st_ctime_ns) > now - _UNSEEN_NS:
            found = _read_once(OpenFile(fd, status, now), _read_content)
            if found[-1]:
                return found
        else:
            data = os.read(fd, status.st_size + 1)
            signature = stat_signature(status)
            if len(data) == status.st_size and stat_signature(os.fstat(fd)) == signature:
                return data, status, signature, True
    finally:
        os.close(fd)
    return read_stable(directory, name, _read_content)


def _read_content(file: OpenFile) -> tuple[bytes, int, Callable[[], str]]:
    data = read_all(file.fd, file.stat.st_size)

    def content_hash() -> str:
        digest = ContentHash()
        digest.add(data)
        return digest.id()

    return data, len(data), content_hash


def read_stable(
    directory: int, name: bytes, read: Callable[[OpenFile], tuple[T, int, Callable[[], str]]]
) -> tuple[T, os.stat_result, bytes, bool]:
    """Read a file that may be written to concurrently; retry if it changed meanwhile.

    Args:
        directory: the open directory of the file.
        name: its name.
        read: reads the file; returns its content, its size and a function for its content id.

    Returns the content, the stat result and signature, and whether the content is consistent.

    Raises:
        EntryChanged: the entry is no longer a regular file.
        OSError: it cannot be read.
    """
    for _ in range(_TRIES):
        with opened_file(directory, name) as file:
            found = _read_once(file, read)
        if found[-1]:
            break
    return found


def _read_once(
    file: OpenFile, read: Callable[[OpenFile], tuple[T, int, Callable[[], str]]]
) -> tuple[T, os.stat_result, bytes, bool]:
    """Read an open file that may be written to concurrently; see `read_stable`."""
    is_busy = _may_be_written(file)
    is_write_done = not is_busy or _wait_for_writer(file)
    content, size, content_hash = read(file)
    signature = READ_AGAIN if is_busy else reliable_signature(file.stat, file.ns)
    now = os.fstat(file.fd)
    is_same = stat_signature(now) == stat_signature(file.stat) and now.st_size == size
    is_stable = is_write_done and is_same
    if is_stable and signature == READ_AGAIN:
        # The mtime is too recent to reveal a change, so compare the content.
        os.lseek(file.fd, 0, os.SEEK_SET)
        is_stable = content_id(file.fd, size) == content_hash()
    return content, file.stat, signature if is_stable else READ_AGAIN, is_stable


def content_id(fd: int, size: int) -> str:
    """Return the content id of the rest of a file, up to a number of bytes. Raises OSError."""
    whole = ContentHash()
    while size > 0 and (data := os.read(fd, min(size, _PIECE))):
        whole.add(data)
        size -= len(data)
    return whole.id()


def read_all(fd: int, size: int) -> bytes:
    """Return the rest of a file of an expected size; at most 1 MiB more than that.

    Raises OSError.
    """
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts, left = [data], size + _EXTRA - len(data)
    while data and left > 0:  # bounded: a file may grow faster than it is read
        data = os.read(fd, left)
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def _may_be_written(file: OpenFile) -> bool:
    """Return whether a file may be in the middle of a write; its signature is not reliable then.

    Without an answer of the kernel only the last seconds count: else a second scan would read all
    that was written in a minute by other users, or where there are no leases.
    """
    age = abs(file.ns - max(file.stat.st_mtime_ns, file.stat.st_ctime_ns))
    if age >= (_UNSEEN_NS if file.stat.st_size <= _UNSEEN_BYTES else _COARSE_NS):
        return False
    is_open = is_open_for_writing(file.fd)
    return age < _COARSE_NS if is_open is None else is_open


def _wait_for_writer(file: OpenFile) -> bool:
    """Wait for a write in progress to end; return False if another write followed.

    The kernel sets the mtime when a write starts. If the writer is then suspended or waits for the
    disk, neither the mtime nor a second read reveals the write.
    """
    left = _WRITE_NS - max(file.ns - file.stat.st_mtime_ns, 0)
    if left <= 0:
        return True
    time.sleep(left / 1e9)
    return stat_signature(os.fstat(file.fd)) == stat_signature(file.stat)


def is_open_for_writing(fd: int) -> bool | None:
    """Return whether a file is open for writing, by taking a lease.

    None if unknown: the file belongs to another user, or there are no leases.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    try:
        # Opening the file during the lease signals us: SIGURG is ignored by default, SIGIO kills.
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def reliable_signature(status: os.stat_result, ns: int) -> bytes:
    """Return the signature of an entry that was read at `ns`, or READ_AGAIN if it is racy."""
    return READ_AGAIN if is_racy(status, ns) else stat_signature(status)


def is_racy(status: os.stat_result, ns: int) -> bool:
    """Return whether a change after `ns` could leave the same timestamps (git: racily clean).

    They are too recent, or in the future. Timestamps of whole seconds indicate a coarse file
    system.
    """
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    is_coarse = status.st_mtime_ns % 1_000_000_000 == 0 == status.st_ctime_ns % 1_000_000_000
    return newest > ns - (_COARSE_NS if is_coarse else _FINE_NS)
