"""Safety checkpoints: saved before an operation replaces the state. Owns their retention."""

from __future__ import annotations

from itertools import islice

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Kind
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store

_KEPT = 10
_MAX_SCANNED = 1000


def prune_safety_checkpoints(store: Store, key: str) -> None:
    """Remove all but the ten newest safety checkpoints of a key. Raises StorageError."""
    seqs = []
    for entry in islice(store.entries(key), _MAX_SCANNED):
        try:
            if read_checkpoint(key, entry.seq, entry.data).kind == Kind.SAFETY:
                seqs.append(entry.seq)
        except UNUSABLE:
            continue  # an unreadable entry is never removed automatically
    if len(seqs) > _KEPT:
        store.remove(key, seqs[_KEPT:])
