"""What a session is made of, and how it is saved. Owns what its verbs and their steps share."""

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
    """All that an agent is in the middle of; `Session` has the verbs."""

    manager: CheckpointManager
    _record: SessionRecord
    _writer: CheckpointWriter
    _ledger: Ledger
    _epoch: Epoch
    _effects: Effects
    _files: WorkspacePart | None
    _owns_manager: bool
    _keeps_directory: ClassVar[bool] = True
    """Whether it is opened in the same directory the next time."""

    def __init__(
        self, key: str, agent: Any, parts: Mapping[str, Any] | None, every: str | int
    ) -> None:
        self.key = check_key(key)
        self.every = _checked_every(every)
        self.agent = agent
        self.messages: Log[Any] = Log()
        """The conversation."""
        self.calls: Log[Any] = Log()
        """Every call of a tool, with its arguments and its result or error."""
        self.tasks = Tasks(self)
        self.resumed = False
        """Whether it goes on from a checkpoint."""
        self.drift: WorkspaceDiff | None = None
        """How the files had changed since the last checkpoint, if they had."""
        self._parts = _checked_parts(agent, parts)
        self._files = None
        self._new_parts: list[str] = []
        self._problems: list[str] = []
        self._tokens: list[Any] = []
        self._branches: list[Any] = []
        """Forks of it that are open in this process: also those that nobody else holds."""
        self._is_open = False
        self._is_ended = False
        self._pid = os.getpid()
        self._tool_runner = ToolRunner(self)

    @property
    def workspace(self) -> Workspace | None:
        """The directory it works in."""
        return None if self._files is None else self._files.workspace

    @property
    def head(self) -> str:
        """The id of the last checkpoint."""
        return self._writer.head_id

    @property
    def effects(self) -> list[Effect]:
        """What this session did outside, in order, with what became of it."""
        self._ledger.refresh()
        return [item for item in self._ledger.all_effects() if self._effects.is_ours(item)]

    @property
    def approvals(self) -> Approvals:
        """The requests for approval in this session's store."""
        return Approvals(self.manager.store)

    @property
    def notices(self) -> list[str]:
        """What the agent has to be told, in words: what stands outside, and what is not known."""
        self._ledger.refresh()
        effects = self._ledger.effects
        told = {name: effects[name] for name in self._record.standing if name in effects}
        told.update({effect.id: effect for effect in self._effects.unknown()})
        found = [unseen_effect_notice(effect) for effect in told.values() if effect.stands]
        found += map(compensated_notice, still_compensated(self._ledger, self._record.gone))
        found += self._problems
        found += [
            f"{effect.words} was done after all, although it had been declared not done, and may "
            f"have been done again since: a person has to look. ({effect.note})"
            for effect in self._ledger.all_effects()
            if effect.is_late and effect.stands and self._effects.is_ours(effect)
        ]
        if self.drift is not None:
            drift = self.drift
            number = len(drift.added) + len(drift.removed) + len(drift.changed)
            number += len(drift.renamed)
            found.append(
                f"{number} file{'s were' if number != 1 else ' was'} changed since the last "
                "checkpoint, by others or by a tool that was interrupted."
            )
        if self._files is not None and self._files.workspace.recovered is not None:
            found.append("A restore of the files that was interrupted has been finished.")
        if self._files is not None:
            found += self._files.workspace.notices
        for words, names in (
            ("Tasks that are new", self.tasks.added),
            ("Tasks of the checkpoint that the code does not name", self.tasks.removed),
            ("Parts that the checkpoint did not have", self._new_parts),
        ):
            if names and self.resumed:
                found.append(f"{words}: {', '.join(names)}.")
        return found

    # -- for the steps ---------------------------------------------------------------------------

    def _release(self) -> None:
        try:
            if self._files is not None:
                self._files.workspace.close()
        finally:
            if self._owns_manager:
                self.manager.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError(f"The session {short_repr(self.key)} is closed: open it again.")
        self._check_process()

    def _add_notice(self, words: str) -> None:
        """Have the agent told something, once."""
        if words not in self._problems:
            self._problems.append(words)

    def _check_idle(self, what: str) -> None:
        if self._tool_runner.in_flight:
            raise ConflictError(
                f"{', '.join(self._tool_runner.in_flight)} is running: {what} when no tool is."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConflictError(
                f"The session {short_repr(self.key)} was opened by the process {self._pid}, of "
                "which this one is a fork: open it again here, or under another key."
            )

    def _live_parts(self) -> dict[str, Any]:
        """Return the live objects that are saved, by the names of their parts."""
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
        """Have every file looked at: some changes raise no event."""
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
        """Return the checkpoint at the start of a task, if it is still there."""
        store = self.manager.store
        entries = store.newest_first(self.key)
        if began is None:  # it is the last that the session itself has saved
            passing = ("open", "drift", "safety", CLOSE, IN_FLIGHT)
            return next((item for item in entries if item.kind not in passing), None)
        place = parse_checkpoint_id(began)
        if place is not None and place.key != self.key and place.key in dict(self._record.lineage):
            found = store.read(place.key, place.seq)
            return found if found is not None and found.ts_ns == place.ts_ns else None
        # By its time: an import gives other numbers.
        return next((item for item in entries if place and item.ts_ns == place.ts_ns), None)

    def _restart(self, task: str, began: str | None) -> None:
        """Go back to the start of a task that is run again; answers to requests stay."""
        target = self._start_checkpoint(began)
        if target is None:
            self._problems.append(
                f"The task {task} goes on from the last checkpoint: the one at its start is gone."
            )
            return
        Rollback(self, target, label=f"task {task} again", voids=False).run("warn")


def _checked_every(every: str | int) -> str | int:
    is_number = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    if every not in ("tool", "task", "manual") and not is_number:
        raise InvalidInputError(
            f"every is 'tool', 'task', 'manual' or a number of tools, not {short_repr(every)}."
        )
    return every


def _checked_parts(agent: Any, parts: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(parts or {})
    for name, part in {AGENT: agent, **found}.items():
        check_text(name, "A part's name")
        if name in found and name in _RESERVED_PARTS:
            raise InvalidInputError(f"A session has a part {name!r} of its own: name it otherwise.")
        if isinstance(part, type) or (part is not None and not is_stateful(part)):
            if isinstance(part, type):
                raise InvalidInputError(f"{name} is the class {part.__name__}: pass an instance.")
            raise InvalidInputError(
                f"{name} has no state_dict() and load_state_dict(). Derive its class from "
                "Checkpointable."
            )
    return found
