"""The identity of a directory, which a rename keeps and a copy does not. Owns its form."""

from __future__ import annotations

import os
import stat
import struct
import time
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.backends.os_support.os_fork import block_forks

if TYPE_CHECKING:
    import ctypes

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_STATX_BTIME = 0x800
_STATX_BYTES, _BTIME_OFFSET = 256, 80
_NS = 10**9
_SETTLED_NS = 2 * _NS
"""A directory that took the place of another later than this has other timestamps."""


def identity_of(path: str | Path, known: str = "") -> str:
    """Return device, inode and creation time of a directory; empty if they are not known.

    An inode number alone is no evidence: file systems reuse it for the next new directory. A
    symbolic link has no identity.

    Args:
        path: the directory.
        known: the identity of a directory that has been kept open, so that its inode is evidence.
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            return ""
        if known.startswith(f"{found.st_dev}:{found.st_ino}:"):
            return known  # without loading ctypes
        if found.st_ctime_ns < time.time_ns() - _SETTLED_NS:
            stamps = found.st_mtime_ns, found.st_ctime_ns
            born = _known_creation_time(os.fspath(path), found.st_dev, found.st_ino, *stamps)
        else:
            born = _creation_time(path)
    except (OSError, ValueError):  # there is none, or the path contains a NUL
        return ""
    return f"{found.st_dev}:{found.st_ino}:{born}" if born else ""


@lru_cache(maxsize=64)
def _known_creation_time(path: str, device: int, inode: int, mtime: int, ctime: int) -> int:
    """Return the creation time of the directory at a path that has had these properties since."""
    return _creation_time(path)


def _creation_time(path: str | Path) -> int:
    """Return the creation time in nanoseconds; 0 if the system does not tell it. Raises OSError."""
    libc = _libc()
    if libc is None:
        return int(getattr(os.lstat(path), "st_birthtime", 0) * _NS)
    with block_forks():
        import ctypes

    data = ctypes.create_string_buffer(_STATX_BYTES)
    flags = ctypes.c_int(_AT_SYMLINK_NOFOLLOW)
    if libc.statx(_AT_FDCWD, os.fsencode(path), flags, ctypes.c_uint(_STATX_BTIME), data):
        raise OSError("statx failed")
    (mask,) = struct.unpack_from("=I", data)
    seconds, nanoseconds = struct.unpack_from("=qI", data, _BTIME_OFFSET)
    return seconds * _NS + nanoseconds if mask & _STATX_BTIME else 0


@cache
def _libc() -> ctypes.CDLL | None:
    """Return the C library, if it has statx."""
    try:
        with block_forks():
            import ctypes  # slow to load, and not needed without a directory
    except ImportError:  # some Python builds lack it
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "statx") else None
