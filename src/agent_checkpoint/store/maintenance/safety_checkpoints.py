"""Safety checkpoints: saved before an operation replaces the state. Owns their retention."""

from __future__ import annotations

from itertools import islice

from agent_checkpoint.records import Kind
from agent_checkpoint.store.store import Store

_KEPT = 10
_MAX_SCANNED = 1000


def prune_safety_checkpoints(store: Store, key: str) -> None:
    """Remove all but the ten newest safety checkpoints of a key. Raises StorageError."""
    recent = islice(store.readable(key), _MAX_SCANNED)  # an unreadable one is never removed
    seqs = [checkpoint.seq for checkpoint in recent if checkpoint.kind == Kind.SAFETY]
    if len(seqs) > _KEPT:
        store.remove(key, seqs[_KEPT:])
