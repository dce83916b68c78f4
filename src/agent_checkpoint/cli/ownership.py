"""Which keys belong to a directory. Owns how that is found out; opens nothing.

A directory that was saved by itself has a key of its own. Sessions, coding agents and forks that
were put into a directory note where they work in each of their checkpoints.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.cli.hooks.events import AGENTS
from agent_checkpoint.cli.hooks.note import PART as HOOK
from agent_checkpoint.cli.hooks.note import Note, read_note
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.meta import PART, read_meta
from agent_checkpoint.store.safety import MOVES, SAFETY
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.naming import key_of

FORK = "fork"
"""Who notes where the files of a fork are, if it is no session."""
RESTORED = "restored "
"""How the label of a checkpoint begins that a restore of a directory ends with."""

_LOOKED_THROUGH = 100


class Owned(NamedTuple):
    """A key that belongs to a directory."""

    ts_ns: int
    key: str
    is_session: bool
    is_line: bool
    """Whether it is of the directory alone: what `save` adds to."""


def keys_of(store: Store, place: Path) -> list[str]:
    """Return the keys that belong to a directory, the one with the latest checkpoint first.

    Raises:
        StorageError: the medium failed.
    """
    return [owned.key for owned in owned_by(store, [place]).get(place, [])]


def owned_by(store: Store, places: list[Path]) -> dict[Path, list[Owned]]:
    """Return the keys that belong to each of some directories, the latest first.

    Raises:
        StorageError: the medium failed.
    """
    found: dict[Path, list[Owned]] = {}
    own = {key_of(place): place for place in places}
    by_name = {str(place): place for place in places}
    for key in store.list_keys():
        try:
            head = store.head(key)
            if head is None:
                continue
            place = own.get(key) or by_name.get(works_in(store, head) or "")
            if place is not None:
                ts_ns = _last_saved(store, head)
                owned = Owned(ts_ns, key, PART in head.parts, is_line(store, head, place))
                found.setdefault(place, []).append(owned)
        except UNUSABLE:
            continue  # `verify` tells about it
    return {place: sorted(keys, reverse=True) for place, keys in found.items()}


def line_around(store: Store, here: Path) -> tuple[Path, str]:
    """Return the nearest directory that was saved by itself, and its key: here if there is none.

    Raises:
        StorageError: the medium failed.
    """
    around = [here, *here.parents]
    found = owned_by(store, around)
    for place in around:
        for owned in found.get(place, ()):
            if owned.is_line:
                return place, owned.key
    return here, key_of(here)


def line_of(store: Store, place: Path) -> str:
    """Return the key that a directory is saved to. Raises StorageError."""
    found = owned_by(store, [place]).get(place, ())
    return next((owned.key for owned in found if owned.is_line), key_of(place))


def is_line(store: Store, checkpoint: Checkpoint, place: Path) -> bool:
    """Tell whether a checkpoint is of a directory alone, by its path or as a fork.

    Raises:
        IntegrityError: its note is damaged.
        StorageError: the medium failed.
    """
    if checkpoint.key == key_of(place):
        return True
    note = _note(store, checkpoint)
    if note is None or note.agent != FORK or note.root != str(place):
        return False
    return note.is_ours  # else what is saved here would go to the key of another


def _note(store: Store, checkpoint: Checkpoint) -> Note | None:
    """Return where a checkpoint says that it works, if that is its own word."""
    note = read_note(store, checkpoint)
    if note is None:
        return None
    own = f"{note.agent}/{note.session}" if note.agent in AGENTS else note.session
    # One that was forked off by a program repeats what the other key noted.
    return note if own == checkpoint.key else None


def _last_saved(store: Store, head: Checkpoint) -> int:
    """Return when somebody last saved something; what a restore or a fork put aside is not that."""
    if not _is_restore(head):
        return head.ts_ns
    older = islice(store.newest_first(head.key), _LOOKED_THROUGH)
    return next((item.ts_ns for item in older if not _is_restore(item)), 0)


def _is_restore(checkpoint: Checkpoint) -> bool:
    return checkpoint.kind == SAFETY or (
        checkpoint.kind in MOVES and (checkpoint.label or "").startswith(RESTORED)
    )


def works_in(store: Store, head: Checkpoint) -> str | None:
    """Return the directory that a checkpoint's session works in, if it says so."""
    if HOOK in head.parts:
        note = _note(store, head)
        return note.root if note is not None and note.is_ours else None
    if PART not in head.parts:
        return None
    meta = read_meta(store, head)
    # A fork that nobody has opened yet repeats what the other session noted.
    if meta is None or meta.workspace is None or meta.key != head.key or not meta.is_bound:
        return None
    return os.path.realpath(meta.workspace)


def files_belong_to(store: Store, checkpoint: Checkpoint, here: Path) -> Path | None:
    """Return the directory that the files of a checkpoint are those of; None if nobody can tell.

    What a checkpoint says about itself counts if it was this user who said so: one that came from
    elsewhere must not choose what is written to. Else it counts in that very directory.
    """
    around = (here, *here.parents)
    if HOOK in checkpoint.parts:
        note = _note(store, checkpoint)
        if note is not None and (note.is_ours or Path(note.root) in around):
            return Path(note.root)
    if PART in checkpoint.parts:
        meta = read_meta(store, checkpoint)
        if meta is not None and meta.workspace is not None and meta.key == checkpoint.key:
            place = Path(os.path.realpath(meta.workspace))
            return place if meta.is_bound or place in around else None
    return next((place for place in around if key_of(place) == checkpoint.key), None)
