"""State that the methods of a session and its operations share, and saving it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from agent_checkpoint.core.log import Log
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.manager.async_verbs import await_future
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.manager.parts import check_text
from agent_checkpoint.records import Checkpoint, check_key, parse_checkpoint_id, short_repr
from agent_checkpoint.session.checkpoint_writer import CLOSE, IN_FLIGHT, CheckpointWriter
from agent_checkpoint.session.current_session import enter, leave
from agent_checkpoint.session.effects.approvals import Approvals
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_report import (
    compensated_notice,
    still_compensated,
    unseen_effect_notice,
)
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord
from agent_checkpoint.session.tasks import Tasks
from agent_checkpoint.session.tool_call import ToolRunner
from agent_checkpoint.session.workspace_part import WorkspacePart
from agent_checkpoint.store.ledger.ledger import Effect, Epoch, Ledger
from agent_checkpoint.workspace.tree_names import PART as FILES

if TYPE_CHECKING:
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff
    from agent_checkpoint.workspace.workspace import Workspace

AGENT, MESSAGES, CALLS, TASKS = "agent", "messages", "calls", "tasks"
_RESERVED_PARTS = frozenset({AGENT, MESSAGES, CALLS, TASKS, FILES, SESSION_PART})


class Work:
    """The live state of a session; `Session` adds the public methods."""

    manager: CheckpointManager
    _record: SessionRecord
    _writer: CheckpointWriter
    _ledger: Ledger
    _epoch: Epoch
    _effects: Effects
    _files: WorkspacePart | None
    _owns_manager: bool
    _keeps_directory: ClassVar[bool] = True
    """Whether the directory is recorded, and used when the session is resumed."""

    def __init__(
        self, key: str, agent: Any, parts: Mapping[str, Any] | None, every: str | int
    ) -> None:
        self.key = check_key(key)
        self.every = _checked_every(every)
        self.agent = agent
        self.messages: Log[Any] = Log()
        """The conversation."""
        self.calls: Log[Any] = Log()
        """Every tool call, with its arguments and its result or error."""
        self.tasks = Tasks(self)
        self.resumed = False
        """Whether the session was resumed from a checkpoint."""
        self.drift: WorkspaceDiff | None = None
        """Changes of files between the last checkpoint and the opening, if any."""
        self._parts = _checked_parts(agent, parts)
        self._files = None
        self._new_parts: list[str] = []
        self._problems: list[str] = []
        self._tokens: list[Any] = []
        self._branches: list[Any] = []
        """Forks open in this process; holding them here keeps them from being collected."""
        self._is_open = False
        self._is_ended = False
        self._pid = os.getpid()
        self._tool_runner = ToolRunner(self)

    @property
    def workspace(self) -> Workspace | None:
        """The working directory."""
        return None if self._files is None else self._files.workspace

    @property
    def head(self) -> str:
        """The id of the last checkpoint."""
        return self._writer.head_id

    @property
    def effects(self) -> list[Effect]:
        """The external side effects of this session, in order, with their outcomes."""
        self._ledger.refresh()
        return [item for item in self._ledger.all_effects() if self._effects.is_ours(item)]

    @property
    def approvals(self) -> Approvals:
        """The approval requests in this session's store."""
        return Approvals(self.manager.store)

    @property
    def notices(self) -> list[str]:
        """Texts for the agent: committed effects that its state lacks, and unknown outcomes."""
        self._ledger.refresh()
        effects = self._ledger.effects
        unseen = {name: effects[name] for name in self._record.standing if name in effects}
        unseen.update({effect.id: effect for effect in self._effects.unknown()})
        notices = [unseen_effect_notice(effect) for effect in unseen.values() if effect.stands]
        notices += map(compensated_notice, still_compensated(self._ledger, self._record.gone))
        notices += self._problems
        notices += [
            f"{effect.words} succeeded after it had been recorded as failed, and may have been "
            f"repeated since. A person has to check. ({effect.note})"
            for effect in self._ledger.all_effects()
            if effect.is_late and effect.stands and self._effects.is_ours(effect)
        ]
        if self.drift is not None:
            drift = self.drift
            number = len(drift.added) + len(drift.removed) + len(drift.changed)
            number += len(drift.renamed)
            notices.append(
                f"{number} file{'s' if number != 1 else ''} changed since the last checkpoint, by "
                "another process or by an interrupted tool."
            )
        if self._files is not None and self._files.workspace.recovered is not None:
            notices.append("An interrupted restore of the files was completed.")
        if self._files is not None:
            notices += self._files.workspace.notices
        for words, names in (
            ("New tasks, not in the checkpoint", self.tasks.added),
            ("Tasks in the checkpoint that the code no longer lists", self.tasks.removed),
            ("New parts, not in the checkpoint", self._new_parts),
        ):
            if names and self.resumed:
                notices.append(f"{words}: {', '.join(names)}.")
        return notices

    # -- for the operations ----------------------------------------------------------------------

    def _release(self) -> None:
        try:
            if self._files is not None:
                self._files.workspace.close()
        finally:
            if self._owns_manager:
                self.manager.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError(f"The session {short_repr(self.key)} is closed. Open it again.")
        self._check_process()

    def _add_notice(self, words: str) -> None:
        """Add a notice for the agent, once."""
        if words not in self._problems:
            self._problems.append(words)

    def _check_idle(self, action: str) -> None:
        if self._tool_runner.in_flight:
            raise ConflictError(
                f"Tools are running: {', '.join(self._tool_runner.in_flight)}. Wait for them to "
                f"finish, then {action}."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConflictError(
                f"The session {short_repr(self.key)} was opened by process {self._pid}, and this "
                "process is a fork of it. Open the session again here, or use another key."
            )

    def _live_parts(self) -> dict[str, Any]:
        """Return the live objects to save, by part name."""
        parts: dict[str, Any] = {} if self.agent is None else {AGENT: self.agent}
        parts.update({MESSAGES: self.messages, CALLS: self.calls, TASKS: self.tasks})
        parts.update(self._parts)
        if self._files is not None:
            parts[FILES] = self._files
        return parts

    def _draft(self, *, kind: str = "save", **options: Any) -> Any:
        self._check_process()
        self._record.in_flight = self._tool_runner.in_flight
        self._record.ledger = max(self._record.ledger, self._ledger.seq)
        being_made = {
            call.decision.effect.id for call in list(self._tool_runner._in_flight) if call.decision
        }
        self._record.under_way = sorted(being_made.union(list(self._effects.in_progress)))
        if self._record.in_flight and kind in ("save", CLOSE):
            kind = IN_FLIGHT
        return self._writer.draft(self._live_parts(), kind=kind, **options)

    def _save(self, **options: Any) -> str:
        with self._writer.lock:
            return self._writer.write(self._draft(**options)).id

    def _save_for_task(self, label: str, *, full: bool = False) -> str:
        if self.every == "manual":
            return self.head
        with self._full_scan(full):
            return self._save(label=label)

    def _is_due(self, nested: bool) -> bool:
        if nested or self.every in ("task", "manual"):
            return False
        return self.every == "tool" or self._tool_runner.finished % int(self.every) == 0

    def _save_after_call(self, label: str, *, nested: bool) -> None:
        if self._is_due(nested):
            self._save(label=label)

    async def _asave(self, **options: Any) -> str:
        with self._writer.lock:
            future = self._writer.submit(self._draft(**options))
        return await await_future(future)

    async def _asave_after_call(self, label: str, *, nested: bool) -> None:
        if self._is_due(nested):
            await self._asave(label=label)

    @contextmanager
    def _full_scan(self, full: bool = True) -> Iterator[None]:
        """Make the next capture a full stat pass: some changes raise no event."""
        if self._files is None:
            yield
            return
        self._files.full = full
        try:
            yield
        finally:
            self._files.full = False

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        token = enter(self)
        try:
            yield
        finally:
            leave(token)

    def _set_record(self, record: SessionRecord) -> None:
        self._record = self._writer.record = self._effects.session_record = record

    def _start_checkpoint(self, began: str | None) -> Checkpoint | None:
        """Return the checkpoint at the start of a task, or None if it was pruned."""
        store = self.manager.store
        entries = store.newest_first(self.key)
        if began is None:  # the newest checkpoint that the session saved as work
            passing = ("open", "drift", "safety", CLOSE, IN_FLIGHT)
            return next((item for item in entries if item.kind not in passing), None)
        parsed = parse_checkpoint_id(began)
        if (
            parsed is not None
            and parsed.key != self.key
            and parsed.key in dict(self._record.lineage)
        ):
            checkpoint = store.read(parsed.key, parsed.seq)
            return (
                checkpoint if checkpoint is not None and checkpoint.ts_ns == parsed.ts_ns else None
            )
        # By timestamp: an import assigns new sequence numbers.
        return next((item for item in entries if parsed and item.ts_ns == parsed.ts_ns), None)

    def _restart(self, task: str, began: str | None) -> None:
        """Roll back to the start of a task; answers to approval requests stay valid."""
        target = self._start_checkpoint(began)
        if target is None:
            self._problems.append(
                f"The task {task} continues from the last checkpoint: the checkpoint at its start "
                "was removed."
            )
            return
        Rollback(self, target, label=f"task {task} again", voids=False).run("warn")


def _checked_every(every: str | int) -> str | int:
    is_number = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    if every not in ("tool", "task", "manual") and not is_number:
        raise InvalidInputError(
            "every must be 'tool', 'task', 'manual' or a number of tool calls, not "
            f"{short_repr(every)}."
        )
    return every


def _checked_parts(agent: Any, parts: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = dict(parts or {})
    for name, part in {AGENT: agent, **checked}.items():
        check_text(name, "A part's name")
        if name in checked and name in _RESERVED_PARTS:
            raise InvalidInputError(f"The part name {name!r} is reserved. Use another name.")
        if isinstance(part, type) or (part is not None and not is_stateful(part)):
            if isinstance(part, type):
                raise InvalidInputError(f"{name} is the class {part.__name__}: pass an instance.")
            raise InvalidInputError(
                f"{name} has no state_dict() and load_state_dict(). Derive its class from "
                "Checkpointable."
            )
    return checked
