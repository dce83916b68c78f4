"""Renames that overwrite nothing. Owns the system calls, and what is done where they are missing.

A plain rename drops whatever has come to its target since somebody looked. An exchange drops
nothing, and a rename to a new name fails if the name is taken.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from agent_checkpoint.backends.disk.fork_safety import block_forks

_NOREPLACE, _EXCHANGE = (4, 2) if sys.platform == "darwin" else (1, 2)
_NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276}
"""Of the system call, for C libraries that have no function for it."""
_MISSING = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What kernels and file systems say that do not know the flags."""
_NO_LINKS = frozenset({*_MISSING, errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EACCES})

Call = Callable[[int, bytes, int, bytes, int], int]


class Entry(NamedTuple):
    """A name in an open directory."""

    name: bytes
    fd: int

    def stat(self) -> os.stat_result:
        """Look at what is there, and follow no link. Raises OSError."""
        return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self) -> None:
        """Remove a file or link. Raises OSError."""
        os.unlink(self.name, dir_fd=self.fd)


class ExchangeUnsupported(OSError):
    """Entries cannot be exchanged here."""


def exchange(one: Entry, other: Entry) -> None:
    """Exchange two entries in one step, whatever they are.

    Raises:
        ExchangeUnsupported: the kernel or the file system cannot; nothing was changed.
        OSError: one is not there, or it is not allowed.
    """
    try:
        _rename(one, other, _EXCHANGE)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        raise ExchangeUnsupported(error.errno, error.strerror) from error


def put(source: Entry, target: Entry) -> None:
    """Rename an entry of ours to a name that is free, where others may be as well.

    Where the file system knows no such rename, the name is linked first, which fails in the same
    way. Where it has no links either, a look before the rename is all that there is.

    Raises:
        FileExistsError: the name is taken.
        OSError: it cannot be renamed.
    """
    if _renamed_to_new(source, target):
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
        _look_and_rename(source, target)
    else:
        source.unlink()  # nobody else knows this name


def take(source: Entry, target: Entry) -> None:
    """Rename whatever is at a name to a free one of ours.

    Raises:
        FileExistsError: ours is not free.
        OSError: it cannot be renamed.
    """
    if not _renamed_to_new(source, target):
        _look_and_rename(source, target)


def _renamed_to_new(source: Entry, target: Entry) -> bool:
    """Rename to a free name; False if that is not known here."""
    try:
        _rename(source, target, _NOREPLACE)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        return False
    return True


def _look_and_rename(source: Entry, target: Entry) -> None:
    try:
        target.stat()
    except FileNotFoundError:
        os.rename(source.name, target.name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _rename(source: Entry, target: Entry, flags: int) -> None:
    number = _call()(source.fd, source.name, target.fd, target.name, flags)
    if number != 0:
        raise OSError(number, os.strerror(number))


@cache
def _call() -> Call:
    """Return what makes the call and gives its error, or 0; without a way to, it says so."""
    try:
        with block_forks():
            import ctypes  # slow to load, and only restores need it
    except ImportError:  # a Python that was built without it
        return lambda *_: errno.ENOSYS
    # Without a signature, ctypes passes bytes and small numbers as C does: no types are built.
    library = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "renameat2", None) or getattr(library, "renameatx_np", None)
    number = _NUMBERS.get(os.uname().machine)
    if found is None and sys.platform == "linux" and number is not None and sys.maxsize > 1 << 32:
        found = partial(library.syscall, ctypes.c_long(number))
    if found is None:
        return lambda *_: errno.ENOSYS
    return lambda *arguments: ctypes.get_errno() if found(*arguments) != 0 else 0
