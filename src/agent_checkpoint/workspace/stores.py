"""Stores among the files. Owns telling one from other directories, whoever it belongs to.

Other programs save there while a workspace is captured and restored: what they were told is on the
disk must not be set back with the files.
"""

from __future__ import annotations

import os

_DATABASE, _LOCK = b"store.db", b".lock"
_READABLE = b".meta%2fformat"
MARKS = frozenset({_DATABASE, _LOCK, _READABLE})
"""Names by which a store is known."""


def is_store(directory: int, name: bytes) -> bool:
    """Tell whether a directory in another one is a store, by the names in it.

    Its database is not opened: to close that again would take the locks from whoever uses it in
    this process, and two could write at a time.
    """
    return _is_there(directory, name, _READABLE) or (
        _is_there(directory, name, _DATABASE) and _is_there(directory, name, _LOCK)
    )


def _is_there(directory: int, name: bytes, inside: bytes) -> bool:
    return os.access(name + b"/" + inside, os.F_OK, dir_fd=directory)
