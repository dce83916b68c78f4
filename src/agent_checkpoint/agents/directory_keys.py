"""The keys that belong to a directory. Owns the lookup and its trust rules; opens nothing.

`save` writes a directory to its own key; each checkpoint carries a claim of the directory, sealed
by this user. Sessions and coding agents record their directory under the same seal. A key that
names a directory without a valid seal is unverified.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.session_note import Note, read_note
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.formatting import one_line, shell_quote
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.session_record import is_foreign as is_foreign_session
from agent_checkpoint.store.claims import (
    is_owned_by_directory,
    newest_readable,
    path_text,
    why_not_owned,
)
from agent_checkpoint.store.maintenance.safety_checkpoints import ROLLBACK_KINDS, SAFETY
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.tree_names import WORKSPACE, key_of, natural_key, own_key

_FORK = "fork"
"""The agent in the notes of forks that version 0.1 wrote."""
RESTORED = "restored "
"""The label prefix of the checkpoint that a restore writes."""

_LOOKED_THROUGH = 100


class Owned(NamedTuple):
    """A key that belongs to a directory."""

    ts_ns: int
    key: str
    is_session: bool
    is_line: bool
    """Whether it is the directory's own key, to which `save` writes."""


def keys_of(store: Store, place: Path) -> list[str]:
    """Return the keys of a directory, most recently saved first.

    Raises:
        StorageError: the medium failed.
    """
    return [owned.key for owned in owned_by(store, [place]).get(place, [])]


def owned_by(store: Store, places: list[Path]) -> dict[Path, list[Owned]]:
    """Return the keys of each directory, most recently saved first.

    Raises:
        StorageError: the medium failed.
    """
    found: dict[Path, list[Owned]] = {}
    said = _Said(places)
    by_name = {str(place): place for place in places}
    for key in store.list_keys():
        try:
            head = newest_readable(store, key)
            if head is None:
                continue
            place = said.place(store, head)
            line = place is not None and is_line(store, head, place)
            place = place if line else by_name.get(works_in(store, head) or "")
            if place is not None:
                ts_ns = _last_saved(store, head)
                found.setdefault(place, []).append(
                    Owned(ts_ns, key, SESSION_PART in head.parts, line)
                )
        except UNUSABLE:
            continue  # `verify` reports it
    return {place: sorted(keys, reverse=True) for place, keys in found.items()}


class OtherLine(NamedTuple):
    """A key that claims a directory without a valid seal of this user."""

    ts_ns: int
    key: str
    why: str


def foreign_lines(store: Store, place: Path) -> list[OtherLine]:
    """Return the unverified keys that claim a directory, latest first.

    Raises:
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    found = []
    said = _Said([place])
    for key in store.list_keys():
        head = newest_readable(store, key)
        try:
            if head is None or said.place(store, head) is None or is_line(store, head, place):
                continue
        except UNUSABLE:
            continue  # `verify` reports it
        why = why_not_owned(store, head) or "it was sealed under another secret"
        found.append(OtherLine(head.ts_ns, key, why))
    return sorted(found, reverse=True)


def foreign_words(line: OtherLine) -> str:
    """Return the notice about an unverified key, with the commands to use or inspect it."""
    key = shell_quote(line.key)
    return (
        f"The key {one_line(line.key)} claims this directory but is not trusted: {line.why}. If it "
        "is "
        f"yours, run `agent-checkpoint save --mine {key}` to continue it. To inspect its files, "
        f"run `agent-checkpoint restore {key} --into DIR`."
    )


class _Said:
    """Maps a key to the directory that it claims, verified or not."""

    def __init__(self, places: list[Path]) -> None:
        self._by_key = {key_of(place): place for place in places}
        self._by_path = {path_text(place): place for place in places}

    def place(self, store: Store, head: Checkpoint) -> Path | None:
        if head.claim is not None:
            return self._by_path.get(head.claim.path)
        if natural_key(head.key) in self._by_key:
            return self._by_key[natural_key(head.key)]
        note = _note(store, head)
        return None if note is None or note.agent != _FORK else self._by_path.get(note.root)


def line_around(store: Store, here: Path) -> tuple[Path, str]:
    """Return the nearest directory, upwards from one, that `save` has saved, and its key.

    Raises:
        StorageError: the medium failed.
    """
    around = [here, *here.parents]
    found = owned_by(store, around)
    for place in around:
        for owned in found.get(place, ()):
            if owned.is_line:
                return place, owned.key
    return here, own_key(store, here)


def line_of(store: Store, place: Path) -> str:
    """Return the directory's own key, to which `save` writes. Raises StorageError."""
    found = owned_by(store, [place]).get(place, ())
    key = next((owned.key for owned in found if owned.is_line), None)
    return own_key(store, place) if key is None else key


def is_line(store: Store, head: Checkpoint, place: Path) -> bool:
    """Tell whether a key is a directory's own key, from the newest checkpoint of the key.

    Raises:
        IntegrityError: its note is damaged.
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    key = head.key if natural_key(head.key) == key_of(place) else ""
    if head.claim is not None or key:
        return is_owned_by_directory(store, head, place, key)
    note = _note(store, head)
    if note is None or note.agent != _FORK or note.root != str(place):
        return False
    return note.is_ours  # otherwise saves would go to another user's key


def is_foreign(store: Store, checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint may come from another user. Raises as `is_line` does."""
    if checkpoint.token is None and checkpoint.claim is not None:
        return why_not_owned(store, checkpoint) is not None
    note = read_note(store, checkpoint)
    return not note.is_ours if note is not None else is_foreign_session(store, checkpoint)


def _note(store: Store, checkpoint: Checkpoint) -> Note | None:
    """Return the note of a checkpoint, if it was written for this key."""
    note = read_note(store, checkpoint)
    if note is None:
        return None
    own = f"{note.agent}/{note.session}" if note.agent in AGENTS else note.session
    # A fork made by the API repeats the note of its origin.
    return note if own == checkpoint.key else None


def _last_saved(store: Store, head: Checkpoint) -> int:
    """Return the time of the last save; checkpoints that a restore wrote do not count."""
    if not _is_restore(head):
        return head.ts_ns
    older = islice(store.newest_first(head.key), _LOOKED_THROUGH)
    return next((item.ts_ns for item in older if not _is_restore(item)), 0)


def _is_restore(checkpoint: Checkpoint) -> bool:
    return checkpoint.kind == SAFETY or (
        checkpoint.kind in ROLLBACK_KINDS and (checkpoint.label or "").startswith(RESTORED)
    )


def works_in(store: Store, head: Checkpoint) -> str | None:
    """Return the verified directory of a session or coding agent; None if there is none."""
    if HOOK in head.parts:
        note = _note(store, head)
        return note.root if note is not None and note.is_ours else None
    if SESSION_PART not in head.parts:
        return None
    meta = read_session_record(store, head)
    # A fork that was never opened repeats the record of its origin.
    if meta is None or meta.workspace is None or meta.key != head.key or not meta.is_bound:
        return None
    return os.path.realpath(meta.workspace)


def said_place(store: Store, head: Checkpoint) -> str | None:
    """Return the directory that a key claims, verified or not; None if it claims none.

    Raises:
        IntegrityError: its notes are damaged.
        StorageError: the medium failed.
    """
    note, meta = read_note(store, head), read_session_record(store, head)
    if note is not None:
        return note.root
    return _line_of(head) if meta is None else meta.workspace


def line_place(store: Store, head: Checkpoint) -> str | None:
    """Return the directory whose own key this is, if verified; from its newest checkpoint.

    Raises as `is_line` does.
    """
    return _line_of(head) if why_not_owned(store, head) is None else None


def _line_of(head: Checkpoint) -> str | None:
    """Return the directory that a key claims by its claim or by its name."""
    if head.claim is not None:
        return head.claim.path
    natural = natural_key(head.key)
    path = natural[len(WORKSPACE) :]
    return path if natural.startswith(WORKSPACE) and natural == key_of(Path(path)) else None


def files_belong_to(store: Store, checkpoint: Checkpoint, here: Path) -> Path | None:
    """Return the directory that the files of a checkpoint belong to; None if unknown.

    Only a seal of this user is trusted: a checkpoint from elsewhere must not choose the directory
    to write to. A checkpoint sealed with another secret is accepted if it names the current
    directory, and the preview says so; an imported one is never accepted.
    """
    is_imported = checkpoint.token is not None
    if HOOK in checkpoint.parts:
        note = _note(store, checkpoint)
        if note is not None and (note.is_ours or (Path(note.root) == here and not is_imported)):
            return Path(note.root)
    if SESSION_PART in checkpoint.parts:
        meta = read_session_record(store, checkpoint)
        if meta is not None and meta.workspace is not None and meta.key == checkpoint.key:
            place = Path(os.path.realpath(meta.workspace))
            return place if meta.is_bound or (place == here and not is_imported) else None
    head = newest_readable(store, checkpoint.key) or checkpoint
    around = (here, *here.parents)
    own = next((place for place in around if is_line(store, head, place)), None)
    if own is not None:
        return own
    if head.claim is not None and not head.key.startswith(WORKSPACE):  # a fork
        return Path(head.claim.path) if why_not_owned(store, head) is None else None
    return None if is_imported else _Said([here]).place(store, head)
