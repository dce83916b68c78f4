"""Tombstones: the stream with the ids of purged checkpoints.

Separate from `purge`, which is slow to import.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.checkpoint_entries import append_record, now_ns, open_entry
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_STREAM = "meta/purged"


def record_purged(store: Store, ids: Sequence[str]) -> None:
    """Write a tombstone for checkpoints that are about to be purged. Raises StorageError."""
    record: dict[str, JsonValue] = {"ts_ns": now_ns(), "checkpoints": list(ids)}
    append_record(store.backend, _STREAM, record)


def purged_at(store: Store, checkpoint_id: str) -> float | None:
    """Return the time at which a checkpoint was purged, in seconds; None if it was not.

    Raises StorageError.
    """
    for entry in read_entries(store.backend, _STREAM):
        try:
            record = open_entry(entry.data, "A tombstone")
        except UNUSABLE:
            continue  # skip an unreadable tombstone; the others are usable
        ids, ts_ns = record.get("checkpoints"), record.get("ts_ns")
        if isinstance(ids, list) and checkpoint_id in ids and type(ts_ns) is int:
            return ts_ns / 1e9
    return None
