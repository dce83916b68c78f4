"""Finds the keys that belong to a directory. Owns the trust rules; does not open workspaces.

`save` writes a directory to its own key. Each checkpoint contains a claim: a record that binds the
key to the directory, signed with an HMAC under this user's secret. Sessions and coding agents sign
their directory in the same way. A key whose claim has no valid HMAC is unverified.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.session_note import SessionNote, read_note
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.formatting import one_line, shell_quote
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import ROLLBACK_KINDS, Checkpoint, Kind
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.session_record import is_foreign as is_foreign_session
from agent_checkpoint.store.directory_claims import (
    is_owned_by_directory,
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
    found: dict[Path, list[DirectoryKey]] = {}
    claims = _ClaimedDirectories(directories)
    by_name = {str(directory): directory for directory in directories}
    for key in store.list_keys():
        try:
            head = newest_readable(store, key)
            if head is None:
                continue
            directory = claims.directory(store, head)
            is_own = directory is not None and is_directory_key(store, head, directory)
            directory = directory if is_own else by_name.get(session_directory(store, head) or "")
            if directory is not None:
                ts_ns = _last_saved(store, head)
                found.setdefault(directory, []).append(
                    DirectoryKey(ts_ns, key, SESSION_PART in head.parts, is_own)
                )
        except UNUSABLE:
            continue  # `verify` reports it
    return {directory: sorted(keys, reverse=True) for directory, keys in found.items()}


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
    claims = _ClaimedDirectories([directory])
    for key in store.list_keys():
        head = newest_readable(store, key)
        try:
            if (
                head is None
                or claims.directory(store, head) is None
                or is_directory_key(store, head, directory)
            ):
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


class _ClaimedDirectories:
    """Maps a key to the directory that it claims, verified or not."""

    def __init__(self, directories: list[Path]) -> None:
        self._by_key = {key_of(directory): directory for directory in directories}
        self._by_path = {path_text(directory): directory for directory in directories}

    def directory(self, store: Store, head: Checkpoint) -> Path | None:
        if head.claim is not None:
            return self._by_path.get(head.claim.path)
        if natural_key(head.key) in self._by_key:
            return self._by_key[natural_key(head.key)]
        note = _own_note(store, head)
        return None if note is None or note.agent != _FORK else self._by_path.get(note.root)


def nearest_tracked_dir(store: Store, here: Path) -> tuple[Path, str]:
    """Return the nearest directory saved by `save`, from `here` upwards, and its key.

    Raises:
        StorageError: the medium failed.
    """
    around = [here, *here.parents]
    found = find_directory_keys(store, around)
    for directory in around:
        for entry in found.get(directory, ()):
            if entry.is_directory_key:
                return directory, entry.key
    return here, own_key(store, here)


def directory_key(store: Store, directory: Path) -> str:
    """Return the directory's own key, to which `save` writes. Raises StorageError."""
    found = find_directory_keys(store, [directory]).get(directory, ())
    key = next((entry.key for entry in found if entry.is_directory_key), None)
    return own_key(store, directory) if key is None else key


def is_directory_key(store: Store, head: Checkpoint, directory: Path) -> bool:
    """Return whether a key is a directory's own key, from the newest checkpoint of the key.

    Raises:
        IntegrityError: its note is damaged.
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    key = head.key if natural_key(head.key) == key_of(directory) else ""
    if head.claim is not None or key:
        return is_owned_by_directory(store, head, directory, key)
    note = _own_note(store, head)
    if note is None or note.agent != _FORK or note.root != str(directory):
        return False
    return note.is_ours  # otherwise saves would go to another user's key


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


def session_directory(store: Store, head: Checkpoint) -> str | None:
    """Return the verified directory of a session or coding agent; None if there is none."""
    if HOOK in head.parts:
        note = _own_note(store, head)
        return note.root if note is not None and note.is_ours else None
    if SESSION_PART not in head.parts:
        return None
    meta = read_session_record(store, head)
    # A fork that was never opened contains a copy of the record of its origin.
    if meta is None or meta.workspace is None or meta.key != head.key or not meta.is_bound:
        return None
    return os.path.realpath(meta.workspace)


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
    return _claimed_path(head) if why_not_owned(store, head) is None else None


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
            return Path(note.root)
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
        return Path(head.claim.path) if why_not_owned(store, head) is None else None
    return None if is_imported else _ClaimedDirectories([here]).directory(store, head)
