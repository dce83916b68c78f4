"""The key of a directory, derived from its path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from itertools import count
from pathlib import Path

from agent_checkpoint.records import MAX_KEY_BYTES, Checkpoint
from agent_checkpoint.store.directory_claims import (
    is_owned_by_directory,
    newest_readable,
    path_text,
)
from agent_checkpoint.store.sealed_streams import ForeignEntry
from agent_checkpoint.store.store import Store

WORKSPACE = "workspace:"
"""The prefix of keys that are derived from the path of a directory."""
_NUMBERED = "//"
"""Never part of a normalized path, so a numbered key cannot be the key of another directory."""


def key_of(directory: Path, number: int = 1) -> str:
    """Return the key derived from the path of a directory.

    Args:
        directory: the path of the directory.
        number: greater than 1 if the keys with lower numbers belong to other users or hosts.
    """
    end = "" if number == 1 else f"{_NUMBERED}{number}"
    key = f"{WORKSPACE}{path_text(directory)}{end}"
    if len(key.encode()) > MAX_KEY_BYTES:
        key = f"{WORKSPACE}{hashlib.sha256(os.fsencode(directory)).hexdigest()}{end}"
    return key


def natural_key(key: str) -> str:
    """Return a directory key without the suffix of a numbered key: `//2`, `//3`, …."""
    plain, mark, number = key.rpartition(_NUMBERED)
    return plain if mark and number.isdecimal() else key


def own_key(store: Store, directory: Path, others: Collection[str] = ()) -> str:
    """Return the key of `own_line`. Raises the same errors."""
    return own_line(store, directory, others)[0]


def own_line(
    store: Store, directory: Path, others: Collection[str] = ()
) -> tuple[str, Checkpoint | None]:
    """Return the key of a directory's snapshots, and its newest readable checkpoint.

    This is the key derived from its path. If that key was imported, or written on another host or
    with another secret, it is the first numbered key to which this does not apply.

    Args:
        store: the store.
        directory: the directory.
        others: keys of other directories that were at this path before.

    Raises:
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    for number in count(1):
        key = key_of(directory, number)
        if key in others:
            continue
        newest = newest_readable(store, key)
        if newest is None:
            is_own = not any(isinstance(entry.data, ForeignEntry) for entry in store.entries(key))
        else:
            is_own = is_owned_by_directory(store, newest, directory, key)
        if is_own:
            return key, newest
    raise AssertionError("unreachable: the loop is infinite")
