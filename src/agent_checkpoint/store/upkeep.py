"""Looking after a store: what it takes, and what to keep of a key.

Owns no format; changes nothing but by removing what nobody wants kept.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import UNUSABLE, InvalidInputError
from agent_checkpoint.records import Checkpoint, show
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.families import held_checkpoints
from agent_checkpoint.store.reachability import Seen, children_first, mark, reach
from agent_checkpoint.store.reading import names_in
from agent_checkpoint.store.retention import Policy
from agent_checkpoint.store.safety import MOVES, SAFETY
from agent_checkpoint.store.store import Store, unknown

_MOST = 1 << 62


def stats(store: Store) -> dict[str, Any]:
    """Return what there is and what it takes, in all and per key.

    `logical_bytes` is what the states would take one by one, `stored_bytes` what they take as they
    are, `dedupe_ratio` the one by the other. Objects that several keys share count for each of
    them, and once in all; `own_bytes` of a key is without these. `unshared_bytes` is what it would
    take if each checkpoint were stored by itself, with all its files.

    Raises:
        StorageError: the medium failed.
    """
    sizes = {info.id: info.size for info in store.backend.list_objects()}
    seen: Seen = {}
    rows: dict[str, _Row] = {}
    for key in store.list_keys():
        row = rows[key] = _Row()
        for entry in store.entries(key):
            row.checkpoints += 1
            row.entries += len(entry.data)
            try:
                checkpoint = read_checkpoint(key, entry.seq, entry.data)
                row.roots.update(set(names_in(checkpoint.parts.values())))
            except UNUSABLE:
                continue  # verify() tells
            row.logical += checkpoint.size
        with suppress(*UNUSABLE):  # verify() tells
            mark(store.backend, row.roots, seen)
    # An object counts for as many keys as need it: alone for one, it is that key's own.
    users = Counter(name for row in rows.values() for name in reach(row.roots, seen))
    whole = _whole_sizes({name for row in rows.values() for name in row.roots}, seen, sizes)
    keys: dict[str, dict[str, int]] = {}
    for key, row in rows.items():
        needed = reach(row.roots, seen)
        keys[key] = {
            "checkpoints": row.checkpoints,
            "logical_bytes": row.logical,
            "stored_bytes": row.entries + sum(sizes.get(name, 0) for name in needed),
            "own_bytes": row.entries
            + sum(sizes.get(name, 0) for name in needed if users[name] == 1),
            "unshared_bytes": row.entries
            + sum(whole.get(name, 0) * times for name, times in row.roots.items()),
        }
    stored = sum(row.entries for row in rows.values()) + sum(sizes.values())
    logical = sum(row.logical for row in rows.values())
    return {
        "checkpoints": sum(row.checkpoints for row in rows.values()),
        "logical_bytes": logical,
        "stored_bytes": stored,
        "unshared_bytes": sum(row["unshared_bytes"] for row in keys.values()),
        "dedupe_ratio": logical / stored if stored else 1.0,
        "objects": len(sizes),
        "keys": keys,
    }


@dataclass
class _Row:
    """What the entries of a key say."""

    checkpoints: int = 0
    entries: int = 0
    logical: int = 0
    roots: Counter[str] = field(default_factory=Counter)
    """The objects that they name, and how many of them do."""


def _whole_sizes(roots: set[str], seen: Seen, sizes: dict[str, int]) -> dict[str, int]:
    """Return what each object takes with all that it refers to, as if nothing was shared."""
    whole: dict[str, int] = {}
    for name in children_first(roots, seen):
        refs = sum(whole.get(ref, 0) for ref in seen.get(name) or ())
        # A few crafted objects can stand for more than anybody could count.
        whole[name] = min(sizes.get(name, 0) + refs, _MOST)
    return whole


def _way_back(newest_first: list[Checkpoint]) -> set[int]:
    """Return the number of what was there before the last move, if that is the key's present."""
    there = [item for item in newest_first if item.kind != "open"]
    if len(there) > 1 and there[0].kind in MOVES and there[1].kind == SAFETY:
        return {there[0].seq, there[1].seq}
    return set()


def prune(store: Store, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
    """Remove the checkpoints of a key that the policy does not keep.

    The head is always kept, and what a pending approval or an unresolved effect refers to.
    Entries that cannot be read are left for a person to look at.

    Returns:
        The ids of those removed, newest first; with `dry_run` nothing is removed.

    Raises:
        NotFoundError: there is no such key.
        InvalidInputError: `policy` is not a policy.
        IntegrityError: the ledger of the session is damaged, so nobody can tell what is needed.
        StorageError: the medium failed.
    """
    if not isinstance(policy, Policy):
        raise InvalidInputError(f"prune takes a policy such as KeepLatest(20), not {show(policy)}.")
    readable: list[Checkpoint] = []
    entries = 0
    for entry in store.entries(key):
        entries += 1
        try:
            readable.append(read_checkpoint(key, entry.seq, entry.data))
        except UNUSABLE:
            continue
    if not entries:
        raise unknown(key, store)
    kept = policy.keep(readable) | {checkpoint.seq for checkpoint in readable[:1]}
    kept |= _way_back(readable)
    kept |= held_checkpoints(store, [item for item in readable if item.seq not in kept])
    doomed = [checkpoint for checkpoint in readable if checkpoint.seq not in kept]
    if not dry_run:
        store.remove(key, [checkpoint.seq for checkpoint in doomed])
    return [checkpoint.id for checkpoint in doomed]
