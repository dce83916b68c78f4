"""Which keys belong to a directory. Owns how that is found out; opens nothing.

A directory that was saved by itself has a key of its own. Sessions and coding agents note where
they work in each of their checkpoints.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent_checkpoint.cli.hooks.note import PART as HOOK
from agent_checkpoint.cli.hooks.note import read_note
from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.meta import PART, read_meta
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.naming import key_of


def keys_of(store: Store, place: Path) -> list[str]:
    """Return the keys that belong to a directory, the one with the latest checkpoint first.

    Raises:
        StorageError: the medium failed.
    """
    own = key_of(place)
    found: list[tuple[int, str]] = []
    for key in store.list_keys():
        try:
            head = store.head(key)
            if head is not None and (key == own or works_in(store, head) == str(place)):
                found.append((head.ts_ns, key))
        except (IntegrityError, FormatError):
            continue  # `verify` tells about it
    return [key for _, key in sorted(found, reverse=True)]


def works_in(store: Store, head: Checkpoint) -> str | None:
    """Return the directory that a checkpoint's session works in, if it says so."""
    if HOOK in head.parts:
        note = read_note(store, head)
        return note.root if note is not None and note.is_ours else None
    if PART not in head.parts:
        return None
    meta = read_meta(store, head)
    return None if meta is None or meta.workspace is None else os.path.realpath(meta.workspace)
