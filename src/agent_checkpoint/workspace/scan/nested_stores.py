"""Stores among the files. Owns telling one from other directories, whoever it belongs to.

Other programs save there while a workspace is captured and restored: what they were told is on the
disk must not be set back with the files. A store is known by its content: the application id of its
database, or its format record. Names alone prove nothing, since anyone can put files of any name
into a workspace. A store that nobody has written to where it is, such as one that came with a
repository, is data like any other: the first writer makes the lock file before anything else.
"""

from __future__ import annotations

import json
import os

from agent_checkpoint.backends.file_names import FORMAT_FOLDER
from agent_checkpoint.backends.sqlite_files import is_open_here, is_store_database
from agent_checkpoint.workspace.safe_open import Changing, opened_file

_DATABASE, _LOCK = b"store.db", b".lock"
RECORDS = os.fsencode(FORMAT_FOLDER)
"""The directory of a readable store that holds its format record."""
_RECORD = RECORDS + b"/1.json"
MARKS = frozenset({_DATABASE, _DATABASE + b"-wal", _DATABASE + b"-shm", _LOCK, RECORDS})
"""Names whose coming or changing can make a store in use of a directory."""
_LARGEST_RECORD = 1 << 16


def is_store(directory: int, name: bytes) -> bool:
    """Tell whether a directory in another one is a store that is in use."""
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
    except (Changing, OSError, ValueError, RecursionError):
        return False
    # Of any version: a newer store is a store, too.
    return isinstance(record, dict) and all(
        isinstance(record.get(need), int) for need in ("read", "write")
    )
