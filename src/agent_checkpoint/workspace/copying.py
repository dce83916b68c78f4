"""Copies of directory trees. Owns the walk and how bytes get from file to file; knows no fork.

A copy has what a fork needs: content, permission bits, links as links, empty directories, and the
times of changes, because `make` and Python's caches go by them. It lacks what is never restored
either: setuid bits, devices, sockets, fifos, hard links and extended attributes.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import show

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for a writer if a fifo takes the place of the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | _CREATE

_FICLONE = 0x40049409
_NO_REFLINKS = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS}
_SMALL = 1 << 18
"""Up to here a read and a write are faster than asking the kernel to copy."""
_PIECE = 1 << 22
_BATCH = 256
"""Files of one directory that one thread takes at once."""
_THREADS = 2
"""Creating and writing files is the kernel's work; for more threads Python is the narrow place."""

LeaveOut = Callable[[bytes, bytes], bool]


def copy_tree(source: Path, target: Path, *, leave_out: LeaveOut | None = None) -> list[bytes]:
    """Copy a directory to a path where nothing is, and return the specials that it leaves out.

    Files share their blocks with the copy where the file system can do that. What vanishes while
    it is copied is left out.

    Args:
        source: the directory; no link in it is followed.
        target: the new directory. It may be in the source, and is then not part of the copy.
        leave_out: asked of every directory (b"" is the root) and name in it, by several threads.

    Raises:
        WorkspaceError: something cannot be read or written. What was copied is left there.
    """
    with _errors(source):
        source_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _errors(target):
            os.mkdir(target, 0o700)
            target_fd = os.open(target, DIRECTORY)
        try:
            return _Copy(source, source_fd, target_fd, leave_out or _nothing).run()
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def can_reflink(directory: Path) -> bool:
    """Tell whether files in a directory can share their blocks, by doing it with a small one."""
    token = secrets.token_hex(8)
    paths = [directory / f".agent-checkpoint-reflink-{token}-{end}" for end in "ab"]
    fds: list[int] = []
    try:
        for path in paths:
            fds.append(os.open(path, os.O_RDWR | _CREATE, 0o600))
        os.write(fds[0], b"x" * 4096)  # less would stand in the inode itself
        _reflink(fds[0], fds[1])
        return os.pread(fds[1], 2, 4095) == b"x"
    except OSError:
        return False
    finally:
        for fd in fds:
            os.close(fd)
        for path in paths:
            with suppress(OSError):
                path.unlink()


@contextmanager
def opened_below(root: int, path: bytes) -> Iterator[int]:
    """Give a directory by its path below the root, opened name by name, never through a link.

    Raises:
        OSError: it is not there, or something on the way is not a directory.
    """
    fd = os.open(b".", DIRECTORY, dir_fd=root)
    try:
        for name in path.split(b"/") if path else ():
            below = os.open(name, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


class _Task(NamedTuple):
    directory: bytes
    files: list[bytes] | None  # None: it is still to be listed


class _Copy:
    """One copy: what its workers share."""

    def __init__(self, place: Path, source: int, target: int, leave_out: LeaveOut) -> None:
        self.place = place
        self.source = source
        self.target = target
        self.leave_out = leave_out
        found = os.fstat(target)
        self.itself = (found.st_dev, found.st_ino)
        self.owner = (found.st_uid, found.st_gid)
        # Who is not root cannot give files away, and has the copies as their own.
        self.keeps_owners = os.geteuid() == 0
        self.cannot_reflink: set[int] = set()
        self.changed = threading.Condition()
        self.tasks = [_Task(b"", None)]
        self.busy = 0
        self.failed: BaseException | None = None
        self.directories: list[tuple[bytes, os.stat_result]] = []
        self.specials: list[bytes] = []

    def run(self) -> list[bytes]:
        threads = [threading.Thread(target=_Worker(self).run) for _ in range(_THREADS - 1)]
        for thread in threads:
            thread.start()
        try:
            _Worker(self).run()
        finally:
            for thread in threads:
                thread.join()
        if self.failed is not None:
            raise self.failed
        # Only now, and those below first: one that may not be written to must be filled before.
        for path, found in sorted(self.directories, reverse=True, key=lambda item: item[0]):
            with _errors(self.place / os.fsdecode(path)):
                with opened_below(self.target, path) as fd:
                    self.dress(fd, found)
        return sorted(self.specials)

    def dress(self, fd: int, found: os.stat_result) -> None:
        if self.is_foreign(found):
            os.chown(fd, found.st_uid, found.st_gid)
        os.chmod(fd, found.st_mode & 0o777)
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def is_foreign(self, found: os.stat_result) -> bool:
        return self.keeps_owners and (found.st_uid, found.st_gid) != self.owner


class _Worker:
    """One thread of a copy."""

    def __init__(self, copy: _Copy) -> None:
        self._copy = copy
        self._at = b""
        """What is being copied, for an error to name."""

    def run(self) -> None:
        copy = self._copy
        while True:
            with copy.changed:
                while not copy.tasks and copy.busy:
                    copy.changed.wait()
                if not copy.tasks or copy.failed is not None:
                    return
                task = copy.tasks.pop()
                copy.busy += 1
            more: list[_Task] = []
            try:
                more = self._carry_out(task)
            except OSError as error:
                copy.failed = _failure(copy.place / os.fsdecode(self._at), error)
            except BaseException as error:  # raised again in the thread of the caller
                copy.failed = error
            finally:
                with copy.changed:
                    copy.tasks += more
                    copy.busy -= 1
                    copy.changed.notify_all()

    def _carry_out(self, task: _Task) -> list[_Task]:
        self._at = path = task.directory
        with ExitStack() as opened:
            try:
                here = opened.enter_context(opened_below(self._copy.source, path))
            except FileNotFoundError:  # it was there when its parent was listed
                return []
            there = opened.enter_context(opened_below(self._copy.target, path))
            if task.files is None:
                return self._copy_directory(path, here, there)
            self._copy_files(path, task.files, here, there)
            return []

    def _copy_directory(self, path: bytes, here: int, there: int) -> list[_Task]:
        copy = self._copy
        copy.directories.append((path, os.fstat(here)))
        with os.scandir(here) as entries:
            found = list(entries)
        files: list[bytes] = []
        more: list[_Task] = []
        for entry in found:
            name = os.fsencode(entry.name)
            if copy.leave_out(path, name):
                continue
            self._at = path + b"/" + name if path else name
            if entry.is_symlink():
                self._copy_link(name, here, there)
            elif entry.is_file(follow_symlinks=False):
                files.append(name)
            elif not entry.is_dir(follow_symlinks=False):
                copy.specials.append(self._at)
            elif not self._is_itself(entry):
                os.mkdir(name, 0o700, dir_fd=there)
                more.append(_Task(self._at, None))
        batches = [files[start : start + _BATCH] for start in range(0, len(files), _BATCH)]
        more += (_Task(path, batch) for batch in batches[1:])
        if batches:
            self._copy_files(path, batches[0], here, there)
        return more

    def _is_itself(self, entry: os.DirEntry[str]) -> bool:
        if entry.inode() != self._copy.itself[1]:
            return False
        return entry.stat(follow_symlinks=False).st_dev == self._copy.itself[0]

    def _copy_files(self, path: bytes, names: list[bytes], here: int, there: int) -> None:
        for name in names:
            self._at = path + b"/" + name if path else name
            try:
                fd = os.open(name, _FILE, dir_fd=here)
            except FileNotFoundError:
                continue
            try:
                self._copy_file(fd, name, there)
            finally:
                os.close(fd)

    def _copy_file(self, fd: int, name: bytes, there: int) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ESTALE, "it changed while it was copied")
        new = os.open(name, _NEW, 0o600, dir_fd=there)
        try:
            if found.st_size:
                self._fill(fd, new, found)
            self._copy.dress(new, found)
        finally:
            os.close(new)

    def _copy_link(self, name: bytes, here: int, there: int) -> None:
        try:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            text = os.readlink(name, dir_fd=here)
        except FileNotFoundError:
            return
        os.symlink(text, name, dir_fd=there)
        if self._copy.is_foreign(found):
            os.chown(name, found.st_uid, found.st_gid, dir_fd=there, follow_symlinks=False)
        times = (found.st_atime_ns, found.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=there, follow_symlinks=False)

    def _fill(self, fd: int, new: int, found: os.stat_result) -> None:
        if found.st_dev not in self._copy.cannot_reflink:
            try:
                _reflink(fd, new)
                return
            except OSError as error:
                # Any other error is about this file alone.
                if error.errno in _NO_REFLINKS:
                    self._copy.cannot_reflink.add(found.st_dev)
        if found.st_size <= _SMALL:
            data = os.read(fd, found.st_size + 1)
            _write_all(new, data)
            if len(data) <= found.st_size:
                return
            _copy_range(fd, new, len(data), sys.maxsize)  # it has grown
        elif found.st_blocks * 512 < found.st_size:
            for start, end in _written(fd, found.st_size):
                _copy_range(fd, new, start, end)
            os.truncate(new, found.st_size)
        else:
            _copy_range(fd, new, 0, found.st_size)


def _reflink(fd: int, new: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.EOPNOTSUPP, "reflinks are made on Linux only")
    ioctl(new, _FICLONE, fd)


def _written(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of a file that are not holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # else only a hole is left
                raise
            return
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


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
            data = os.pread(fd, length, start)
            os.lseek(new, start, os.SEEK_SET)
            _write_all(new, data)
            done = len(data)
        if not done:  # the end, or it has become shorter
            return
        start += done


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _failure(path: Path, error: OSError) -> WorkspaceError:
    failure = WorkspaceError(f"Cannot copy {show(str(path), 200)}: {error.strerror or error}.")
    failure.__cause__ = error
    return failure


def _nothing(directory: bytes, name: bytes) -> bool:
    return False


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failure(path, error) from error
