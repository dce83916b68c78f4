"""Safety checkpoints: the present, saved before something replaces it. Owns how many are kept."""

from __future__ import annotations

from itertools import islice

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.store import Store

SAFETY = "safety"
"""The kind of such a checkpoint."""
ROLLBACK_KINDS = frozenset({"rollback", "restore", "adopt"})
"""Kinds of checkpoints by which a session went elsewhere; the one before is a safety one."""
_KEPT = 10
_LOOKED_THROUGH = 1000


def prune_safety_checkpoints(store: Store, key: str) -> None:
    """Remove the safety checkpoints of a key but the newest ten. Raises StorageError."""
    found = []
    for entry in islice(store.entries(key), _LOOKED_THROUGH):
        try:
            if read_checkpoint(key, entry.seq, entry.data).kind == SAFETY:
                found.append(entry.seq)
        except UNUSABLE:
            continue  # not ours to judge, and never removed unread
    if len(found) > _KEPT:
        store.remove(key, found[_KEPT:])
