"""Copies of directory trees. Owns the walk and how bytes get from file to file; knows no fork.

A copy has what a fork needs: content, permission bits, links as links, empty directories, and the
times of changes, because `make` and Python's caches go by them. It lacks what is never restored
either: setuid bits, devices, sockets, fifos, hard links and extended attributes.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.scan.nested_stores import is_store

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for a writer if a fifo takes the place of the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FICLONE = 0x40049409
_NO_REFLINKS = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS}
_SMALL = 1 << 18
"""Up to here a read and a write are faster than asking the kernel to copy."""
_PIECE = 1 << 22
_MOST_WAITING = 4
"""Large files that wait for the second thread; the next one the first thread copies itself."""
_MOST_OPEN = 64

LeaveOut = Callable[[bytes, bytes], bool]


def copy_tree(source: Path, target: Path, *, leave_out: LeaveOut | None = None) -> list[bytes]:
    """Copy a directory to a path where nothing is, and return the specials that were left out.

    Files share their blocks with the copy where the file system can do that. What vanishes while
    it is copied is left out.

    Args:
        source: the directory; no link in it is followed.
        target: the new directory. It may be in the source, and is then not part of the copy.
        leave_out: asked of every directory (b"" is the root) and name in it.

    Raises:
        WorkspaceError: something cannot be read or written. What was copied is left there.
    """
    with ExitStack() as opened:
        place = source
        try:
            source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, source_fd)
            place = target
            os.mkdir(target, 0o700)
            target_fd = os.open(target, DIRECTORY)
            opened.callback(os.close, target_fd)
            copy = _Copy(source, target_fd, leave_out)
        except OSError as error:
            raise _failure(place, b"", error) from error
        here, there = (opened.enter_context(DirectoryOpener(fd)) for fd in (source_fd, target_fd))
        return copy.run(here, there)


def can_reflink(directory: Path) -> bool:
    """Tell whether files in a directory can share their blocks, by doing it with a small one."""
    with block_forks():
        from tempfile import TemporaryFile  # slow to load: the program in view.py has no use for it

    data = b"x" * 4096  # less might stand in the inode itself
    try:
        with TemporaryFile(dir=directory) as file, TemporaryFile(dir=directory) as new:
            file.write(data)
            file.flush()
            _reflink(file.fileno(), new.fileno())
            return new.read() == data
    except OSError:
        return False


class DirectoryOpener:
    """Opens directories below a root by their path, name by name, and never through a link.

    The directories on the way stay open, since the next path is mostly near. Those far down do
    not, so that no tree is too deep for the number of files that may be open.
    """

    def __init__(self, root: int) -> None:
        """Start at an open directory, which stays the caller's."""
        self._root = root
        self._names: list[bytes] = []
        self._fds: list[int] = []
        self._deep = -1

    def __enter__(self) -> DirectoryOpener:
        return self

    def __exit__(self, *problem: object) -> None:
        self._back_to(0)

    def open(self, path: bytes) -> int:
        """Return a directory by its path below the root; it stays open until the next call.

        Raises:
            OSError: it is not there, or something on the way is not a directory.
        """
        names = path.split(b"/") if path else []
        same = 0
        for mine, name in zip(self._names, names):
            if mine != name:
                break
            same += 1
        self._back_to(same)
        fd = self._fds[-1] if self._fds else self._root
        for name in names[same:]:
            fd = os.open(name, DIRECTORY, dir_fd=fd)
            if len(self._fds) < _MOST_OPEN:
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


class _Copy:
    """One copy under way.

    Small files are for one thread: they are many short calls, and Python's lock would cost a second
    one more than it gains. Large ones are for a second thread, as far as it keeps up.
    """

    def __init__(self, place: Path, target: int, leave_out: LeaveOut | None) -> None:
        self._place = place
        self._leave_out = leave_out
        found = os.fstat(target)
        self._itself = (found.st_dev, found.st_ino)
        self._owner = (found.st_uid, found.st_gid)
        self._granted = _granted_bits(target)
        # Who is not root cannot give files away, and has the copies as their own.
        self._keeps_owners = os.geteuid() == 0
        self._cannot_reflink: set[int] = set()
        self._specials: list[bytes] = []
        self._at = b""
        self._helper: ThreadPoolExecutor | None = None
        self._helped: list[Future[None]] = []

    def run(self, source: DirectoryOpener, target: DirectoryOpener) -> list[bytes]:
        # A directory comes a second time, with its stat, when all below it is there: one that may
        # not be written to must be filled before, and while it is at hand that takes no search.
        waiting: list[tuple[bytes, os.stat_result | None]] = [(b"", None)]
        try:
            while waiting:
                path, found = waiting.pop()
                self._at = path
                if found is not None:
                    self._dress(target.open(path), found)
                    continue
                try:
                    here = source.open(path)
                except FileNotFoundError:  # it was there when its parent was listed
                    continue
                there = target.open(path)
                waiting.append((path, os.fstat(here)))
                waiting += [(below, None) for below in self._copy_directory(path, here, there)]
        except OSError as error:
            raise _failure(self._place, self._at, error) from error
        finally:
            if self._helper is not None:
                self._helper.shutdown()
        for file in self._helped:
            file.result()
        return sorted(self._specials)

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
                self._specials.append(self._at)
            elif entry.inode() != ino or entry.stat(follow_symlinks=False).st_dev != device:
                os.mkdir(name, 0o700, dir_fd=there)
                below.append(self._at)
        return below

    def _copy_file(self, name: bytes, here: int, there: int) -> None:
        try:
            fd = os.open(name, _FILE, dir_fd=here)
        except FileNotFoundError:
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ESTALE, "it changed while it was copied")
            new = os.open(name, _NEW, found.st_mode & 0o777, dir_fd=there)
            try:
                size = found.st_size
                if not size or self._share(fd, new, found.st_dev):
                    self._dress(new, found)
                elif size > _SMALL:
                    self._hand_over(fd, new, found)
                else:
                    data = os.read(fd, size + 1)
                    if os.write(new, data) != size:
                        _copy_range(fd, new, 0, sys.maxsize)  # a full disk, or it has grown
                    self._dress(new, found)
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

    def _share(self, fd: int, new: int, device: int) -> bool:
        if device in self._cannot_reflink:
            return False
        try:
            _reflink(fd, new)
        except OSError as error:
            if error.errno in _NO_REFLINKS:  # any other is about this file alone
                self._cannot_reflink.add(device)
            return False
        return True

    def _hand_over(self, fd: int, new: int, found: os.stat_result) -> None:
        if self._helper is None:
            with block_forks():
                from concurrent.futures import ThreadPoolExecutor  # slow to load as well

            self._helper = ThreadPoolExecutor(1, "agent-checkpoint-copy")
        job = (self._at, os.dup(fd), os.dup(new), found)
        self._helped = [file for file in self._helped if not file.done() or file.exception()]
        if len(self._helped) < _MOST_WAITING:
            self._helped.append(self._helper.submit(self._copy_large, *job))
        else:
            self._copy_large(*job)

    def _copy_large(self, path: bytes, fd: int, new: int, found: os.stat_result) -> None:
        try:
            _fill(fd, new, found)
            self._dress(new, found)
        except OSError as error:
            raise _failure(self._place, path, error) from error
        finally:
            os.close(fd)
            os.close(new)

    def _dress(self, fd: int, found: os.stat_result) -> None:
        if self._is_foreign(found):
            os.chown(fd, found.st_uid, found.st_gid)
        if stat.S_ISDIR(found.st_mode) or found.st_mode & 0o777 & ~self._granted:
            os.chmod(fd, found.st_mode & 0o777)
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_foreign(self, found: os.stat_result) -> bool:
        return self._keeps_owners and (found.st_uid, found.st_gid) != self._owner


def _granted_bits(directory: int) -> int:
    """Return the permission bits that a new file may have: umask and default ACLs take some."""
    os.mkdir("granted", 0o777, dir_fd=directory)
    try:
        return os.stat("granted", dir_fd=directory).st_mode & 0o777
    finally:
        os.rmdir("granted", dir_fd=directory)


def _reflink(fd: int, new: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.EOPNOTSUPP, "reflinks are made on Linux only")
    ioctl(new, _FICLONE, fd)


def _fill(fd: int, new: int, found: os.stat_result) -> None:
    if found.st_blocks * 512 >= found.st_size:  # without holes
        _copy_range(fd, new, 0, found.st_size)
        return
    end = 0
    while end < found.st_size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # only a hole is left
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
                by_kernel = False  # between some file systems it cannot
                continue
        else:
            done = os.pwrite(new, os.pread(fd, length, start), start)
        if not done:  # the end, or it has become shorter
            return
        start += done


def _failure(place: Path, path: bytes, error: OSError) -> WorkspaceError:
    where = os.path.join(place, os.fsdecode(path)) if path else str(place)
    return WorkspaceError(f"Cannot copy {where!r}: {error.strerror or error}.")
