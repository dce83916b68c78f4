"""Finds the target of a rollback: by id, by steps back, or the last safety checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import (
    ROLLBACK_KINDS,
    Checkpoint,
    Kind,
    parse_checkpoint_id,
    same_json,
    short_repr,
)
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.store.lookup import find, walk
from agent_checkpoint.store.store import Store


def find_target(state: SessionState, to: str | None, steps: int) -> Checkpoint:
    """Return the target of a rollback.

    Args:
        state: the session to roll back.
        to: an id or short form; if None, `steps` is used.
        steps: how many checkpoints to go back.

    Raises:
        NotFoundError: there is no such checkpoint.
        InvalidInputError: `steps` is not an integer from 0, or `to` is of another session.
    """
    store = state.manager.store
    if to is not None:
        target = find(store, to, base=state.key)
        ours = {state.key, *(key for key, _ in state.record.lineage)}
        if target.key not in ours:
            raise InvalidInputError(
                f"{short_repr(target.id, 120)} is a checkpoint of {short_repr(target.key)}, not in "
                f"the history of the session {short_repr(state.key)}. Open or fork that session "
                "instead."
            )
        return target
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidInputError(f"steps must be a number of checkpoints, not {short_repr(steps)}.")
    past = walk(store, state.key)
    head = next(past, None)  # the head counts, whatever its kind
    candidates = chain([head], (item for item in past if not _is_in_flight(store, item)))
    found = next(islice(_distinct_steps(store, candidates), steps, None), None)
    if found is None:
        raise NotFoundError(
            f"The session {short_repr(state.key)} has no checkpoint {steps} steps back."
        )
    return found


def _is_in_flight(store: Store, checkpoint: Checkpoint) -> bool:
    """Return whether tools were running, also beside the restart of a sub-agent's task."""
    if checkpoint.kind != Kind.RESTORE:
        return checkpoint.kind == Kind.IN_FLIGHT
    record = read_session_record(store, checkpoint)
    return record is not None and bool(record.in_flight)


def _distinct_steps(store: Store, checkpoints: Iterable[Checkpoint | None]) -> Iterator[Checkpoint]:
    """Skip the checkpoint before the end of a run, if both have the same content."""
    parts: dict[str, Any] = {}
    after_end = False
    for item in checkpoints:
        if item is None:
            continue
        before, parts = (
            parts,
            {name: item.parts[name] for name in item.parts if name != SESSION_PART},
        )
        if not after_end or not same_json(parts, before):
            yield item
            after_end = _is_run_end(store, item)


def _is_run_end(store: Store, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint ends a run, or opens the session after one, once or more."""
    found: Checkpoint | None = checkpoint
    while found is not None and found.kind == Kind.OPEN and found.parents:
        parsed = parse_checkpoint_id(found.parents[0])
        found = None if parsed is None else store.read(parsed.key, parsed.seq)
    return found is not None and found.kind == Kind.CLOSE


def task_start(state: SessionState, began: str | None) -> Checkpoint | None:
    """Return the checkpoint at the start of a task, or None if it was pruned.

    Args:
        state: the session of the task.
        began: its id; None for the newest checkpoint that the session saved as work.
    """
    store = state.manager.store
    entries = store.newest_first(state.key)
    if began is None:
        passing = (
            Kind.OPEN,
            Kind.DRIFT,
            Kind.OUTSIDE,
            Kind.SAFETY,
            Kind.CLOSE,
            Kind.IN_FLIGHT,
        )
        return next((item for item in entries if item.kind not in passing), None)
    parsed = parse_checkpoint_id(began)
    if parsed is None:
        return None
    if parsed.key != state.key and parsed.key in dict(state.record.lineage):
        checkpoint = store.read(parsed.key, parsed.seq)
        return checkpoint if checkpoint and checkpoint.ts_ns == parsed.ts_ns else None
    # By timestamp: an import assigns new sequence numbers.
    return next((item for item in entries if item.ts_ns == parsed.ts_ns), None)


class LastOperation(NamedTuple):
    """The last rollback, restore, revert or adopt of a key."""

    done: Checkpoint
    """Its checkpoint; the safety checkpoint of a restore that recorded no result."""
    safety: Checkpoint | None
    """The checkpoint that an undo returns to; None if it was removed, or no result was recorded."""


def last_operation(store: Store, key: str, *, unrecorded: bool = False) -> LastOperation | None:
    """Return the last operation that replaced the state of a key; None if there was none.

    Args:
        store: the store of the key.
        key: the key.
        unrecorded: whether a safety checkpoint alone counts. `Workspace.restore` saves only that.

    Raises:
        CheckpointError: the history cannot be read.
    """
    done: Checkpoint | None = None
    for checkpoint in store.newest_first(key):
        is_safety = checkpoint.kind == Kind.SAFETY
        if done is None:
            if is_safety and unrecorded:
                return LastOperation(checkpoint, None)
            done = checkpoint if checkpoint.kind in ROLLBACK_KINDS else None
        elif not is_safety and _is_reverted(checkpoint, done):
            done = None
        else:
            return LastOperation(done, checkpoint if is_safety else None)
    return None if done is None else LastOperation(done, None)


def undo_target(store: Store, key: str) -> Checkpoint:
    """Return the safety checkpoint before the last rollback of a key, full or partial.

    Raises:
        NotFoundError: there was no rollback, or its safety checkpoint was removed.
    """
    last = last_operation(store, key)
    if last is None or last.safety is None:
        raise NotFoundError(
            f"The key {short_repr(key)} has no rollback, restore, revert or adopt to undo."
        )
    return last.safety


def _is_reverted(checkpoint: Checkpoint, by: Checkpoint) -> bool:
    """Return whether a rollback failed: the next one returns to the safety checkpoint before it."""
    target = parse_checkpoint_id(by.parents[0]) if by.parents else None
    return (
        checkpoint.kind in ROLLBACK_KINDS
        and target is not None
        and target.seq == checkpoint.seq - 1
    )


def unfinished_rollback(state: SessionState) -> tuple[Checkpoint, Checkpoint] | None:
    """Return the safety checkpoint and the rollback after it, if its restore is unfinished.

    An imported rollback is never unfinished: the restore concerned another host.

    Raises:
        CheckpointError: the history cannot be read.
    """
    rollback: Checkpoint | None = None
    for checkpoint in state.manager.store.newest_first(state.key):
        if rollback is not None:
            return (checkpoint, rollback) if checkpoint.kind == Kind.SAFETY else None
        if checkpoint.kind == Kind.OPEN:
            continue
        is_done = checkpoint.id in state.ledger.state.finished
        if is_done or checkpoint.token is not None or checkpoint.kind not in ROLLBACK_KINDS:
            return None
        rollback = checkpoint
    return None
