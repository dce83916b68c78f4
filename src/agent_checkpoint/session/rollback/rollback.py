"""Rollback of a session. Owns the order of the steps.

report      classify the external side effects since the target
refuse      if the policy does not permit the rollback
safety      save a safety checkpoint of all parts
compensate  run `undo=` of the compensable effects, newest first, if requested
stage       write the new file contents and the journal to the directory
commit      append the rollback checkpoint: the session is rolled back from this point on
restore     restore files and objects; after a crash, the next open completes this step
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from agent_checkpoint import telemetry
from agent_checkpoint.core.external_snapshot import External
from agent_checkpoint.errors import (
    EffectError,
    InvalidInputError,
    RollbackRefusedError,
    WorkspaceError,
)
from agent_checkpoint.manager.checkpoint_parts import restore_parts
from agent_checkpoint.options import RollbackEffects
from agent_checkpoint.records import Checkpoint, Draft, Kind, draft_from, short_repr
from agent_checkpoint.session.agent_scope import (
    MESSAGES,
    MODEL_CALLS,
    OPEN_CALLS,
    SUBAGENTS,
    is_within,
    path_of_place,
    qualified_part,
    split_part,
)
from agent_checkpoint.session.effects.approvals import unused_requests, void_requests
from agent_checkpoint.session.open_calls import OpenCalls
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
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.ledger.ledger_status import UNDONE
from agent_checkpoint.store.maintenance.safety_checkpoints import prune_safety_checkpoints
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import ObjectRef, ReusedPart
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.journal import Decision
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError
from agent_checkpoint.workspace.restore.transition import SafetySnapshot
from agent_checkpoint.workspace.tree.snapshot import Tree


class Rollback:
    """One rollback of one session."""

    def __init__(
        self,
        state: SessionState,
        target: Checkpoint,
        *,
        parts: Iterable[str] | None = None,
        keep_unseen: bool = False,
        label: str | None = None,
        voids: bool = True,
    ) -> None:
        """Prepare a rollback and its report; change nothing.

        Args:
            state: the session to roll back.
            target: the checkpoint to roll back to.
            parts: the parts to roll back; all if None.
            keep_unseen: keep files created or changed since the last regular checkpoint.
            label: the label of the rollback checkpoint.
            voids: whether unused approval requests become void.

        Raises:
            InvalidInputError: the target has no such part.
            CheckpointError: the target cannot be read.
        """
        self._state = state
        self._target = target
        self._keep_unseen = keep_unseen
        self._label = label
        self._voids = voids
        self._store = state.manager.store
        self._target_record = self._read_target_record()
        self._all_parts = parts is None
        self._names, self._subagents = _selected_parts(target, parts)
        state.ledger.refresh()
        self.report = RollbackReport(
            target.id, self._names, foreign=is_foreign(self._store, target)
        )
        effects = list(self._effects_since())
        self.report.classify(effects, state.record.is_own)
        if self._rewinds_state:
            self.report.gone = self._compensated_since()
            self.report.notices = self._notices(effects)

    def _notices(self, standing: Iterable[Effect]) -> list[str]:
        notices = [unseen_effect_notice(effect) for effect in standing]
        return notices + [compensated_notice(effect) for effect in self.report.gone]

    def _read_target_record(self) -> SessionRecord:
        """Return the session record of the target; an empty record if it has another history."""
        current, record = self._state.record, read_session_record(self._store, self._target)
        past = {current.key: None, **dict(current.lineage)}
        if record is None or record.family != current.family or record.key not in past:
            return SessionRecord(current.key, current.family)
        until = past[record.key]
        if until is not None:  # the ancestor's effects after the fork are of another history
            record.ledger = min(record.ledger, until)
        return record

    @property
    def _rewinds_state(self) -> bool:
        """Whether state is rolled back too, so that it no longer contains later effects."""
        return self._all_parts or any(name != FILES for name in self._names)

    def _concerns(self, path: str) -> bool:
        """Return whether state of an agent is rolled back: the session's own, or a sub-agent."""
        if self._all_parts or any(is_within(path, outer) for outer in self._subagents):
            return True
        return any(split_part(name)[0] == path for name in self._names if name != FILES)

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over the remaining effects that the target's state does not contain."""
        state, target_record = self._state, self._target_record
        learned = {*target_record.standing, *target_record.under_way} - set(state.record.standing)
        for effect in state.effects.since(0):
            is_new = not target_record.knows(effect.session, effect.seq) or effect.id in learned
            if is_new and self._concerns(effect.subagent or ""):
                yield effect

    def _compensated_since(self) -> list[Effect]:
        """Return the effects that the target's state contains and that were compensated since."""
        state, target_record = self._state, self._target_record
        undone = [
            str(record.get("effect"))
            for seq, record in state.ledger.stream.read(target_record.ledger)
            if record["type"] in (UNDONE, "resolved")
            and (record.get("instead") or seq) > target_record.ledger
        ]
        not_learned = {*target_record.standing, *target_record.under_way}
        candidates = [
            name
            for name in dict.fromkeys([*target_record.gone, *undone])
            if name not in not_learned
        ]
        return [
            effect
            for effect in still_compensated(state.ledger, candidates)
            if effect.seq <= target_record.ledger
            and state.effects.is_ours(effect)
            and self._concerns(effect.subagent or "")
        ]

    def preview(self) -> RollbackReport:
        """Return the report, with the plan for the files. Raises the same errors as `run`."""
        tree = tree_in(self._store, self._target) if FILES in self._names else None
        if tree is not None and self._state.files is not None:
            workspace = self._state.files.workspace
            plan = workspace.restore(tree, dry_run=True)
            self.report.files_digest = plan.digest
            # Files unchanged since the head are saved in it.
            changed = self._state.files.changed_since(self._store, self._state.writer.head)
            plan.unseen = [path for path in plan.unseen if path in changed]
            self.report.files = _without_paths(plan, plan.unseen) if self._keep_unseen else plan
        return self.report

    def run(self, policy: RollbackEffects, only_if: RollbackReport | None = None) -> RollbackReport:
        """Roll back.

        Args:
            policy: `refuse`, `warn` or `compensate`; see `Session.rollback`.
            only_if: the report that a user confirmed.

        Raises:
            PlanChangedError: files or effects differ from `only_if`; nothing was changed.
            RollbackRefusedError: the policy refuses, or a compensation failed; see its `report`.
            ConflictError: tools are running, or another process has opened the session.
            CheckpointError: a part cannot be restored; all parts are unchanged.
        """
        state, report = self._state, self.report
        state.check_idle("roll back", self._concerns, files=FILES in self._names)
        if self._rewinds_state and policy != "warn" and report.blocking:
            raise refusal(report)
        if only_if is not None:
            shown = {effect.id for effect in only_if.effects}
            if any(effect.id not in shown for effect in report.effects):
                raise PlanChangedError("External side effects have")
        with state.writer.lock, telemetry.operation("rollback", key=state.key):
            safety = self._save_safety()
            if only_if is not None:
                self._check_files(only_if)
            if policy == "compensate" and self._rewinds_state:
                self._compensate()
            self._apply(safety)
            prune_safety_checkpoints(self._store, state.key)  # last: the target may be one
        return report

    def roll_forward(self, safety: Checkpoint, checkpoint: Checkpoint) -> None:
        """Complete a rollback after a crash: its checkpoint exists, its restore is unfinished."""
        self._keep_unseen = bool(self._target_record.keep_unseen)
        self._restore_parts(safety, None)
        self.finish(checkpoint)

    # -- the steps -------------------------------------------------------------------------------

    def _save_safety(self) -> Checkpoint:
        state = self._state
        with state.full_scan():
            draft = state.draft(kind=Kind.SAFETY)
        saved = state.write(draft)
        self.report.safety_id = saved.id
        return saved

    def _check_files(self, shown: RollbackReport) -> None:
        """Check that the files match the confirmed report. The safety checkpoint contains them now.

        Later writes are not overwritten: the safety checkpoint does not contain them.

        Raises:
            PlanChangedError: the files differ.
        """
        tree = tree_in(self._store, self._target) if FILES in self._names else None
        files = self._state.files
        if tree is None or files is None:
            return
        plan = files.workspace.restore(tree, dry_run=True)
        if shown.files_digest is None:  # nothing was shown: new files are fine, overwriting is not
            is_same = all(step.before is None for step in plan.steps)
        else:
            is_same = plan.digest == shown.files_digest
        if not is_same:
            raise PlanChangedError

    def _compensate(self) -> None:
        report = self.report
        for effect in sorted(report.compensable, key=lambda item: item.seq, reverse=True):
            try:
                self._state.effects.outcomes.undo(effect)
            except EffectError as error:
                why = error.__cause__  # its text may contain arguments: for the report only
                report.failure = str(error) if why is None else f"{error} ({describe_error(why)})"
                report.unknown = [effect]
                report.gone = list(report.compensated)
                report.notices = self._notices(self._effects_since())
                self._state.record.gone += [item.id for item in report.compensated]
                raise RollbackRefusedError(
                    f"Not rolled back: a compensation failed. {error.with_hint()} "
                    f"{len(report.compensated)} of {len(report.compensable)} effects were "
                    "compensated before it, newest first."
                    f"\n{report.outline()}",
                    report,
                    hint=error.hint,
                ) from error
            report.compensated.append(effect)

    def _apply(self, safety: Checkpoint) -> None:
        state = self._state
        if self._voids:
            unused = unused_requests(state.ledger, state.key)
            self.report.void = void_requests(state.ledger, unused, state.effects.epoch)
        state.ledger.refresh()
        standing = [effect.id for effect in self._effects_since()]
        new_record = self._next_record(standing if self._rewinds_state else [])
        parents = self._parents(safety)
        self._restore(
            safety,
            Decision(parents, lambda _: state.writer.write(self._draft(new_record), parents)),
        )
        self._complete(new_record)

    def _complete(self, record: SessionRecord) -> None:
        """Continue with the new session record: all parts are restored."""
        state = self._state
        record.keep_unseen = None
        state.record.become(record)
        state.follow_head()
        self.finish(state.writer.head)
        self.report.id = state.writer.head_id
        effects = state.ledger.state.effects
        self.report.notices = self._notices(effects[name] for name in record.standing)
        for scope in filter(lambda scope: self._concerns(scope.path), state.scopes()):
            name = qualified_part(scope.path, MODEL_CALLS)
            if self._is_whole(scope.path) and name not in self._target.parts:
                scope.model_calls.truncate(0)  # the target is older than the first call
            scope.counted_model_calls = len(scope.model_calls)
            name = qualified_part(scope.path, OPEN_CALLS)
            if name not in self._target.parts and self._removes(name):
                scope.open_calls.become(OpenCalls())
            if not scope.is_lost:
                scope.after_restore()

    def _abort(self, safety: Checkpoint, error: BaseException) -> None:
        """Return the session to the safety checkpoint, so that no change is half-applied."""
        writer = self._state.writer
        writer.resolve_interrupted()  # the rollback checkpoint may have been appended
        if writer.head_id == safety.id:
            return
        is_interrupt = not isinstance(error, Exception)
        if is_interrupt or isinstance(error, WorkspaceError):  # files are restored one by one
            self._revert_files(safety)
        if is_interrupt:  # it may have come after the objects were restored
            self._revert_objects(safety)
        writer.write(draft_from(safety, self._state.key, Kind.ROLLBACK), parents=(safety.id,))
        self.finish(writer.head)

    def _next_record(self, standing: list[str]) -> SessionRecord:
        """Return the session record after the rollback: the target's, with the current lineage."""
        current, target_record = self._state.record, self._target_record
        effects = self._state.ledger.state.effects

        def concerns(name: str) -> bool:
            return name in effects and self._concerns(effects[name].subagent or "")

        kept = [] if self._all_parts else current.standing
        known = dict.fromkeys([*filter(concerns, target_record.standing), *kept, *standing])
        still = [name for name in known if name in effects and effects[name].stands]
        gone = [name for name in current.gone if not concerns(name)]
        rewinds, head = self._rewinds_state, self._state.writer.head
        # The state of other agents reflects the ledger as before.
        is_whole = self._all_parts or not any(map(self._is_of_others, head.parts if head else ()))
        return current.replaced(
            ledger=target_record.ledger if rewinds and is_whole else current.ledger,
            counts=current.counts.replaced(
                target_record.counts, lambda place: rewinds and self._concerns(path_of_place(place))
            ),
            standing=still if rewinds else list(current.standing),
            gone=[*gone, *(effect.id for effect in self.report.gone)] if rewinds else current.gone,
            pending=[] if self._voids else list(current.pending),
            under_way=[] if self._all_parts else list(current.under_way),
            batches=[
                *(row for row in current.batches if not self._rewinds_calls(row[0])),
                *(row for row in target_record.batches if self._rewinds_calls(row[0])),
            ],
            torn_calls=[row for row in current.torn_calls if not self._is_whole(row[0])],
            in_flight=[] if self._all_parts else list(current.in_flight),
            drift=[],
            keep_unseen=self._keep_unseen or None,
        )

    def _draft(self, record: SessionRecord) -> Draft:
        head = self._state.writer.head
        before = {} if head is None or self._all_parts else head.parts
        kept = {
            name: tree
            for name, tree in before.items()
            if name in self._target.parts or not self._removes(name)
        }
        chosen = {name: self._target.parts[name] for name in self._names}
        parts: dict[str, Any] = {
            name: ReusedPart(tree) for name, tree in {**kept, **chosen}.items()
        }
        parts[SESSION_PART] = record.dump()
        kind = Kind.ROLLBACK if self._all_parts else Kind.RESTORE
        return Draft(self._state.key, parts, kind=kind, label=self._label or self._target.label)

    def _is_whole(self, path: str) -> bool:
        """Return whether all parts of an agent are rolled back."""
        return self._all_parts or any(is_within(path, outer) for outer in self._subagents)

    def _rewinds_calls(self, path: str) -> bool:
        """Return whether the calls of an agent are rolled back."""
        return self._is_whole(path) or qualified_part(path, "calls") in self._names

    def _removes(self, name: str) -> bool:
        """Return whether to remove a part of the head that the target does not have."""
        path, last = split_part(name)
        if last == OPEN_CALLS and qualified_part(path, MESSAGES) in self._names:
            return True
        return bool(path) and any(is_within(path, outer) for outer in self._subagents)

    def _is_of_others(self, name: str) -> bool:
        path = split_part(name)[0]
        return bool(path) and not self._concerns(path)

    def _parents(self, safety: Checkpoint) -> tuple[str, ...]:
        return (self._target.id,) if self._all_parts else (safety.id, self._target.id)

    def _restore(self, safety: Checkpoint, decision: Decision) -> None:
        """Commit, and restore the parts; on an error return to the safety checkpoint."""
        try:
            self._restore_parts(safety, decision)
        except BaseException as error:
            self._abort(safety, error)
            raise

    def _restore_parts(self, safety: Checkpoint, decision: Decision | None) -> None:
        state, target = self._state, self._target
        live = state.live_parts(every=True)
        targets = {name: live[name] for name in self._names if name in live}
        if FILES in targets:  # first: most likely to fail
            targets = {FILES: targets.pop(FILES), **targets}
        reader = self._store.reader(target)
        files = state.files
        if files is not None:
            held = tree_in(self._store, safety)
            if held is not None:
                files.held = SafetySnapshot(held, safety.id, self._last_regular_tree(safety))
            files.keep_unseen = self._keep_unseen
        if FILES in targets and files is not None and files.held is not None:
            files.decision = decision  # the commit comes after the staging of the files
        elif decision is not None:
            decision.append(None)
        external = {name: part for name, part in targets.items() if isinstance(part, External)}
        for name, part in external.items():
            tag = safety.parts.get(name)
            if isinstance(tag, dict) and OBJECT in tag:
                part.held = (part.handle_in(ObjectRef(str(tag[OBJECT]), self._store.backend)),)
        try:
            results = restore_parts(target.parts, targets, reader=reader)
        finally:
            if files is not None:
                files.held, files.keep_unseen, files.decision = None, False, None
            for part in external.values():
                part.held = None
        self.report.files = results.get(FILES)

    def _revert_files(self, safety: Checkpoint) -> None:
        files, tree = self._state.files, tree_in(self._store, safety)
        if files is not None and tree is not None:
            with suppress(WorkspaceError):  # raise the first error; remaining changes are drift
                files.workspace.restore(tree)

    def _revert_objects(self, safety: Checkpoint) -> None:
        live = self._state.live_parts(every=True)
        chosen = [name for name in self._names if name in live and name != FILES]
        targets = {name: live[name] for name in chosen if name in safety.parts}
        restore_parts(safety.parts, targets, reader=self._store.reader(safety))

    def _last_regular_tree(self, safety: Checkpoint) -> Tree | None:
        """Return the files of the last regular checkpoint before a safety checkpoint."""
        # These were not saved by the user.
        unseen = (Kind.DRIFT, Kind.OUTSIDE)
        passing = (Kind.SAFETY, *unseen) if self._keep_unseen else (Kind.SAFETY,)
        older = self._store.newest_first(self._state.key, before=safety.seq)
        regular = next((item for item in islice(older, 100) if item.kind not in passing), None)
        return None if regular is None else tree_in(self._store, regular)

    def finish(self, checkpoint: Checkpoint | None) -> None:
        """Record in the ledger that the restore step is complete. Raises StorageError."""
        if checkpoint is not None:
            self._state.ledger.append("finished", checkpoint=checkpoint.id)


def _selected_parts(target: Checkpoint, parts: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Return the names of the parts to roll back, and the paths of whole sub-agents among them.

    `subagents/NAME` selects all parts of a sub-agent and of its own sub-agents.
    """
    available = [name for name in target.parts if name != SESSION_PART]
    if parts is None:
        return available, []
    if isinstance(parts, str):
        raise InvalidInputError(f"parts must be a list of names, such as [{parts!r}].")
    names, paths = [], []
    for name in dict.fromkeys(parts):
        inside = [item for item in available if item.startswith(f"{name}/")]
        is_subagent = name not in available and name.startswith(SUBAGENTS) and bool(inside)
        names += inside if is_subagent else [name]
        paths += [name[len(SUBAGENTS) :]] if is_subagent else []
        path, last = split_part(name)
        opened = qualified_part(path, OPEN_CALLS)
        names += [opened] if last == MESSAGES and opened in available else []  # they end with them
    missing = [name for name in names if name not in available]
    if not names:
        raise InvalidInputError(
            f"parts= is empty. The checkpoint {target.id} has {', '.join(available)}."
        )
    if missing:
        raise InvalidInputError(
            f"The checkpoint {target.id} has no part {', '.join(map(short_repr, missing))}; it has "
            f"{', '.join(available)}."
        )
    return list(dict.fromkeys(names)), paths


def _without_paths(plan: Plan, paths: Iterable[str]) -> Plan:
    """Return a plan that keeps some paths and their parent directories."""
    kept = {os.fsencode(path): path for path in paths}
    rest = Plan(
        plan.tree,
        [step for step in plan.steps if step.path not in kept],
        leave={**plan.leave, **dict.fromkeys(kept.values(), "not in a checkpoint yet")},
        unseen=plan.unseen,
        git=plan.git,
        left=plan.left | kept.keys(),
    )
    names = [path.split(b"/") for path in kept]
    rest.keep({b"/".join(steps[:depth]) for steps in names for depth in range(1, len(steps))})
    return rest
