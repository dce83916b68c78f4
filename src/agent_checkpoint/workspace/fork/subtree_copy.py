"""Copies directories with everything below them into a tree that exists.

A copy keeps content, permission bits, symbolic links, empty directories and modification times, on
which `make` and Python's caches rely. As in a restore, setuid bits, devices, sockets, FIFOs, hard
links and extended attributes are not copied.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import TYPE_CHECKING

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.fork.reflink import reflink
from agent_checkpoint.workspace.safe_open import FILE, DirectoryOpener
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.tree.dir_state import stat_signature

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_REFLINKS = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS}
_SMALL = 1 << 18
"""Up to this size, read and write are faster than `copy_file_range`."""
_PIECE = 1 << 22
_MAX_QUEUED = 4
"""The maximum number of large files queued for the worker thread."""


class CopyRules(NamedTuple):
    """What all processes that copy a tree have to know of it."""

    place: str
    """The source, for messages."""
    leave_out: frozenset[bytes]
    """The paths of entries to skip."""
    granted: int
    """The permission bits that umask and default ACLs grant to a new file."""


class Visit(NamedTuple):
    """A directory whose entries were copied, but for its subdirectories."""

    path: bytes
    stat: os.stat_result
    """Of the original."""
    subdirs: list[bytes]
    """The paths of its subdirectories, which were created empty."""


class SubtreeCopy:
    """Copies directories of one tree on one thread.

    With many short system calls, contention for the GIL makes a second thread slower. Large files
    are handed to a worker thread unless its queue is full.
    """

    def __init__(self, source: int, target: int, rules: CopyRules) -> None:
        """Copy from one open root directory to another. Neither is closed."""
        self._source = DirectoryOpener(os.dup(source))
        self._target = DirectoryOpener(os.dup(target))
        self._rules = rules
        found = os.fstat(target)
        self._itself = (found.st_dev, found.st_ino)
        self._owner = (found.st_uid, found.st_gid)
        # Only root can change owners; other users own their copies.
        self._keeps_owners = os.geteuid() == 0
        self._cannot_reflink: set[int] = set()
        self._at = b""
        self._thread: ThreadPoolExecutor | None = None
        self._queued: list[Future[None]] = []
        self.copied: dict[bytes, tuple[bytes, bytes]] = {}
        """The signatures of the original and the copy of each file and link, by path."""
        self.visited = 0
        """The number of directories and entries that were looked at."""

    def __enter__(self) -> SubtreeCopy:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the worker thread."""
        if self._thread is not None:
            self._thread.shutdown()
        self._source.__exit__(*error)
        self._target.__exit__(*error)

    def finish(self) -> None:
        """Wait until all files are copied. Raises WorkspaceError."""
        for file in self._queued:
            file.result()
        self._queued.clear()

    def copy(self, path: bytes, most: int = sys.maxsize) -> list[Visit | bytes]:
        """Copy a directory, which exists in the target, with everything below it.

        Args:
            path: its path.
            most: stop when this many directories and entries were looked at.

        Returns:
            What is left to do, empty unless it stopped: the paths of directories to copy, and the
            visited ones above them, whose metadata has to be set afterwards, from the last one on.

        Raises:
            WorkspaceError: an entry cannot be read or written.
        """
        # Each directory is seen again, with its stat, after its entries: a read-only mode can be
        # set only then, and its descriptor is still open.
        waiting: list[Visit | bytes] = [path]
        while waiting and self.visited < most:
            each = waiting.pop()
            if isinstance(each, bytes):
                visit = self.visit(each)
                if visit is not None:
                    waiting.append(visit)
                    waiting += visit.subdirs
            else:
                self.leave(each)
        return waiting

    def visit(self, path: bytes) -> Visit | None:
        """Copy the entries of a directory; None if it was removed. Raises WorkspaceError."""
        self._at = path
        try:
            try:
                here = self._source.open(path)
            except FileNotFoundError:  # removed since its parent was listed
                return None
            there = self._target.open(path)
            return Visit(path, os.fstat(here), self._copy_directory(path, here, there))
        except OSError as error:
            raise copy_failed(self._rules.place, self._at, error) from error

    def leave(self, visit: Visit) -> None:
        """Set mode and times of a directory, after everything in it. Raises WorkspaceError."""
        try:
            self._set_metadata(self._target.open(visit.path), visit.stat)
        except OSError as error:
            raise copy_failed(self._rules.place, visit.path, error) from error

    def _copy_directory(self, path: bytes, here: int, there: int) -> list[bytes]:
        prefix = path + b"/" if path else b""
        leave_out = self._rules.leave_out
        device, ino = self._itself
        below: list[bytes] = []
        with os.scandir(here) as entries:
            found = list(entries)
        self.visited += 1 + len(found)
        for entry in found:
            name = os.fsencode(entry.name)
            self._at = prefix + name
            if self._at in leave_out:
                continue
            if entry.is_file(follow_symlinks=False):
                self._copy_file(name, here, there)
            elif entry.is_symlink():
                self._copy_link(name, here, there)
            elif not entry.is_dir(follow_symlinks=False) or is_store(here, name):
                continue  # a special file, or a store in use
            elif entry.inode() != ino or entry.stat(follow_symlinks=False).st_dev != device:
                os.mkdir(name, 0o700, dir_fd=there)
                below.append(self._at)
        return below

    def _copy_file(self, name: bytes, here: int, there: int) -> None:
        try:
            fd = os.open(name, FILE, dir_fd=here)
        except FileNotFoundError:
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ESTALE, "the file was replaced during the copy")
            new = os.open(name, _NEW, found.st_mode & 0o777, dir_fd=there)
            try:
                size = found.st_size
                if not size or self._try_reflink(fd, new, found.st_dev):
                    self._finish(self._at, fd, new, found)
                elif size > _SMALL:
                    self._queue_large(fd, new, found)
                else:
                    data = os.read(fd, size + 1)
                    if os.write(new, data) != size:
                        _copy_range(fd, new, 0, sys.maxsize)  # a short write, or the file has grown
                    self._finish(self._at, fd, new, found)
            finally:
                os.close(new)
        finally:
            os.close(fd)

    def _copy_link(self, name: bytes, here: int, there: int) -> None:
        try:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            text = os.readlink(name, dir_fd=here)
        except FileNotFoundError:
            return
        os.symlink(text, name, dir_fd=there)
        if self._is_foreign(found):
            os.chown(name, found.st_uid, found.st_gid, dir_fd=there, follow_symlinks=False)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=there, follow_symlinks=False)
        made = os.stat(name, dir_fd=there, follow_symlinks=False)
        self.copied[self._at] = stat_signature(found), stat_signature(made)

    def _try_reflink(self, fd: int, new: int, device: int) -> bool:
        if device in self._cannot_reflink:
            return False
        try:
            reflink(fd, new)
        except OSError as error:
            if error.errno in _NO_REFLINKS:  # other errors concern only this file
                self._cannot_reflink.add(device)
            return False
        return True

    def _queue_large(self, fd: int, new: int, found: os.stat_result) -> None:
        if self._thread is None:
            with block_forks():
                from concurrent.futures import ThreadPoolExecutor  # slow to load as well

            self._thread = ThreadPoolExecutor(1, "agent-checkpoint-copy")
        job = (self._at, os.dup(fd), os.dup(new), found)
        self._queued = [file for file in self._queued if not file.done() or file.exception()]
        if len(self._queued) < _MAX_QUEUED:
            self._queued.append(self._thread.submit(self._copy_large, *job))
        else:
            self._copy_large(*job)

    def _copy_large(self, path: bytes, fd: int, new: int, found: os.stat_result) -> None:
        try:
            _fill(fd, new, found)
            self._finish(path, fd, new, found)
        except OSError as error:
            raise copy_failed(self._rules.place, path, error) from error
        finally:
            os.close(fd)
            os.close(new)

    def _finish(self, path: bytes, fd: int, new: int, found: os.stat_result) -> None:
        self._set_metadata(new, found)
        # The original after it was read: a write meanwhile is in the copy, perhaps in part.
        self.copied[path] = stat_signature(os.fstat(fd)), stat_signature(os.fstat(new))

    def _set_metadata(self, fd: int, found: os.stat_result) -> None:
        if self._is_foreign(found):
            os.chown(fd, found.st_uid, found.st_gid)
        if stat.S_ISDIR(found.st_mode) or found.st_mode & 0o777 & ~self._rules.granted:
            os.chmod(fd, found.st_mode & 0o777)
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_foreign(self, found: os.stat_result) -> bool:
        return self._keeps_owners and (found.st_uid, found.st_gid) != self._owner


def _fill(fd: int, new: int, found: os.stat_result) -> None:
    if found.st_blocks * 512 >= found.st_size:  # the file has no holes
        _copy_range(fd, new, 0, found.st_size)
        return
    end = 0
    while end < found.st_size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # the rest is a hole
        end = os.lseek(fd, start, os.SEEK_HOLE)
        _copy_range(fd, new, start, end)
    os.truncate(new, found.st_size)


def _copy_range(fd: int, new: int, start: int, end: int) -> None:
    by_kernel = hasattr(os, "copy_file_range")
    while start < end:
        length = min(end - start, _PIECE)
        if by_kernel:
            try:
                done = os.copy_file_range(fd, new, length, start, start)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                    raise
                by_kernel = False  # unsupported between some file systems
                continue
        else:
            done = os.pwrite(new, os.pread(fd, length, start), start)
        if not done:  # end of file; it may have been truncated during the copy
            return
        start += done


def copy_failed(place: str | os.PathLike[str], path: bytes, error: OSError) -> WorkspaceError:
    """Return the error for an entry below a directory."""
    where = os.path.join(place, os.fsdecode(path)) if path else str(place)
    return WorkspaceError(f"Cannot copy {where!r}: {error.strerror or error}.")
