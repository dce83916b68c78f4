"""The line of a checkpoint: the checkpoints that led to its content. Read-only.

A rollback, a fork and an open stand for the checkpoint whose content they copy, so that the line
has no checkpoints that a rollback passed over. An adopted fork is followed into the fork.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import (
    SAME_CONTENT,
    Checkpoint,
    CheckpointId,
    Kind,
    parse_checkpoint_id,
    same_json,
)
from agent_checkpoint.store.lookup import read_at
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

REVERTED = "reverted "
"""The label prefix of the checkpoint of a revert."""
_NO_WORK = (Kind.CLOSE, Kind.DRIFT, Kind.OUTSIDE, Kind.SAFETY)


def line_of(store: Store, end: Checkpoint) -> list[Checkpoint]:
    """Return the checkpoints that led to a checkpoint and itself, oldest first.

    Raises:
        IntegrityError: a checkpoint is damaged.
        StorageError: the medium failed.
    """
    return list(_newest_first(store, end))[::-1]


def original(store: Store, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of a line that a rollback, a fork or an open stands for.

    Raises the same errors as `line_of`.
    """
    return _original(store, checkpoint).checkpoint


def reverts_since_work(store: Store, head: Checkpoint) -> list[str]:
    """Return the steps of the reverts after which a session has not worked yet, in words.

    A revert that was undone is not among them. Raises the same errors as `line_of`.
    """
    found = []
    for item in _newest_first(store, head):
        if is_revert(item):
            found.append((item.label or "")[len(REVERTED) :])
        elif item.kind not in _NO_WORK:
            break
    return found[::-1]


def is_revert(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is the result of a revert."""
    return checkpoint.kind == Kind.RESTORE and (checkpoint.label or "").startswith(REVERTED)


def _newest_first(store: Store, end: Checkpoint) -> Iterator[Checkpoint]:
    seen: set[tuple[str, int]] = set()  # a crafted store may have cycles
    entries: Iterator[Checkpoint] | None = iter([end])
    is_end = True
    key = end.key
    while entries is not None:
        following = None
        for checkpoint in entries:
            if checkpoint.kind == Kind.SAFETY and not is_end:
                continue
            is_end = False
            found = _original(store, checkpoint)
            place = found.checkpoint.key, found.checkpoint.seq
            if place in seen:
                return
            seen.add(place)
            yield found.checkpoint
            if found.before != (key, checkpoint.seq) or checkpoint is end:
                following = found.before
                break
        if following is None:
            return
        key, before = following
        entries = store.newest_first(key, before=before)


class _Original(NamedTuple):
    """The checkpoint that another one stands for, and the position where the line continues."""

    checkpoint: Checkpoint
    before: tuple[str, int]


def _original(store: Store, checkpoint: Checkpoint) -> _Original:
    """Return the checkpoint whose content a checkpoint copies; itself if it copies none."""
    before, seen = (checkpoint.key, checkpoint.seq), {checkpoint.id}
    while True:
        target = _target(store, checkpoint)
        if target is None or str(target) in seen:
            return _Original(checkpoint, before)
        seen.add(str(target))
        before = (target.key, target.seq)
        found = read_at(store, target)
        if found is None:  # pruned: the line continues at its position
            return _Original(checkpoint, before)
        checkpoint = found


def _target(store: Store, checkpoint: Checkpoint) -> CheckpointId | None:
    if checkpoint.kind in SAME_CONTENT and checkpoint.parents:
        return parse_checkpoint_id(checkpoint.parents[0])
    if checkpoint.kind == Kind.ADOPT and len(checkpoint.parents) > 1:
        target = parse_checkpoint_id(checkpoint.parents[1])
        fork = None if target is None else read_at(store, target)
        if fork is not None and same_json(fork.parts.get(FILES), checkpoint.parts.get(FILES)):
            return target  # otherwise files were merged, which is a step of its own
    return None
