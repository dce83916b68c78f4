"""Adopting a fork: its end becomes the session's present. Owns when that may be, and the merge.

It goes the way of a rollback: a safety checkpoint, the checkpoint that makes it so, then the
objects and files; a crash in between is made good at the next opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.external import External
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.records import Checkpoint, Draft, same_json, short_repr
from agent_checkpoint.session.branch.file_merge import merge
from agent_checkpoint.session.effects.approvals import void_requests
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_report import unseen_effect_notice
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord, read_session_record
from agent_checkpoint.store.lookup import find
from agent_checkpoint.workspace.restore.operation import SafetySnapshot
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree_names import tree_in

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work
    from agent_checkpoint.store.ledger.ledger import Effect

ADOPT = "adopt"
"""The kind of the checkpoint."""
_MAX_NAMED = 20


class Adoption(Rollback):
    """One fork that becomes the present of the session that it came from."""

    def __init__(self, session: Work, target: Checkpoint) -> None:
        """Look at the end of a fork.

        Raises:
            InvalidInputError: it is no fork of this session.
            CheckpointError: it cannot be read.
        """
        super().__init__(session, target, label=f"adopt {target.key}"[:200])
        head = session._writer.head
        present = {} if head is None else head.parts
        # What is the same need not be set. What is held elsewhere was not forked, and stays.
        elsewhere = self._external_parts
        self._names = [
            name
            for name in self._names
            if name not in elsewhere and not same_json(target.parts[name], present.get(name))
        ]
        self.report.parts, self.report.adopts = self._names, True
        self._all_parts = False

    def _read_target_record(self) -> SessionRecord:
        session, notes = self._session, read_session_record(self._store, self._target)
        family = None if notes is None else notes.family
        past = {session.key, *(key for key, _ in session._record.lineage)}
        if notes is None or family != session._record.family or notes.origin not in past:
            raise InvalidInputError(
                f"{short_repr(self._target.id, 120)} is no fork of the session "
                f"{short_repr(session.key)}. A fork of a fork is adopted by that fork first."
            )
        return notes

    @property
    def _external_parts(self) -> set[str]:
        """The parts that are snapshots which others hold."""
        parts = self._session._parts
        return {name for name, part in parts.items() if isinstance(part, External)}

    @property
    def _point(self) -> str:
        return str(self._target_record.point)

    @property
    def _rewinds_state(self) -> bool:
        return False

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over what the fork did outside after its last checkpoint."""
        for effect in self._session._ledger.all_effects():
            is_later = (
                effect.seq > self._target_record.ledger
                or effect.id in self._target_record.under_way
            )
            if effect.session == self._target_record.key and effect.stands and is_later:
                yield effect

    def _save_safety(self) -> Checkpoint:
        self._check(self._session._writer.head)
        safety = super()._save_safety()
        self._check(safety)
        return safety

    def _check(self, present: Checkpoint | None) -> None:
        """See to it that the session is what it was when it was forked."""
        point, apart = find(self._store, self._point), {SESSION_PART, *self._external_parts}
        now, then = (_contents(item, apart) for item in (present or point, point))
        changed = [name for name in {**now, **then} if not same_json(now.get(name), then.get(name))]
        if present is None or changed:
            raise ConflictError(
                f"The session {short_repr(self._session.key)} has gone on since {point.id}, where "
                f"{short_repr(self._target.key)} was forked from it ({', '.join(changed)}): to "
                "adopt that would lose work. Roll back to there first, or take the files alone "
                'with merge="files".'
            )

    def _next_record(self, standing: list[str]) -> SessionRecord:
        present, then = self._session._record, self._target_record
        later = [effect.id for effect in self._effects_since()]
        effects = self._session._ledger.effects
        before = [name for name in present.standing if name in effects]
        unknown = [
            name for name in before if not then.knows(effects[name].session, effects[name].seq)
        ]
        told = dict.fromkeys([*unknown, *then.standing, *later])
        return SessionRecord(
            present.key,
            present.family,
            lineage=_merged_lineage(present, then, self._session._ledger.seq),
            point=present.point,
            inherited=present.inherited,
            workspace=present.workspace,
            seal=present.seal,
            ledger=max(present.ledger, then.ledger),
            counts=then.counts.copy(),
            standing=[name for name in told if name in effects and effects[name].stands],
            gone=list(dict.fromkeys([*present.gone, *then.gone])),
            irreversible=present.irreversible,
        )

    def _apply(self, safety: Checkpoint) -> None:
        super()._apply(safety)
        # Whoever is asked is asked by the session from now on.
        ledger, epoch = self._session._ledger, self._session._epoch
        self.report.void += void_requests(ledger, self._target_record.key, epoch)

    def _draft(self, record: SessionRecord) -> Draft:
        return super()._draft(record)._replace(kind=ADOPT)

    def _parents(self, safety: Checkpoint) -> tuple[str, ...]:
        return (self._point, self._target.id)


class FileAdoption(Adoption):
    """The files of a fork, joined with those that the session has changed itself since then."""

    def _check(self, present: Checkpoint | None) -> None:
        """Nothing to see to: what both have changed is a conflict of its own."""

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over all that the fork did outside: the state learns of none of it."""
        for effect in self._session._ledger.all_effects():
            if effect.session == self._target_record.key and effect.stands:
                yield effect

    def _apply(self, safety: Checkpoint) -> None:
        session, files = self._session, self._session._files
        base = self._tree(find(self._store, self._point))
        ours, theirs = self._tree(safety), self._tree(self._target)
        if files is None:
            raise InvalidInputError(
                f"The session {short_repr(session.key)} has no files to merge into."
            )
        merged = merge(base, ours, theirs)
        if merged.conflicts:
            raise ConflictError(_conflict_message(self._target.key, merged.conflicts))
        held = SafetySnapshot(ours, safety.id, self._last_regular_tree(safety))
        try:
            self.report.files = files.workspace.restore_held(theirs, held, paths=merged.paths)
        except BaseException:  # also an interrupt: nothing is half-applied
            self._revert_files(safety)
            raise
        session._ledger.refresh()
        fresh = self._next_record([])
        session._set_record(fresh)
        draft = session._draft(kind=ADOPT, label=self._label)
        moved = session._writer.write(draft, parents=(safety.id, self._target.id))
        self.finish(moved)
        self.report.id = moved.id
        self.report.parts = ["workspace"]
        effects = session._ledger.effects
        self.report.notices = [unseen_effect_notice(effects[name]) for name in fresh.standing]

    def _next_record(self, standing: list[str]) -> SessionRecord:
        present = self._session._record
        fresh = super()._next_record(standing)
        fresh.counts, fresh.ledger = present.counts.copy(), present.ledger
        fresh.gone = list(present.gone)
        fresh.pending = list(present.pending)
        return fresh

    def _tree(self, checkpoint: Checkpoint) -> Tree:
        found = tree_in(self._store, checkpoint)
        if found is None:
            raise InvalidInputError(
                f"The checkpoint {short_repr(checkpoint.id, 120)} has no files."
            )
        return found


def plan_adoption(session: Work, head: str | None, how: str | None) -> Adoption:
    """Return what has to be done to adopt the end of a fork.

    Args:
        session: which adopts it.
        head: an id, key or short form; None if the fork never began.
        how: `files` to merge files alone, or None.

    Raises:
        InvalidInputError: it is no fork of the session, or there is no such way.
        NotFoundError: there is no such checkpoint.
    """
    if how not in (None, "files"):
        raise InvalidInputError(f'merge is "files" or None, not {short_repr(how)}.')
    if head is None:
        raise NotFoundError("There is nothing to adopt: it never began.")
    if not isinstance(head, str):
        raise InvalidInputError(f"A fork, a trial or an id is adopted, not {short_repr(head)}.")
    target = find(session.manager.store, head)
    way = FileAdoption if how == "files" else Adoption
    try:
        return way(session, target)
    except NotFoundError as error:
        raise NotFoundError(f"The moment of the fork is not kept any more: {error}") from error


def _contents(checkpoint: Checkpoint, apart: set[str]) -> dict[str, Any]:
    return {name: part for name, part in checkpoint.parts.items() if name not in apart}


def _merged_lineage(present: SessionRecord, then: SessionRecord, seq: int) -> list[list[Any]]:
    """Return the pasts of both: what the fork has done is from now on the session's own."""
    rows: dict[str, int] = {}
    for key, seen in [*present.lineage, *then.lineage, [then.key, seq]]:
        if key != present.key:
            rows[key] = max(seen, rows.get(key, 0))
    return [[key, seen] for key, seen in rows.items()]


def _conflict_message(key: str, paths: list[bytes]) -> str:
    named = ", ".join(short_repr(os.fsdecode(path), 120) for path in paths[:_MAX_NAMED])
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return (
        f"Nothing was merged: this session and {short_repr(key)} have both changed {named}{more}. "
        "Make these paths equal to one side or to what they were, and try again."
    )
