"""Finds the target of a rollback: by id, by steps back, or the last safety checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, parse_checkpoint_id, same_json, short_repr
from agent_checkpoint.session.checkpoint_writer import CLOSE, IN_FLIGHT
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.lookup import find, walk
from agent_checkpoint.store.maintenance.safety_checkpoints import ROLLBACK_KINDS, SAFETY
from agent_checkpoint.store.store import Store

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


def find_target(session: Work, to: str | None, steps: int) -> Checkpoint:
    """Return the target of a rollback.

    Args:
        session: the session to roll back.
        to: an id or short form; `steps` counts if it is None.
        steps: how many checkpoints to go back.

    Raises:
        NotFoundError: there is no such checkpoint.
        InvalidInputError: `steps` is no count, or `to` is a checkpoint of another session.
    """
    store = session.manager.store
    if to is not None:
        target = find(store, to)
        ours = {session.key, *(key for key, _ in session._record.lineage)}
        if target.key not in ours:
            raise InvalidInputError(
                f"{short_repr(target.id, 120)} is a checkpoint of {short_repr(target.key)}, not in "
                f"the history of the session {short_repr(session.key)}. Open or fork that session "
                "instead."
            )
        return target
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidInputError(f"steps must be a number of checkpoints, not {short_repr(steps)}.")
    past = walk(store, session.key)
    present = next(past, None)  # the head counts, whatever its kind
    candidates = chain([present], (item for item in past if item.kind != IN_FLIGHT))
    found = next(islice(_distinct_steps(store, candidates), steps, None), None)
    if found is None:
        raise NotFoundError(
            f"The session {short_repr(session.key)} has no checkpoint {steps} steps back."
        )
    return found


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
    """Tell whether a checkpoint ends a run, or opens the session right after one."""
    if checkpoint.kind == "open" and checkpoint.parents:
        parsed = parse_checkpoint_id(checkpoint.parents[0])
        parent = None if parsed is None else store.read(parsed.key, parsed.seq)
        return parent is not None and parent.kind == CLOSE
    return checkpoint.kind == CLOSE


def undo_target(session: Work) -> Checkpoint:
    """Return the safety checkpoint before the last rollback, full or partial.

    Raises:
        NotFoundError: there was no rollback, or its safety checkpoint was removed.
    """
    rollback: Checkpoint | None = None
    for checkpoint in session.manager.store.newest_first(session.key):
        if rollback is None:
            rollback = checkpoint if checkpoint.kind in ROLLBACK_KINDS else None
        elif checkpoint.kind == SAFETY:
            return checkpoint
        elif _is_reverted(checkpoint, rollback):
            rollback = None
        else:
            break
    raise NotFoundError(f"The session {short_repr(session.key)} has no rollback to undo.")


def _is_reverted(checkpoint: Checkpoint, by: Checkpoint) -> bool:
    """Tell whether a rollback failed: the next one returns to the safety checkpoint before it."""
    target = parse_checkpoint_id(by.parents[0]) if by.parents else None
    return (
        checkpoint.kind in ROLLBACK_KINDS
        and target is not None
        and target.seq == checkpoint.seq - 1
    )


def unfinished_rollback(session: Work) -> tuple[Checkpoint, Checkpoint] | None:
    """Return the safety checkpoint and the rollback after it, if its restore is unfinished.

    An imported rollback is never unfinished: an interruption would have been on another machine.

    Raises:
        CheckpointError: the history cannot be read.
    """
    rollback: Checkpoint | None = None
    for checkpoint in session.manager.store.newest_first(session.key):
        if rollback is not None:
            return (checkpoint, rollback) if checkpoint.kind == SAFETY else None
        if checkpoint.kind == "open":
            continue
        is_done = checkpoint.id in session._ledger.finished
        if is_done or checkpoint.token is not None or checkpoint.kind not in ROLLBACK_KINDS:
            return None
        rollback = checkpoint
    return None
