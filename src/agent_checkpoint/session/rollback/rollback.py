"""Going back: a session's parts and files become what they were. Owns the order of that.

look        which checkpoint, and what was done outside since
refuse      if something of that can neither be undone nor told
hold        a safety checkpoint of the whole present
compensate  undo what can be undone, the newest first, if that is wanted
turn        append the checkpoint: this is the moment at which the session has gone back
follow      set files and objects back; a crash in between is made good at the next opening
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.external import External
from agent_checkpoint.errors import (
    EffectError,
    InvalidInputError,
    RollbackRefusedError,
    WorkspaceError,
)
from agent_checkpoint.manager.parts import restore_parts
from agent_checkpoint.records import Checkpoint, Draft, draft_from, short_repr
from agent_checkpoint.session.effects.approvals import void_requests
from agent_checkpoint.session.rollback.rollback_report import (
    RollbackReport,
    compensated_notice,
    refusal,
    still_compensated,
    unseen_effect_notice,
)
from agent_checkpoint.session.session_record import (
    SESSION_PART,
    SessionRecord,
    is_foreign,
    read_session_record,
)
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.session.workspace_part import without_paths
from agent_checkpoint.store.ledger.ledger import UNDONE, Effect
from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY, prune_safety_checkpoints
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import ObjectRef, ReusedPart
from agent_checkpoint.workspace.restore.operation import SafetySnapshot
from agent_checkpoint.workspace.restore.plan import PlanChangedError
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work

ROLLBACK, PARTIAL = "rollback", "restore"
POLICIES = ("refuse", "warn", "compensate")


class Rollback:
    """One way back of one session."""

    def __init__(
        self,
        session: Work,
        target: Checkpoint,
        *,
        parts: Iterable[str] | None = None,
        keep_unseen: bool = False,
        label: str | None = None,
        voids: bool = True,
    ) -> None:
        """Look at what a rollback would mean.

        Args:
            session: which goes back.
            target: where to.
            parts: what of it goes back; everything if None.
            keep_unseen: leave files alone that came or changed since the last checkpoint.
            label: what a person calls it.
            voids: whether answers to requests are void then.

        Raises:
            InvalidInputError: the target has no such part.
            CheckpointError: it cannot be read.
        """
        self._session = session
        self._target = target
        self._keep_unseen = keep_unseen
        self._label = label
        self._voids = voids
        self._store = session.manager.store
        self._target_record = self._read_target_record()
        self._names = _selected_parts(target, parts)
        self._all_parts = parts is None
        session._ledger.refresh()
        self.report = RollbackReport(
            target.id, self._names, foreign=is_foreign(self._store, target)
        )
        effects = list(self._effects_since())
        self.report.sort(effects, session._record.is_own)
        if self._rewinds_state:
            self.report.gone = self._compensated_since()
            self.report.notices = self._notices(effects)

    def _notices(self, standing: Iterable[Effect]) -> list[str]:
        told = [unseen_effect_notice(effect) for effect in standing]
        return told + [compensated_notice(effect) for effect in self.report.gone]

    def _read_target_record(self) -> SessionRecord:
        """Return the notes of the target; it knows of no effect if it is not of the past."""
        present, then = self._session._record, read_session_record(self._store, self._target)
        past = {present.key: None, **dict(present.lineage)}
        if then is None or then.family != present.family or then.key not in past:
            return SessionRecord(present.key, present.family)
        until = past[then.key]
        if until is not None:  # what its session has seen since is of another line of events
            then.ledger = min(then.ledger, until)
        return then

    @property
    def _rewinds_state(self) -> bool:
        """Whether the state that goes back would no longer know what was done outside."""
        return self._all_parts or any(name != FILES for name in self._names)

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over the effects that stand, and that the session came to know of since then."""
        session, then = self._session, self._target_record
        learnt = {*then.standing, *then.under_way} - set(session._record.standing)
        for effect in session._effects.since(0):
            if not then.knows(effect.session, effect.seq) or effect.id in learnt:
                yield effect

    def _compensated_since(self) -> list[Effect]:
        """Return the effects that the state of then knows of, and that were undone since."""
        session, then = self._session, self._target_record
        undone = [
            str(record.get("effect"))
            for seq, record in session._ledger.stream.read(then.ledger)
            if record["type"] in (UNDONE, "resolved")
            and (record.get("instead") or seq) > then.ledger
        ]
        unlearnt = {*then.standing, *then.under_way}
        found = [name for name in dict.fromkeys([*then.gone, *undone]) if name not in unlearnt]
        return [
            effect
            for effect in still_compensated(session._ledger, found)
            if effect.seq <= then.ledger and session._effects.is_ours(effect)
        ]

    def preview(self) -> RollbackReport:
        """Return the report, with what would be done to the files. Raises as `run` does."""
        tree = tree_in(self._store, self._target) if FILES in self._names else None
        if tree is not None and self._session._files is not None:
            workspace = self._session._files.workspace
            plan = workspace.restore(tree, dry_run=True)
            self.report.files_digest = plan.digest
            # The session's own checkpoint holds all that has not changed since.
            changed = self._session._files.changed_since(self._store, self._session._writer.head)
            plan.unseen = [path for path in plan.unseen if path in changed]
            self.report.files = without_paths(plan, plan.unseen) if self._keep_unseen else plan
        return self.report

    def run(self, policy: str, only_if: RollbackReport | None = None) -> RollbackReport:
        """Go back.

        Args:
            policy: what to do about effects that cannot be undone.
            only_if: what somebody was shown, and has agreed to.

        Raises:
            PlanChangedError: it is not what was shown; nothing was done.
            RollbackRefusedError: something was done outside that cannot be undone, or an `undo`
                failed; the report is in it.
            ConflictError: tools are running, or the session was opened elsewhere.
            CheckpointError: the parts cannot be set back; they are as they were.
        """
        session, report = self._session, self.report
        session._check_idle("roll back")
        if self._rewinds_state and policy != "warn" and report.blocking:
            raise RollbackRefusedError(refusal(report), report)
        if only_if is not None:
            shown = {effect.id for effect in only_if.effects}
            if any(effect.id not in shown for effect in report.effects):
                raise PlanChangedError("What was done outside has")
        with session._writer.lock:
            safety = self._save_safety()
            if only_if is not None:
                self._check_files(only_if)
            if policy == "compensate" and self._rewinds_state:
                self._compensate()
            self._apply(safety)
            prune_safety_checkpoints(self._store, session.key)  # not before: it may go back to one
        return report

    def roll_forward(self, safety: Checkpoint, moved: Checkpoint) -> None:
        """Do again what a crash has kept from being done: the checkpoint is there already."""
        self._keep_unseen = bool(self._target_record.keep_unseen)
        self._restore(safety)
        self.finish(moved)

    # -- the steps -------------------------------------------------------------------------------

    def _save_safety(self) -> Checkpoint:
        session = self._session
        with session._full_scan():
            draft = session._draft(kind=SAFETY)
        saved = session._writer.write(draft)
        self.report.safety_id = saved.id
        return saved

    def _check_files(self, shown: RollbackReport) -> None:
        """See to it that the files are those that were shown, now that a checkpoint holds them.

        What is written from here on is left alone: the checkpoint does not hold it.

        Raises:
            PlanChangedError: they are others.
        """
        tree = tree_in(self._store, self._target) if FILES in self._names else None
        files = self._session._files
        if tree is None or files is None:
            return
        plan = files.workspace.restore(tree, dry_run=True)
        if shown.files_digest is None:  # what was not shown may be added to, not replaced
            is_same = all(step.before is None for step in plan.steps)
        else:
            is_same = plan.digest == shown.files_digest
        if not is_same:
            raise PlanChangedError

    def _compensate(self) -> None:
        report = self.report
        for effect in sorted(report.compensable, key=lambda item: item.seq, reverse=True):
            try:
                self._session._effects.undo(effect)
            except EffectError as error:
                why = error.__cause__  # what it says is for the report, not for the error's text
                report.failure = str(error) if why is None else f"{error} ({describe_error(why)})"
                report.unknown = [effect]
                report.gone = list(report.compensated)
                report.notices = self._notices(self._effects_since())
                self._session._record.gone += [item.id for item in report.compensated]
                raise RollbackRefusedError(
                    f"The session has not gone back: {error} {len(report.compensated)} of "
                    f"{len(report.compensable)} effects were undone before that, the newest "
                    f"first.\n{report.outline()}",
                    report,
                ) from error
            report.compensated.append(effect)

    def _apply(self, safety: Checkpoint) -> None:
        session = self._session
        if self._voids:
            self.report.void = void_requests(session._ledger, session.key, session._epoch)
        session._ledger.refresh()
        standing = [effect.id for effect in self._effects_since()]
        fresh = self._next_record(standing if self._rewinds_state else [])
        try:
            moved = session._writer.write(self._draft(fresh), parents=self._parents(safety))
            self._restore(safety)
        except BaseException as error:
            self._abort(safety, error)
            raise
        fresh.keep_unseen = None
        session._set_record(fresh)
        self.finish(moved)
        self.report.id = moved.id
        self.report.notices = self._notices(
            session._ledger.effects[name] for name in fresh.standing
        )

    def _abort(self, safety: Checkpoint, error: BaseException) -> None:
        """Have the session go on from what it was: nothing is half-applied."""
        saving = self._session._writer
        saving.look()  # an interrupt leaves open whether it was written
        if saving.head_id == safety.id:
            return
        is_interrupt = not isinstance(error, Exception)
        if is_interrupt or isinstance(error, WorkspaceError):  # files are set one by one
            self._revert_files(safety)
        if is_interrupt:  # which may have come after the last step
            self._revert_objects(safety)
        saving.write(draft_from(safety, self._session.key, ROLLBACK), parents=(safety.id,))
        self.finish(saving.head)

    def _next_record(self, standing: list[str]) -> SessionRecord:
        """Return the notes of the session after this: those of the target, in the present."""
        present, then = self._session._record, self._target_record
        told = [] if self._all_parts else present.standing
        known = dict.fromkeys([*then.standing, *told, *standing])
        effects = self._session._ledger.effects
        still = [name for name in known if name in effects and effects[name].stands]
        return SessionRecord(
            present.key,
            present.family,
            lineage=present.lineage,
            point=present.point,
            inherited=present.inherited,
            workspace=present.workspace,
            seal=present.seal,
            ledger=then.ledger if self._rewinds_state else present.ledger,
            counts=(then if self._rewinds_state else present).counts.copy(),
            standing=still if self._rewinds_state else list(present.standing),
            gone=[effect.id for effect in self.report.gone]
            if self._rewinds_state
            else present.gone,
            pending=[] if self._voids else list(present.pending),
            irreversible=present.irreversible,
            keep_unseen=self._keep_unseen or None,
        )

    def _draft(self, record: SessionRecord) -> Draft:
        head = self._session._writer.head
        kept: dict[str, Any] = {} if head is None or self._all_parts else dict(head.parts)
        chosen = {name: self._target.parts[name] for name in self._names}
        parts: dict[str, Any] = {
            name: ReusedPart(tree) for name, tree in {**kept, **chosen}.items()
        }
        parts[SESSION_PART] = record.dump()
        kind = ROLLBACK if self._all_parts else PARTIAL
        return Draft(self._session.key, parts, kind=kind, label=self._label or self._target.label)

    def _parents(self, safety: Checkpoint) -> tuple[str, ...]:
        return (self._target.id,) if self._all_parts else (safety.id, self._target.id)

    def _restore(self, safety: Checkpoint) -> None:
        session, target = self._session, self._target
        live = session._live_parts()
        targets = {name: live[name] for name in self._names if name in live}
        if FILES in targets:  # first: it is what is most likely to fail
            targets = {FILES: targets.pop(FILES), **targets}
        reader = self._store.reader(target)
        files = session._files
        if files is not None:
            held = tree_in(self._store, safety)
            if held is not None:
                files.held = SafetySnapshot(held, safety.id, self._last_regular_tree(safety))
            files.keep_unseen = self._keep_unseen
        elsewhere = {name: part for name, part in targets.items() if isinstance(part, External)}
        for name, part in elsewhere.items():
            tag = safety.parts.get(name)
            if isinstance(tag, dict) and OBJECT in tag:
                part.held = (part.handle_in(ObjectRef(str(tag[OBJECT]), self._store.backend)),)
        try:
            results = restore_parts(target.parts, targets, reader=reader)
        finally:
            if files is not None:
                files.held, files.keep_unseen = None, False
            for part in elsewhere.values():
                part.held = None
        self.report.files = results.get(FILES)

    def _revert_files(self, safety: Checkpoint) -> None:
        files, tree = self._session._files, tree_in(self._store, safety)
        if files is not None and tree is not None:
            with suppress(WorkspaceError):  # the first one is raised, and what is left is drift
                files.workspace.restore(tree)

    def _revert_objects(self, safety: Checkpoint) -> None:
        live = self._session._live_parts()
        chosen = [name for name in self._names if name in live and name != FILES]
        targets = {name: live[name] for name in chosen if name in safety.parts}
        restore_parts(safety.parts, targets, reader=self._store.reader(safety))

    def _last_regular_tree(self, safety: Checkpoint) -> Tree | None:
        """Return the files of the last ordinary checkpoint before a safety one."""
        # What others have changed was saved at the opening, and by nobody who meant to.
        passing = (SAFETY, "drift") if self._keep_unseen else (SAFETY,)
        older = self._store.newest_first(self._session.key, before=safety.seq)
        found = next((item for item in islice(older, 100) if item.kind not in passing), None)
        return None if found is None else tree_in(self._store, found)

    def finish(self, moved: Checkpoint | None) -> None:
        """Note that a move is carried out, as far as it can be. Raises StorageError."""
        if moved is not None:
            self._session._ledger.append("finished", checkpoint=moved.id)


def _selected_parts(target: Checkpoint, parts: Iterable[str] | None) -> list[str]:
    there = [name for name in target.parts if name != SESSION_PART]
    if parts is None:
        return there
    if isinstance(parts, str):
        raise InvalidInputError(f"parts is a list of names, such as [{parts!r}].")
    names = list(dict.fromkeys(parts))
    strange = [name for name in names if name not in there]
    if strange or not names:
        raise InvalidInputError(
            f"The checkpoint {target.id} has no part "
            f"{', '.join(map(short_repr, strange)) or 'at all'}; it has {', '.join(there)}."
        )
    return names
