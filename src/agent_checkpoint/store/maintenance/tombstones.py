"""Which checkpoints were purged. Owns the stream that says so; removes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.entries import now_ns, open_entry, seal_entry
from agent_checkpoint.store.sealed_streams import append_entry, read_entries
from agent_checkpoint.store.store import Store

_STREAM = "meta/purged"


def record_purged(store: Store, ids: Sequence[str]) -> None:
    """Leave a tombstone for checkpoints that are about to be purged. Raises StorageError."""
    record: dict[str, JsonValue] = {"ts_ns": now_ns(), "checkpoints": list(ids)}
    append_entry(store.backend, _STREAM, seal_entry(record, indent=store.backend.readable))


def purged_at(store: Store, checkpoint_id: str) -> float | None:
    """Return when a checkpoint was purged, in seconds; None if it was not. Raises StorageError."""
    for entry in read_entries(store.backend, _STREAM):
        try:
            record = open_entry(entry.data, "A tombstone")
        except UNUSABLE:
            continue  # it says nothing any more
        ids, ts_ns = record.get("checkpoints"), record.get("ts_ns")
        if isinstance(ids, list) and checkpoint_id in ids and type(ts_ns) is int:
            return ts_ns / 1e9
    return None
