"""Applies a retention policy to one key. Owns the rules for checkpoints that are never removed."""

from __future__ import annotations

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import ROLLBACK_KINDS, Checkpoint, Kind, short_repr
from agent_checkpoint.store.ledger.lineage import pinned_checkpoints
from agent_checkpoint.store.maintenance.retention import Policy
from agent_checkpoint.store.store import Store, key_not_found


def prune(store: Store, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
    """Remove the checkpoints of a key that the policy does not keep.

    Always kept: the head; if the head is a rollback, restore or adopt, its safety checkpoint; and
    checkpoints that an open approval request or an effect with unknown outcome refers to.
    Unreadable entries are kept, so that a person can inspect them.

    Returns:
        The ids of the removed checkpoints, newest first; `dry_run` only lists them.

    Raises:
        NotFoundError: there is no such key.
        InvalidInputError: `policy` is not a policy.
        IntegrityError: a ledger is damaged, so the checkpoints that it pins are unknown.
        StorageError: the medium failed.
    """
    if not isinstance(policy, Policy):
        raise InvalidInputError(
            f"prune requires a policy such as KeepLatest(20), not {short_repr(policy)}."
        )
    if next(store.entries(key, page=1), None) is None:
        raise key_not_found(key, store)
    readable = list(store.readable(key))
    kept = policy.keep(readable) | {checkpoint.seq for checkpoint in readable[:1]}
    kept |= _last_move(readable)
    kept |= pinned_checkpoints(store, [item for item in readable if item.seq not in kept])
    doomed = [checkpoint for checkpoint in readable if checkpoint.seq not in kept]
    if not dry_run:
        store.remove(key, [checkpoint.seq for checkpoint in doomed])
    return [checkpoint.id for checkpoint in doomed]


def _last_move(newest_first: list[Checkpoint]) -> set[int]:
    """Return the head and its safety checkpoint if the head is in ROLLBACK_KINDS."""
    recent = [item for item in newest_first if item.kind != Kind.OPEN]
    if len(recent) > 1 and recent[0].kind in ROLLBACK_KINDS and recent[1].kind == Kind.SAFETY:
        return {recent[0].seq, recent[1].seq}
    return set()
