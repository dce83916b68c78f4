"""What backends on a POSIX file system share.

Owns durable writes, the store lock and the mapping of OS errors; knows no layout and no format.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.errors import StorageError

_PASSING = {errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ESTALE}
_ADVICE = {
    errno.ENOSPC: "Free some space; what was saved before is intact.",
    errno.EDQUOT: "Free some of your quota; what was saved before is intact.",
    errno.EACCES: "Check who owns the store.",
    errno.EROFS: "The file system is read-only.",
}


@contextmanager
def os_errors(action: str) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError that says what could not be done.

    Raises:
        StorageError: instead of the OSError, which is its cause.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        advice = _ADVICE.get(error.errno or 0, "")
        raise StorageError(
            f"Cannot {action}: {reason}. {advice}".strip(), retryable=error.errno in _PASSING
        ) from error


@contextmanager
def locked(lock_file: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock: shared by savers, exclusive for what deletes. Released also by a crash.

    Each use opens the file anew, because a lock belongs to the open file: that makes it work
    between threads as well as between processes. It is taken off before the file is closed: a
    process that another thread forked meanwhile has the file open too, and must not keep the lock.

    Raises:
        OSError: the file system refuses.
    """
    fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def write_new(directory: Path, data: bytes) -> Path:
    """Write a durable file of a new random name into the directory, for the caller to link.

    Raises:
        OSError: the file system failed; no file is left.
    """
    path = directory / secrets.token_hex(12)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def make_directory(path: Path) -> None:
    """Make a private directory and its parents, durably; one that exists is left as it is.

    Raises:
        OSError: the file system refuses.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable.

    Raises:
        OSError: the file system failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
