"""The journals of rewinds in progress, in the state directory of the user. Owns their places.

A store may be shared, or have lost checkpoints. So an interrupted rewind is completed only if this
user's state directory holds its journal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.backends.wrappers.url_options import split_options
from agent_checkpoint.errors import StateError
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.journal import Journal, read_journal
from agent_checkpoint.workspace.safe_open import EntryChanged, opened_file, read_all

_MAX_LEGACY_BYTES = 1 << 16


def store_name(store: Store) -> str:
    """Return the name of a store in journals; wrappers do not make it another store."""
    return split_options(store.backend.properties.url or repr(store.backend))[0]


def write_entry(key: str, journal: Journal) -> None:
    """Write the journal of a rewind of a session. Raises OSError."""
    with _state_dir() as directory:
        if directory is not None:  # else it works, but cannot be completed after a crash
            journal.write(directory, _name(key))


def remove_entry(key: str) -> None:
    """Remove the journal of a session."""
    with _state_dir() as directory:
        if directory is not None:
            with suppress(OSError):  # completing a completed rewind changes nothing
                os.unlink(_name(key), dir_fd=directory)


def read_entry(store: Store, key: str) -> Journal | None:
    """Return the journal of a rewind in a store, or None.

    A journal of version 0.1 names no target: the note of the safety checkpoint does.
    """
    with _state_dir() as directory:
        if directory is None:
            return None
        try:
            journal, is_own = read_journal(directory, _name(key))
            return journal if is_own and journal.store == store_name(store) else None
        except (OSError, EntryChanged, KeyError, TypeError, RecursionError, StateError):
            return None
        except ValueError:
            return _read_legacy(directory, store, key)


def _read_legacy(directory: int, store: Store, key: str) -> Journal | None:
    try:
        with opened_file(directory, os.fsencode(_name(key))) as file:
            data = read_all(file.fd, min(file.stat.st_size, _MAX_LEGACY_BYTES))
    except (OSError, EntryChanged):
        return None
    where, _, safety_id = data.decode("utf-8", "surrogateescape").rstrip("\n").rpartition("\n")
    return Journal("", "", "", None, (), where, safety_id) if where == store_name(store) else None


@contextmanager
def _state_dir() -> Iterator[int | None]:
    directory = open_state_dir()
    try:
        yield directory
    finally:
        if directory is not None:
            os.close(directory)


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.rewind"
