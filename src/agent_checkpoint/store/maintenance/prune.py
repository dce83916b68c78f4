"""Applies a retention policy to one key. Owns which checkpoints no policy may remove."""

from __future__ import annotations

from agent_checkpoint.errors import UNUSABLE, InvalidInputError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.ledger.lineage import pinned_checkpoints
from agent_checkpoint.store.maintenance.retention import Policy
from agent_checkpoint.store.maintenance.safety_checkpoints import ROLLBACK_KINDS, SAFETY
from agent_checkpoint.store.store import Store, key_not_found


def prune(store: Store, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
    """Remove the checkpoints of a key that the policy does not keep.

    Always kept: the head, the safety checkpoint of a move that is the head, and checkpoints that
    a pending approval or an effect with unknown outcome refers to. Unreadable entries stay, for
    a person to inspect.

    Returns:
        The ids of the removed checkpoints, newest first; `dry_run` only lists them.

    Raises:
        NotFoundError: there is no such key.
        InvalidInputError: `policy` is not a policy.
        IntegrityError: the ledger of the session is damaged, so it is unknown what it pins.
        StorageError: the medium failed.
    """
    if not isinstance(policy, Policy):
        raise InvalidInputError(
            f"prune takes a policy such as KeepLatest(20), not {short_repr(policy)}."
        )
    readable: list[Checkpoint] = []
    entries = 0
    for entry in store.entries(key):
        entries += 1
        try:
            readable.append(read_checkpoint(key, entry.seq, entry.data))
        except UNUSABLE:
            continue
    if not entries:
        raise key_not_found(key, store)
    kept = policy.keep(readable) | {checkpoint.seq for checkpoint in readable[:1]}
    kept |= _last_move(readable)
    kept |= pinned_checkpoints(store, [item for item in readable if item.seq not in kept])
    doomed = [checkpoint for checkpoint in readable if checkpoint.seq not in kept]
    if not dry_run:
        store.remove(key, [checkpoint.seq for checkpoint in doomed])
    return [checkpoint.id for checkpoint in doomed]


def _last_move(newest_first: list[Checkpoint]) -> set[int]:
    """Return the head and its safety checkpoint if the head is a move, so that it can be undone."""
    recent = [item for item in newest_first if item.kind != "open"]
    if len(recent) > 1 and recent[0].kind in ROLLBACK_KINDS and recent[1].kind == SAFETY:
        return {recent[0].seq, recent[1].seq}
    return set()
