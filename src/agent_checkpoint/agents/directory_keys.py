"""Finds the keys that belong to a directory. Owns the trust rules; does not open workspaces.

`save` writes a directory to its own key. Each checkpoint contains a claim: a record that binds the
key to the directory, signed with an HMAC under this user's secret. Sessions and coding agents sign
their directory in the same way. A key whose claim has no valid HMAC is unverified. A directory that
was moved or renamed keeps its keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.moved_directories import (
    MovedDirectories,
    SavedPlace,
    is_still_at,
    moved_hint,
    present_path,
    record_move,
)
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.session_note import SessionNote, read_note
from agent_checkpoint.errors import UNUSABLE, InvalidInputError
from agent_checkpoint.formatting import one_line, shell_quote
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import ROLLBACK_KINDS, Checkpoint, Kind, short_repr
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.session_record import is_foreign as is_foreign_session
from agent_checkpoint.store.directory_claims import (
    newest_readable,
    path_text,
    why_not_owned,
)
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.directory_key import WORKSPACE, key_of, natural_key, own_key

_FORK = "fork"
"""The agent name in notes of forks written by version 0.1."""
RESTORED = "restored "
"""The label prefix of the checkpoint that a restore writes."""

_MAX_RESTORES_SKIPPED = 100
_MOST_NAMED = 3


class DirectoryKey(NamedTuple):
    """A key that belongs to a directory."""

    ts_ns: int
    key: str
    is_session: bool
    is_directory_key: bool
    """Whether it is the directory's own key, to which `save` writes."""


def keys_of_directory(store: Store, directory: Path) -> list[str]:
    """Return the keys of a directory, most recently saved first.

    Raises:
        StorageError: the medium failed.
    """
    return [entry.key for entry in find_directory_keys(store, [directory]).get(directory, [])]


def find_directory_keys(store: Store, directories: list[Path]) -> dict[Path, list[DirectoryKey]]:
    """Return the keys of each directory, most recently saved first.

    Raises:
        StorageError: the medium failed.
    """
    return _find(store, directories)[0]


def _find(store: Store, directories: list[Path]) -> tuple[dict[Path, list[DirectoryKey]], set[str]]:
    """Return the keys of each directory, and those of other directories that were there before."""
    moved, by_key = MovedDirectories(directories), _by_key(directories)
    by_name = _by_name(directories)
    rows: list[tuple[Path, DirectoryKey, bool]] = []
    arrived: set[Path] = set()
    others: set[str] = set()
    for key in store.list_keys():
        try:
            head = newest_readable(store, key)
            if head is None:
                continue
            place = _claimed_place(store, head, by_key)
            is_own = (
                place is not None
                and (place.path in by_name or moved.may_be_moved(place))
                and _is_verified(store, head)
            )
            place = place if is_own else _session_place(store, head)
            if place is None:
                continue
            before = by_name.get(place.path)
            directory = by_name.get(moved.present_path(place))
            if before is not None and before != directory:
                others.add(key)
            if directory is None:
                continue
            if before != directory or (is_still_at(place) and moved.has_left(place)):
                arrived.add(directory)
            entry = DirectoryKey(_last_saved(store, head), key, SESSION_PART in head.parts, is_own)
            rows.append((directory, entry, before == directory and not is_still_at(place)))
        except UNUSABLE:
            continue  # `verify` reports it
    found: dict[Path, list[DirectoryKey]] = {}
    for directory, entry, is_replaced in sorted(rows, key=lambda row: row[1], reverse=True):
        if is_replaced and directory in arrived:  # what was moved here is not what was here before
            others.add(entry.key)
        else:
            found.setdefault(directory, []).append(entry)
    return found, others


class UnverifiedKey(NamedTuple):
    """A key that claims a directory without a valid HMAC of this user."""

    ts_ns: int
    key: str
    why: str


def unverified_keys(store: Store, directory: Path) -> list[UnverifiedKey]:
    """Return the unverified keys that claim a directory, most recently saved first.

    Raises:
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    found = []
    for key in store.list_keys():
        head = newest_readable(store, key)
        try:
            # A verified one that is not of this directory is of one that was moved.
            if head is None or not _claims(store, head, directory) or _is_verified(store, head):
                continue
        except UNUSABLE:
            continue  # `verify` reports it
        why = why_not_owned(store, head) or "it was signed with another secret"
        found.append(UnverifiedKey(head.ts_ns, key, why))
    return sorted(found, reverse=True)


def unverified_notice(unverified: UnverifiedKey) -> str:
    """Return the notice about an unverified key, with the commands to use or inspect it."""
    key = shell_quote(unverified.key)
    return (
        f"The key {one_line(unverified.key)} claims this directory but is not trusted: "
        f"{unverified.why}. If it is yours, run `agent-checkpoint save --mine {key}` to continue "
        f"it. To inspect its files, run `agent-checkpoint restore {key} --into DIR`."
    )


def bind_moved(store: Store, old: str, directory: Path) -> None:
    """Record that a saved directory is now at another path, as its user says.

    Args:
        store: the store with its checkpoints.
        old: the path that it had.
        directory: the directory.

    Raises:
        InvalidInputError: it is still there, or has no checkpoints.
        StorageError: the move cannot be recorded, or the medium failed.
    """
    places = {place for _, place in _verified_places(store) if place.path == old}
    gone = {place for place in places if not is_still_at(place)}
    name = short_repr(old, 200)
    if not places:
        raise InvalidInputError(f"No checkpoint of yours is of {name}.")
    if not gone:
        raise InvalidInputError(
            f"{name} is still there. A copy has a history of its own: run `agent-checkpoint save`."
        )
    for place in gone:
        record_move(place, str(directory))


def gone_notice(store: Store) -> str:
    """Return what to do if a directory without checkpoints was moved; empty if none is missing.

    Raises:
        StorageError: the medium failed.
    """
    moved = MovedDirectories()
    latest = sorted(_verified_places(store), reverse=True)
    gone = [
        place.path
        for _, place in latest
        if moved.present_path(place) == place.path and not is_still_at(place)
    ]
    names = list(dict.fromkeys(gone))[:_MOST_NAMED]
    if not names:
        return ""
    return f" Saved, and no longer there: {', '.join(map(one_line, names))}. {moved_hint(names[0])}"


def _verified_places(store: Store) -> Iterator[tuple[int, SavedPlace]]:
    """Iterate over the directories of this user's keys, each with the time of its last save."""
    for key in store.list_keys():
        with suppress(*UNUSABLE):  # `verify` reports it
            head = newest_readable(store, key)
            if head is None:
                continue
            place = _claimed_place(store, head, {})
            if place is None or not _is_verified(store, head):
                place = _session_place(store, head)
            if place is not None:
                yield head.ts_ns, place


def _by_key(directories: Iterable[Path]) -> dict[str, Path]:
    return {key_of(directory): directory for directory in directories}


def _by_name(directories: Iterable[Path]) -> dict[str, Path]:
    """Return directories by their paths, as claims and as notes write them."""
    return {write(directory): directory for directory in directories for write in (str, path_text)}


def _claimed_place(store: Store, head: Checkpoint, by_key: dict[str, Path]) -> SavedPlace | None:
    """Return the directory whose own key this claims to be, verified or not.

    Long paths are not in the name of the key, so `by_key` has the directories in question.
    """
    if head.claim is not None:
        return SavedPlace(head.claim.path, head.claim.identity)
    natural = natural_key(head.key)
    if natural in by_key:
        return SavedPlace(path_text(by_key[natural]), "")
    path = _claimed_path(head)
    if path is not None:
        return SavedPlace(path, "")
    note = _own_note(store, head)
    return None if note is None or note.agent != _FORK else SavedPlace(note.root, "")


def _claims(store: Store, head: Checkpoint, directory: Path) -> bool:
    """Return whether a key claims to be a directory's own, verified or not."""
    place = _claimed_place(store, head, _by_key([directory]))
    return place is not None and place.path in _by_name([directory])


def _is_verified(store: Store, head: Checkpoint) -> bool:
    """Return whether the claim of a key is this user's."""
    note = None if head.claim is not None else _own_note(store, head)
    if note is not None and note.agent == _FORK:
        return note.is_ours  # otherwise saves would go to another user's key
    return why_not_owned(store, head) is None


def nearest_tracked_dir(store: Store, here: Path) -> tuple[Path, str]:
    """Return the nearest directory saved by `save`, from `here` upwards, and its key.

    Raises:
        StorageError: the medium failed.
    """
    around = [here, *here.parents]
    found, others = _find(store, around)
    for directory in around:
        for entry in found.get(directory, ()):
            if entry.is_directory_key:
                return directory, entry.key
    return here, own_key(store, here, others)


def directory_key(store: Store, directory: Path) -> str:
    """Return the directory's own key, to which `save` writes. Raises StorageError."""
    found, others = _find(store, [directory])
    own = (entry.key for entry in found.get(directory, ()) if entry.is_directory_key)
    return next(own, None) or own_key(store, directory, others)


def is_directory_key(store: Store, head: Checkpoint, directory: Path) -> bool:
    """Return whether a key is a directory's own key, from the newest checkpoint of the key.

    Raises:
        IntegrityError: its note is damaged.
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    place = _claimed_place(store, head, _by_key([directory]))
    if place is None or not _is_verified(store, head):
        return False
    return present_path(place, [directory]) in _by_name([directory])


def is_foreign(store: Store, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint may come from another user.

    Raises the same errors as `is_directory_key`.
    """
    if checkpoint.token is None and checkpoint.claim is not None:
        return why_not_owned(store, checkpoint) is not None
    note = read_note(store, checkpoint)
    return not note.is_ours if note is not None else is_foreign_session(store, checkpoint)


def _own_note(store: Store, checkpoint: Checkpoint) -> SessionNote | None:
    """Return the note of a checkpoint, if it was written for this key."""
    note = read_note(store, checkpoint)
    if note is None:
        return None
    own = f"{note.agent}/{note.session}" if note.agent in AGENTS else note.session
    # A fork created by the API contains a copy of the note of its origin.
    return note if own == checkpoint.key else None


def _last_saved(store: Store, head: Checkpoint) -> int:
    """Return the time of the last save; checkpoints that a restore wrote do not count."""
    if not _is_restore(head):
        return head.ts_ns
    older = islice(store.newest_first(head.key), _MAX_RESTORES_SKIPPED)
    return next((item.ts_ns for item in older if not _is_restore(item)), 0)


def _is_restore(checkpoint: Checkpoint) -> bool:
    return checkpoint.kind == Kind.SAFETY or (
        checkpoint.kind in ROLLBACK_KINDS and (checkpoint.label or "").startswith(RESTORED)
    )


def session_directory(store: Store, head: Checkpoint, near: Iterable[Path] = ()) -> str | None:
    """Return the verified directory of a session or coding agent; None if there is none.

    Args:
        store: the store.
        head: the newest checkpoint of the key.
        near: directories that may be it, if it was moved.
    """
    place = _session_place(store, head)
    return None if place is None else present_path(place, near)


def _session_place(store: Store, head: Checkpoint) -> SavedPlace | None:
    if HOOK in head.parts:
        note = _own_note(store, head)
        return None if note is None or not note.is_ours else note.place
    if SESSION_PART not in head.parts:
        return None
    meta = read_session_record(store, head)
    # A fork that was never opened contains a copy of the record of its origin.
    if meta is None or meta.workspace is None or meta.key != head.key or not meta.is_bound:
        return None
    return SavedPlace(os.path.realpath(meta.workspace), "")


def claimed_directory(store: Store, head: Checkpoint) -> str | None:
    """Return the directory that a key claims, verified or not; None if it claims none.

    Raises:
        IntegrityError: its notes are damaged.
        StorageError: the medium failed.
    """
    note, meta = read_note(store, head), read_session_record(store, head)
    if note is not None:
        return note.root
    return _claimed_path(head) if meta is None else meta.workspace


def tracked_directory(store: Store, head: Checkpoint) -> str | None:
    """Return the directory whose own key this is, if verified, given its newest checkpoint.

    Raises the same errors as `is_directory_key`.
    """
    path = _claimed_path(head)
    if path is None or why_not_owned(store, head) is not None:
        return None
    return present_path(SavedPlace(path, "" if head.claim is None else head.claim.identity))


def _claimed_path(head: Checkpoint) -> str | None:
    """Return the directory of a key, from its claim or from its name."""
    if head.claim is not None:
        return head.claim.path
    natural = natural_key(head.key)
    path = natural[len(WORKSPACE) :]
    return path if natural.startswith(WORKSPACE) and natural == key_of(Path(path)) else None


def trusted_directory(store: Store, checkpoint: Checkpoint) -> Path | None:
    """Return the directory of the files of a checkpoint, if this user signed it; else None.

    Raises the same errors as `is_directory_key`.
    """
    found = session_directory(store, checkpoint)
    if found is None:
        head = newest_readable(store, checkpoint.key) or checkpoint
        found = tracked_directory(store, head)
    return None if found is None else Path(found)


def directory_of_files(store: Store, checkpoint: Checkpoint, here: Path) -> Path | None:
    """Return the directory that the files of a checkpoint belong to; None if unknown.

    Only an HMAC of this user is trusted: an untrusted checkpoint must not choose the directory to
    write to. A checkpoint signed with another secret is accepted if its directory is the current
    one, and the preview reports this. An imported checkpoint is never accepted.
    """
    is_imported = checkpoint.token is not None
    if HOOK in checkpoint.parts:
        note = _own_note(store, checkpoint)
        if note is not None and (note.is_ours or (Path(note.root) == here and not is_imported)):
            around = (here, *here.parents)
            return Path(present_path(note.place, around) if note.is_ours else note.root)
    if SESSION_PART in checkpoint.parts:
        meta = read_session_record(store, checkpoint)
        if meta is not None and meta.workspace is not None and meta.key == checkpoint.key:
            directory = Path(os.path.realpath(meta.workspace))
            return directory if meta.is_bound or (directory == here and not is_imported) else None
    head = newest_readable(store, checkpoint.key) or checkpoint
    around = (here, *here.parents)
    own = next(
        (directory for directory in around if is_directory_key(store, head, directory)), None
    )
    if own is not None:
        return own
    if head.claim is not None and not head.key.startswith(WORKSPACE):  # a fork
        path = tracked_directory(store, head)
        return None if path is None else Path(path)
    return here if not is_imported and _claims(store, head, here) else None
