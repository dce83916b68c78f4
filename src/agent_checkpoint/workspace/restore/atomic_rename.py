"""Renames that never overwrite. Owns the system calls and their fallbacks.

A plain rename deletes an entry that was created at the target after the last check. An exchange
deletes nothing, and a no-replace rename fails if the target exists.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache, partial

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.safe_open import exists

_NOREPLACE, _EXCHANGE = (4, 2) if sys.platform == "darwin" else (1, 2)
_SYSCALL_NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276}
"""Number of the system call `renameat2` by machine, for C libraries without the function."""
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""Errors of kernels and file systems that do not support the flags."""
_NO_LINKS = frozenset({*_UNSUPPORTED, errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EACCES})

Rename = Callable[[int, bytes, int, bytes, int], int]


class Entry(NamedTuple):
    """A name in an open directory."""

    name: bytes
    fd: int

    def stat(self) -> os.stat_result:
        """Return the stat result of the entry, without following links. Raises OSError."""
        return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self) -> None:
        """Remove a file or link. Raises OSError."""
        os.unlink(self.name, dir_fd=self.fd)


class ExchangeUnsupported(OSError):
    """The kernel or the file system cannot exchange entries."""


def exchange(one: Entry, other: Entry) -> None:
    """Exchange two entries of any type atomically.

    Raises:
        ExchangeUnsupported: the kernel or the file system does not support it; nothing was changed.
        OSError: an entry does not exist, or permission is denied.
    """
    try:
        _rename(one, other, _EXCHANGE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        raise ExchangeUnsupported(error.errno, error.strerror) from error


def put(source: Entry, target: Entry) -> None:
    """Rename `source` without replacing `target`, in a directory that other processes write to.

    Uses RENAME_NOREPLACE. Falls back to link(2), which also fails if the target exists, and then to
    a check before the rename, which is racy.

    Raises:
        FileExistsError: `target` exists.
        OSError: the rename failed.
    """
    if _rename_no_replace(source, target):
        return
    try:
        os.link(
            source.name,
            target.name,
            src_dir_fd=source.fd,
            dst_dir_fd=target.fd,
            follow_symlinks=False,
        )
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _check_and_rename(source, target)
    else:
        source.unlink()  # no other process uses this name


def take(source: Entry, target: Entry) -> None:
    """Rename `source` to `target`, a private name, without replacing an existing entry.

    Raises:
        FileExistsError: `target` exists.
        OSError: the rename failed.
    """
    if not _rename_no_replace(source, target):
        _check_and_rename(source, target)


def _rename_no_replace(source: Entry, target: Entry) -> bool:
    """Rename without replacing; return False if that is unsupported."""
    try:
        _rename(source, target, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _check_and_rename(source: Entry, target: Entry) -> None:
    if exists(target.name, target.fd):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(source.name, target.name, src_dir_fd=source.fd, dst_dir_fd=target.fd)


def _rename(source: Entry, target: Entry, flags: int) -> None:
    number = _rename_function()(source.fd, source.name, target.fd, target.name, flags)
    if number != 0:
        raise OSError(number, os.strerror(number))


@cache
def _rename_function() -> Rename:
    """Return a function that calls renameat2 and returns its errno or 0; ENOSYS if unsupported."""
    try:
        with block_forks():
            import ctypes  # slow to load, and only restores need it
    except ImportError:  # a Python built without it
        return lambda *_: errno.ENOSYS
    # Without a signature, ctypes passes bytes and small numbers as C does.
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "renameat2", None) or getattr(library, "renameatx_np", None)
    number = _SYSCALL_NUMBERS.get(os.uname().machine)
    if (
        function is None
        and sys.platform == "linux"
        and number is not None
        and sys.maxsize > 1 << 32
    ):
        function = partial(library.syscall, ctypes.c_long(number))
    if function is None:
        return lambda *_: errno.ENOSYS
    return lambda *arguments: ctypes.get_errno() if function(*arguments) != 0 else 0
