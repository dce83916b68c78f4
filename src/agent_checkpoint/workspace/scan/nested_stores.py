"""Recognizes checkpoint stores in use inside a workspace.

Other programs may save to such a store during a scan or a restore, and a restore must not roll back
checkpoints that the store has acknowledged. A store is recognized by its content: the application
id of its database, or its format record. File names are not sufficient, because a project may
contain files of any name. A store without a lock file is plain data, for example one that is
checked in to a repository: the first writer creates the lock file before anything else.
"""

from __future__ import annotations

import json
import os

from agent_checkpoint.backends.file_names import FORMAT_FOLDER
from agent_checkpoint.backends.sqlite_files import is_open_here, is_store_database
from agent_checkpoint.workspace.safe_open import EntryChanged, opened_file

_DATABASE, _LOCK = b"store.db", b".lock"
FORMAT_DIR = os.fsencode(FORMAT_FOLDER)
"""The directory of a file store that holds its format record."""
_RECORD = FORMAT_DIR + b"/1.json"
STORE_NAMES = frozenset({_DATABASE, _DATABASE + b"-wal", _DATABASE + b"-shm", _LOCK, FORMAT_DIR})
"""Names that, when created or changed, can make a directory a store in use."""
_LARGEST_RECORD = 1 << 16


def is_store(directory: int, name: bytes) -> bool:
    """Return whether a subdirectory of an open directory is a store in use."""
    database = name + b"/" + _DATABASE
    if is_open_here(directory, database):
        return True
    if not os.access(name + b"/" + _LOCK, os.F_OK, dir_fd=directory):
        return False
    return is_store_database(directory, database) or _is_format_record(
        directory, name + b"/" + _RECORD
    )


def _is_format_record(directory: int, path: bytes) -> bool:
    try:
        with opened_file(directory, path) as file:
            record = json.loads(os.read(file.fd, _LARGEST_RECORD))
    except (EntryChanged, OSError, ValueError, RecursionError):
        return False
    # Any version: a store of a newer format is also a store.
    return isinstance(record, dict) and all(
        isinstance(record.get(member), int) for member in ("read", "write")
    )
