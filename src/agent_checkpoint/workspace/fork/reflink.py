"""Reflinks: files that share their content with another until one of them is changed."""

from __future__ import annotations

import errno
import sys
from fcntl import ioctl
from pathlib import Path

from agent_checkpoint.backends.os_support.os_fork import block_forks

_FICLONE = 0x40049409


def can_reflink(directory: Path) -> bool:
    """Return whether the file system of a directory supports reflinks, by creating one."""
    with block_forks():
        from tempfile import TemporaryFile  # slow to load: the program in view.py has no use for it

    data = b"x" * 4096  # a smaller file may be stored in the inode
    try:
        with TemporaryFile(dir=directory) as file, TemporaryFile(dir=directory) as new:
            file.write(data)
            file.flush()
            reflink(file.fileno(), new.fileno())
            return new.read() == data
    except OSError:
        return False


def reflink(fd: int, new: int) -> None:
    """Make a new file share the content of another. Raises OSError."""
    if not sys.platform.startswith("linux"):
        raise OSError(errno.EOPNOTSUPP, "reflinks are supported on Linux only")
    ioctl(new, _FICLONE, fd)
