"""Copies directory trees, with reflinks where possible. Does not depend on forks.

A copy keeps content, permission bits, symbolic links, empty directories and modification times, on
which `make` and Python's caches rely. As in a restore, setuid bits, devices, sockets, FIFOs, hard
links and extended attributes are not copied.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.safe_open import DIRECTORY, FILE, DirectoryOpener, open_root
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.tree.dir_state import SIGNATURE, Copied, stat_signature

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FICLONE = 0x40049409
_NO_REFLINKS = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS}
_SMALL = 1 << 18
"""Up to this size, read and write are faster than `copy_file_range`."""
_PIECE = 1 << 22
_MAX_QUEUED = 4
"""The maximum number of large files queued for the worker thread."""

_TICK_SECONDS = 0.03
"""How long to wait for a later timestamp: more than a tick of any kernel."""

LeaveOut = Callable[[bytes, bytes], bool]


def copy_tree(source: Path, target: Path, *, leave_out: LeaveOut | None = None) -> Copied:
    """Copy a directory to a new path.

    Files are reflinked where the file system supports it. Special files, and files that are removed
    during the copy, are skipped.

    Args:
        source: the directory; links in it are not followed.
        target: the new directory. If it is inside the source, it is not copied.
        leave_out: returns whether to skip an entry, given its directory (b"" is the root) and name.

    Returns:
        The signatures of what was copied. Every later change of a copy changes its signature.

    Raises:
        WorkspaceError: an entry cannot be read or written. The partial copy is not removed.
    """
    with ExitStack() as opened:
        place = source
        try:
            here = opened.enter_context(DirectoryOpener(open_root(source)))
            place = target
            os.mkdir(target, 0o700)
            there = opened.enter_context(DirectoryOpener(os.open(target, DIRECTORY)))
            copy = _TreeCopy(source, there.open(b""), leave_out)
        except OSError as error:
            raise _failure(place, b"", error) from error
        return copy.run(here, there)


def can_reflink(directory: Path) -> bool:
    """Return whether the file system of a directory supports reflinks, by creating one."""
    with block_forks():
        from tempfile import TemporaryFile  # slow to load: the program in view.py has no use for it

    data = b"x" * 4096  # a smaller file may be stored in the inode
    try:
        with TemporaryFile(dir=directory) as file, TemporaryFile(dir=directory) as new:
            file.write(data)
            file.flush()
            _reflink(file.fileno(), new.fileno())
            return new.read() == data
    except OSError:
        return False


class _TreeCopy:
    """One copy operation.

    Small files are copied on the calling thread: with many short system calls, contention for the
    GIL makes a second thread slower. Large files are handed to a worker thread unless its queue is
    full.
    """

    def __init__(self, place: Path, target: int, leave_out: LeaveOut | None) -> None:
        self._place = place
        self._leave_out = leave_out
        found = os.fstat(target)
        self._itself = (found.st_dev, found.st_ino)
        self._owner = (found.st_uid, found.st_gid)
        self._granted = _granted_bits(target)
        # Only root can change owners; other users own their copies.
        self._keeps_owners = os.geteuid() == 0
        self._cannot_reflink: set[int] = set()
        self._at = b""
        self._thread: ThreadPoolExecutor | None = None
        self._queued: list[Future[None]] = []
        self._copied: dict[bytes, tuple[bytes, bytes]] = {}

    def run(self, source: DirectoryOpener, target: DirectoryOpener) -> Copied:
        # Each directory is visited again, with its stat, after its entries: a read-only mode can be
        # set only then, and its descriptor is still open.
        waiting: list[tuple[bytes, os.stat_result | None]] = [(b"", None)]
        try:
            while waiting:
                path, found = waiting.pop()
                self._at = path
                if found is not None:
                    self._set_metadata(target.open(path), found)
                    continue
                try:
                    here = source.open(path)
                except FileNotFoundError:  # removed since its parent was listed
                    continue
                there = target.open(path)
                waiting.append((path, os.fstat(here)))
                waiting += [(below, None) for below in self._copy_directory(path, here, there)]
        except OSError as error:
            raise _failure(self._place, self._at, error) from error
        finally:
            if self._thread is not None:
                self._thread.shutdown()
        for file in self._queued:
            file.result()
        try:
            return self._distinct(target.open(b""))
        except OSError as error:
            raise _failure(self._place, b"", error) from error

    def _distinct(self, root: int) -> Copied:
        """Return the signatures of the copies that have an earlier ctime than any later change."""
        changed = {path: SIGNATURE.unpack(copy)[2] for path, (_, copy) in self._copied.items()}
        last = max(changed.values(), default=0)
        now = self._next_change(root)
        until = time.monotonic() + _TICK_SECONDS
        while now <= last and time.monotonic() < until:
            time.sleep(0.001)
            now = self._next_change(root)
        if now > last:
            return self._copied
        return {path: pair for path, pair in self._copied.items() if changed[path] < now}

    def _next_change(self, root: int) -> int:
        """Return the ctime that a change has now."""
        found = os.fstat(root)
        os.utime(root, ns=(found.st_atime_ns, found.st_mtime_ns))
        return os.fstat(root).st_ctime_ns

    def _copy_directory(self, path: bytes, here: int, there: int) -> list[bytes]:
        prefix = path + b"/" if path else b""
        leave_out = self._leave_out
        device, ino = self._itself
        below: list[bytes] = []
        with os.scandir(here) as entries:
            found = list(entries)
        for entry in found:
            name = os.fsencode(entry.name)
            if leave_out is not None and leave_out(path, name):
                continue
            self._at = prefix + name
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
        self._copied[self._at] = stat_signature(found), stat_signature(made)

    def _try_reflink(self, fd: int, new: int, device: int) -> bool:
        if device in self._cannot_reflink:
            return False
        try:
            _reflink(fd, new)
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
            raise _failure(self._place, path, error) from error
        finally:
            os.close(fd)
            os.close(new)

    def _finish(self, path: bytes, fd: int, new: int, found: os.stat_result) -> None:
        self._set_metadata(new, found)
        # The original after it was read: a write meanwhile is in the copy, perhaps in part.
        self._copied[path] = stat_signature(os.fstat(fd)), stat_signature(os.fstat(new))

    def _set_metadata(self, fd: int, found: os.stat_result) -> None:
        if self._is_foreign(found):
            os.chown(fd, found.st_uid, found.st_gid)
        if stat.S_ISDIR(found.st_mode) or found.st_mode & 0o777 & ~self._granted:
            os.chmod(fd, found.st_mode & 0o777)
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_foreign(self, found: os.stat_result) -> bool:
        return self._keeps_owners and (found.st_uid, found.st_gid) != self._owner


def _granted_bits(directory: int) -> int:
    """Return the permission bits that umask and default ACLs grant to a new file."""
    os.mkdir("granted", 0o777, dir_fd=directory)
    try:
        return os.stat("granted", dir_fd=directory).st_mode & 0o777
    finally:
        os.rmdir("granted", dir_fd=directory)


def _reflink(fd: int, new: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.EOPNOTSUPP, "reflinks are supported on Linux only")
    ioctl(new, _FICLONE, fd)


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


def _failure(place: Path, path: bytes, error: OSError) -> WorkspaceError:
    where = os.path.join(place, os.fsdecode(path)) if path else str(place)
    return WorkspaceError(f"Cannot copy {where!r}: {error.strerror or error}.")
