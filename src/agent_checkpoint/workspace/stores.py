"""Stores among the files. Owns telling one from other directories, whoever it belongs to.

Other programs save there while a workspace is captured and restored: what they were told is on the
disk must not be set back with the files.
"""

from __future__ import annotations

import os

_DATABASE = b"store.db"
_READABLE = b".meta%2fformat"
MARKS = frozenset({_DATABASE, _READABLE})
"""Names of which one is in every store."""
_MAGIC = b"SQLite format 3\0"


def is_store(directory: int, name: bytes) -> bool:
    """Tell whether a directory in another one is a store.

    Raises:
        OSError: it cannot be told.
    """
    if os.access(name + b"/" + _READABLE, os.F_OK, dir_fd=directory):
        return True
    if not os.access(name + b"/" + _DATABASE, os.R_OK, dir_fd=directory):
        return False
    from agent_checkpoint.backends.sqlite_connections import APPLICATION_ID  # slow to load

    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # it may be a fifo
    fd = os.open(name + b"/" + _DATABASE, flags, dir_fd=directory)
    try:
        head = os.pread(fd, 72, 0) if os.path.isfile(fd) else b""
    finally:
        os.close(fd)
    return head[:16] == _MAGIC and int.from_bytes(head[68:], "big") == APPLICATION_ID
