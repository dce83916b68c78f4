"""Adopts a fork: its last checkpoint becomes the head of its parent. Owns the conflict check.

Runs the same steps as a rollback: safety checkpoint, `adopt` checkpoint, then objects and files.
After a crash, the next open of the session repeats the last step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.external_snapshot import External
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.options import Merge, check_option
from agent_checkpoint.records import Checkpoint, Draft, Kind, same_json, short_repr
from agent_checkpoint.session.agent_scope import SUBAGENTS
from agent_checkpoint.session.branch.file_merge import merge
from agent_checkpoint.session.effects.approvals import unused_requests, void_requests
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord, read_session_record
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.objects.references import CapturedState, ReusedPart
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.journal import Decision
from agent_checkpoint.workspace.restore.transition import SafetySnapshot
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_edit import EditedTree

if TYPE_CHECKING:
    from agent_checkpoint.store.ledger.ledger_calls import Effect

_MAX_NAMED = 20


class Adoption(Rollback):
    """Replaces the parts of a session by those of its fork."""

    def __init__(self, state: SessionState, target: Checkpoint) -> None:
        """Prepare the adoption; change nothing.

        Raises:
            InvalidInputError: `target` is not a checkpoint of a fork of this session.
            CheckpointError: `target` cannot be read.
        """
        super().__init__(state, target, label=f"adopt {target.key}"[:200])
        head = state.writer.head
        current = {} if head is None else head.parts
        # Equal parts need no restore. External parts were not forked and are not changed.
        external = self._external_parts
        self._names = [
            name
            for name in self._names
            if name not in external and not same_json(target.parts[name], current.get(name))
        ]
        self.report.parts, self.report.adopts = self._names, True
        self._all_parts = False

    def _read_target_record(self) -> SessionRecord:
        state, record = self._state, read_session_record(self._store, self._target)
        family = None if record is None else record.family
        past = {state.key, *(key for key, _ in state.record.lineage)}
        if record is None or family != state.record.family or record.origin not in past:
            raise InvalidInputError(
                f"{short_repr(self._target.id, 120)} is not a checkpoint of a fork of the session "
                f"{short_repr(state.key)}. If it belongs to a nested fork, adopt that into its "
                "parent fork first."
            )
        return record

    @property
    def _external_parts(self) -> set[str]:
        """The names of the external parts."""
        parts = self._state.parts
        return {name for name, part in parts.items() if isinstance(part, External)}

    @property
    def _point(self) -> str:
        return str(self._target_record.point)

    @property
    def _rewinds_state(self) -> bool:
        return False

    def _concerns(self, path: str) -> bool:
        return True

    def _removes(self, name: str) -> bool:
        return name.startswith(SUBAGENTS)

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over the fork's effects after its last checkpoint."""
        for effect in self._state.ledger.all_effects():
            is_later = (
                effect.seq > self._target_record.ledger
                or effect.id in self._target_record.under_way
            )
            if effect.session == self._target_record.key and effect.stands and is_later:
                yield effect

    def _save_safety(self) -> Checkpoint:
        self._check(self._state.writer.head)
        safety = super()._save_safety()
        self._check(safety)
        return safety

    def _check(self, current: Checkpoint | None) -> None:
        """Check that the session has not changed since the fork. Raises ConflictError."""
        point, excluded = find(self._store, self._point), {SESSION_PART, *self._external_parts}
        now, at_fork = (_contents(item, excluded) for item in (current or point, point))
        changed = [
            name for name in {**now, **at_fork} if not same_json(now.get(name), at_fork.get(name))
        ]
        if current is None or changed:
            raise ConflictError(
                f"The session {short_repr(self._state.key)} changed since {point.id}, where "
                f"{short_repr(self._target.key)} was forked ({', '.join(changed)}): adopting the "
                "fork would lose work. Roll back to the fork point first, or merge the files with "
                'merge="files".'
            )

    def _next_record(self, standing: list[str]) -> SessionRecord:
        current, fork_record = self._state.record, self._target_record
        later = [effect.id for effect in self._effects_since()]
        effects = self._state.ledger.state.effects
        before = [name for name in current.standing if name in effects]
        unknown = [
            name
            for name in before
            if not fork_record.knows(effects[name].session, effects[name].seq)
        ]
        standing_ids = dict.fromkeys([*unknown, *fork_record.standing, *later])
        return current.replaced(
            lineage=_merged_lineage(current, fork_record, self._state.ledger.seq),
            ledger=max(current.ledger, fork_record.ledger),
            counts=fork_record.counts.copy(),
            standing=[name for name in standing_ids if name in effects and effects[name].stands],
            gone=list(dict.fromkeys([*current.gone, *fork_record.gone])),
            pending=[],
            under_way=[],
            batches=list(fork_record.batches),
            torn_calls=[],
            in_flight=[],
            drift=[],
        )

    def _apply(self, safety: Checkpoint) -> None:
        super()._apply(safety)
        # The approval requests of the fork become void with its adoption.
        ledger, epoch = self._state.ledger, self._state.effects.epoch
        unused = unused_requests(ledger, self._target_record.key)
        self.report.void += void_requests(ledger, unused, epoch)

    def _draft(self, record: SessionRecord) -> Draft:
        return super()._draft(record)._replace(kind=Kind.ADOPT)

    def _parents(self, safety: Checkpoint) -> tuple[str, ...]:
        return (self._point, self._target.id)


class FileAdoption(Adoption):
    """Merges the file changes of a fork into those of the session since the fork."""

    def _check(self, current: Checkpoint | None) -> None:
        """Accept any change: the merge detects conflicts file by file."""

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over all effects of the fork: the session's state contains none of them."""
        for effect in self._state.ledger.all_effects():
            if effect.session == self._target_record.key and effect.stands:
                yield effect

    def _apply(self, safety: Checkpoint) -> None:
        state, files = self._state, self._state.files
        base = self._tree(find(self._store, self._point))
        ours, theirs = self._tree(safety), self._tree(self._target)
        if files is None:
            raise InvalidInputError(
                f"The session {short_repr(state.key)} has no files to merge into."
            )
        merged = merge(base, ours, theirs)
        if merged.conflicts:
            raise ConflictError(_conflict_message(self._target.key, merged.conflicts))
        state.ledger.refresh()
        new_record = self._next_record([])
        new_record.ledger = max(new_record.ledger, state.ledger.seq)
        parents = (safety.id, self._target.id)

        def append(plan: Any) -> Checkpoint:
            """Append the merge: the session's parts, with the files that the plan makes."""
            parts: dict[str, Any] = {n: ReusedPart(tree) for n, tree in safety.parts.items()}
            files = EditedTree(ours, plan.steps, plan.tree)
            parts[FILES] = CapturedState(files, self._store.writer)
            parts[SESSION_PART] = new_record.dump()
            draft = Draft(state.key, parts, kind=Kind.ADOPT, label=self._label)
            return state.writer.write(draft, parents)

        held = SafetySnapshot(ours, safety.id, self._last_regular_tree(safety))
        try:
            self.report.files = files.workspace.restore_held(
                theirs, held, paths=merged.paths, decision=Decision(parents, append)
            )
        except BaseException as error:
            self._abort(safety, error)
            raise
        self._complete(new_record)
        self.report.parts = [FILES]

    def _next_record(self, standing: list[str]) -> SessionRecord:
        current = self._state.record
        new_record = super()._next_record(standing)
        new_record.counts, new_record.ledger = current.counts.copy(), current.ledger
        new_record.gone = list(current.gone)
        new_record.pending = list(current.pending)
        return new_record

    def _tree(self, checkpoint: Checkpoint) -> Tree:
        tree = tree_in(self._store, checkpoint)
        if tree is None:
            raise InvalidInputError(
                f"The checkpoint {short_repr(checkpoint.id, 120)} has no files."
            )
        return tree


def plan_adoption(state: SessionState, head: str | None, how: Merge | None) -> Adoption:
    """Return the operation that adopts a fork.

    Args:
        state: the session that adopts it.
        head: an id, key or short form; None if the fork was never started.
        how: `files` to merge files only, or None.

    Raises:
        InvalidInputError: `head` is not a checkpoint of a fork, or `how` is invalid.
        NotFoundError: there is no such checkpoint.
    """
    if how is not None:
        check_option("merge", how, Merge, "None")
    if head is None:
        raise NotFoundError("The fork was never started: there is nothing to adopt.")
    if not isinstance(head, str):
        raise InvalidInputError(
            f"adopt takes a fork, a trial or a checkpoint id, not {short_repr(head)}."
        )
    target = find(state.manager.store, head)
    operation = FileAdoption if how == "files" else Adoption
    try:
        return operation(state, target)
    except NotFoundError as error:
        raise NotFoundError(f"The fork point no longer exists: {error}") from error


def _contents(checkpoint: Checkpoint, excluded: set[str]) -> dict[str, Any]:
    return {name: part for name, part in checkpoint.parts.items() if name not in excluded}


def _merged_lineage(
    current: SessionRecord, fork_record: SessionRecord, seq: int
) -> list[list[Any]]:
    """Return the merged lineage: the fork's effects become part of the session's history."""
    rows: dict[str, int] = {}
    for key, seen in [*current.lineage, *fork_record.lineage, [fork_record.key, seq]]:
        if key != current.key:
            rows[key] = max(seen, rows.get(key, 0))
    return [[key, seen] for key, seen in rows.items()]


def _conflict_message(key: str, paths: list[bytes]) -> str:
    named = ", ".join(short_repr(os.fsdecode(path), 120) for path in paths[:_MAX_NAMED])
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return (
        f"Nothing was merged: this session and {short_repr(key)} both changed {named}{more}. Make "
        "these paths equal on both sides, or restore them on one side, and try again."
    )
