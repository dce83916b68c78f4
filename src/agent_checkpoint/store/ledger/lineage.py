"""Lineages: a session and all its forks share one ledger. Owns the mapping of sessions to ledgers.

The member `family` in the session part of a checkpoint is the name of the lineage.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import (
    Checkpoint,
    CheckpointId,
    Kind,
    is_stream,
    parse_checkpoint_id,
)
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.objects.reader import Reader, resolve_tree, tag_of
from agent_checkpoint.store.store import Store

SESSION = "session"
"""The part with the session record."""


def lineages(store: Store) -> list[str]:
    """Return the lineages of a store, one per ledger. Raises StorageError."""
    return sorted(name[len(PREFIX) :] for name in store.backend.streams(PREFIX))


def lineage_of(source: Reader | None, checkpoint: Checkpoint) -> str | None:
    """Return the lineage of a checkpoint's session; None if the checkpoint has no session.

    Raises:
        IntegrityError: the session part is damaged.
        StorageError: the medium failed.
    """
    lineage = _member(source, checkpoint, "family")
    return lineage if isinstance(lineage, str) and is_stream(PREFIX + lineage) else None


def fork_point_of(store: Store, first: Checkpoint) -> CheckpointId | None:
    """Return the checkpoint of another key that a key was forked from; None if there is none.

    `first` is the oldest checkpoint of the key. If it is not the fork itself, because that was
    pruned, the session record in it still has the fork point.

    Raises:
        IntegrityError: the session part is damaged.
        StorageError: the medium failed.
    """
    point: Any = first.parents[0] if first.kind == Kind.FORK and first.parents else None
    if point is None and first.seq > 1:
        point = _member(store.reader(first), first, "point")
    found = parse_checkpoint_id(point) if isinstance(point, str) else None
    return None if found is None or found.key == first.key else found


def _member(source: Reader | None, checkpoint: Checkpoint, name: str) -> Any:
    """Return a member of the session record; None if there is none."""
    tree = checkpoint.parts.get(SESSION)
    if tree is None:
        return None
    if source is not None:
        source.fetch([tree])
    record = resolve_tree(tree, source)
    return record.get(name) if isinstance(record, dict) else None


def new_lineage(key: str) -> str:
    """Return a new, unused lineage for a session of this key."""
    return f"{key[:200]}.{os.urandom(6).hex()}"


def with_lineage(source: Reader, checkpoint: Checkpoint, lineage: str) -> Checkpoint:
    """Return a copy of a session checkpoint with another lineage; call `lineage_of` first.

    Raises:
        IntegrityError: the session part is damaged.
    """
    tree: Any = checkpoint.parts[SESSION]
    tag = tag_of(tree)
    # Only the topmost level is resolved: values below it stay out of line.
    record = tree if tag is None else source.tree(tag, tree[tag])
    return checkpoint._replace(parts={**checkpoint.parts, SESSION: {**record, "family": lineage}})


def pinned_checkpoints(store: Store, checkpoints: Iterable[Checkpoint]) -> set[int]:
    """Return the numbers of checkpoints that open requests or unknown outcomes refer to.

    Args:
        store: the store.
        checkpoints: candidates for removal, all of one key.

    Raises:
        IntegrityError: a ledger is damaged, so the checkpoints that it pins are unknown.
        StorageError: the medium failed.
    """
    pinned: set[int] = set()
    seen: set[str] = set()
    for checkpoint in checkpoints:
        try:
            lineage = lineage_of(store.reader(checkpoint), checkpoint)
        except UNUSABLE:
            pinned.add(checkpoint.seq)  # kept for a person to inspect
            continue
        if lineage is None or lineage in seen:
            continue
        seen.add(lineage)
        ledger = Ledger(store, lineage)
        ledger.refresh()
        for name in ledger.state.pinned_checkpoints():
            target = parse_checkpoint_id(name)
            if target is not None and target.key == checkpoint.key:
                pinned.add(target.seq)
    return pinned
