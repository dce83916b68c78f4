"""Families: sessions and their forks, which share a ledger. Owns which ledger is whose."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Checkpoint, is_stream, parse_checkpoint_id
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.objects.reader import Reader, resolve_tree, tag_of
from agent_checkpoint.store.store import Store

_SESSION = "session"


def lineages(store: Store) -> list[str]:
    """Return the names of all ledgers of a store. Raises StorageError."""
    return sorted(name[len(PREFIX) :] for name in store.backend.streams(PREFIX))


def lineage_of(source: Reader | None, checkpoint: Checkpoint) -> str | None:
    """Return the name of the ledger of a checkpoint's session; None if it is of none.

    Raises:
        IntegrityError: the part is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(_SESSION)
    if tree is None:
        return None
    if source is not None:
        source.fetch([tree])
    found = resolve_tree(tree, source)
    lineage = found.get("family") if isinstance(found, dict) else None
    return lineage if isinstance(lineage, str) and is_stream(PREFIX + lineage) else None


def new_lineage(key: str) -> str:
    """Return the name of a ledger that no session has yet, for one of this key."""
    return f"{key[:200]}.{secrets.token_hex(6)}"


def with_lineage(source: Reader, checkpoint: Checkpoint, lineage: str) -> Checkpoint:
    """Return a checkpoint of a session with another ledger; `family_of` has read it.

    Raises:
        IntegrityError: the part is damaged.
    """
    tree: Any = checkpoint.parts[_SESSION]
    tag = tag_of(tree)
    # Only the topmost level is taken out of its object: what is cut out below stays so.
    found = tree if tag is None else source.tree(tag, tree[tag])
    return checkpoint._replace(parts={**checkpoint.parts, _SESSION: {**found, "family": lineage}})


def pinned_checkpoints(store: Store, checkpoints: Iterable[Checkpoint]) -> set[int]:
    """Return the numbers of a key's checkpoints that a request or an unknown outcome needs.

    Args:
        store: where.
        checkpoints: those of the key that are not to be removed if they are needed.

    Raises:
        IntegrityError: the ledger of one is damaged, so nobody can tell.
        StorageError: the medium failed.
    """
    found: set[int] = set()
    seen: set[str] = set()
    for checkpoint in checkpoints:
        try:
            lineage = lineage_of(store.reader(checkpoint), checkpoint)
        except UNUSABLE:
            found.add(checkpoint.seq)  # left for a person to look at
            continue
        if lineage is None or lineage in seen:
            continue
        seen.add(lineage)
        ledger = Ledger(store, lineage)
        ledger.refresh()
        for name in ledger.pinned_checkpoints():
            place = parse_checkpoint_id(name)
            if place is not None and place.key == checkpoint.key:
                found.add(place.seq)
    return found
