"""Finds the fork points of keys, from the first checkpoint of each key."""

from __future__ import annotations

from itertools import islice

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import CheckpointId, Kind, parse_checkpoint_id
from agent_checkpoint.session.session_record import SessionRecord, read_session_record
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store


class Fork(NamedTuple):
    """A key forked from a checkpoint of another key."""

    at: int
    key: str


def find_forks(store: Store) -> dict[str, list[Fork]]:
    """Return all forks, by the key they were forked from.

    Raises:
        StorageError: the medium failed.
    """
    found: dict[str, list[Fork]] = {}
    for key in store.list_keys():
        origin = origin_of(store, key)
        if origin is not None:
            found.setdefault(origin.key, []).append(Fork(origin.seq, key))
    return found


def origin_of(store: Store, key: str) -> CheckpointId | None:
    """Return the checkpoint that a key was forked from; None if it is not a fork.

    The first checkpoint records it. If that was pruned, the session record still has it.

    Raises:
        StorageError: the medium failed.
    """
    try:
        for entry in islice(store.entries(key, page=1, oldest_first=True), 1):
            first = read_checkpoint(key, entry.seq, entry.data)
            if first.kind == Kind.FORK and first.parents:
                return _other(parse_checkpoint_id(first.parents[0]), key)
            meta = None if entry.seq == 1 else session_record_of(store, key)
            point = None if meta is None else meta.point
            return None if point is None else _other(parse_checkpoint_id(point), key)
    except UNUSABLE:
        pass  # `verify` reports it
    return None


def session_record_of(store: Store, key: str) -> SessionRecord | None:
    """Return the session record of a key's head; None if it is not a session.

    Raises:
        IntegrityError: the head or its record is damaged.
        StorageError: the medium failed.
    """
    head = store.head(key)
    return None if head is None else read_session_record(store, head)


def _other(origin: CheckpointId | None, key: str) -> CheckpointId | None:
    return None if origin is None or origin.key == key else origin
