"""What the parts and operations of a session share. Owns capturing and saving it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import ConflictError, InvalidInputError, WorkspaceError
from agent_checkpoint.manager.async_verbs import await_future
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import Every, Prices
from agent_checkpoint.records import Checkpoint, CheckpointKind, Draft, Kind, short_repr
from agent_checkpoint.session.agent_scope import (
    AGENT,
    CALLS,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    MESSAGES,
    MODEL_CALLS,
    OPEN_CALLS,
    STATUS,
    TASKS,
    AgentScope,
    qualified_part,
)
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.current_session import current_path, enclosing_calls, is_entered
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord
from agent_checkpoint.session.workspace_part import WorkspacePart
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

if TYPE_CHECKING:
    from agent_checkpoint.session.effects.effect_context import ToolCall
    from agent_checkpoint.session.effects.effects import Effects
    from agent_checkpoint.session.tools.recorded_calls import RecordedCalls
    from agent_checkpoint.session.tools.tool import Tool
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff
    from agent_checkpoint.workspace.workspace import Workspace

T = TypeVar("T")

_MAX_NAMED = 20
OUTSIDE = "changed files"
"""The label of a checkpoint before a call."""
RESERVED_PARTS = frozenset(
    {AGENT, MESSAGES, CALLS, MODEL_CALLS, OPEN_CALLS, TASKS, FILES, SESSION_PART}
)


class SessionState:
    """The live objects of a session, and the files, ledger and checkpoints behind them."""

    record: SessionRecord
    writer: CheckpointWriter
    ledger: Ledger
    files: WorkspacePart | None = None
    has_unsaved_calls = False
    """Whether a tool call has ended since the last draft."""
    resumed = False
    drift: WorkspaceDiff | None = None
    replay: RecordedCalls | None = None
    """The recorded calls that answer those of this session."""
    drafted_metrics = 0
    """How many of the unwritten metrics the last draft has."""
    is_open = False
    has_kept_drift = False
    """Whether files that had drifted when the session was opened were kept."""
    drops_drift = False
    """Whether an opening restores files that changed outside of calls."""
    is_ended = False
    """Whether the last checkpoint of the run was saved."""
    _epoch: Epoch
    _effects: Effects | None = None

    def __init__(
        self,
        key: str,
        manager: CheckpointManager,
        every: Every = "manual",
        root: AgentScope | None = None,
        parts: dict[str, Any] | None = None,
        *,
        keeps_directory: bool = True,
    ) -> None:
        """Hold the state of a session that is yet to be opened.

        Args:
            key: the key of the session.
            manager: the manager of its store.
            every: when to save.
            root: the session's own agent.
            parts: the additional parts, by name.
            keeps_directory: whether the directory is recorded, and used when the session is
                resumed.
        """
        self.key = key
        self.manager = manager
        self.every: Every = every
        self.root = AgentScope() if root is None else root
        self.parts: dict[str, Any] = {} if parts is None else parts
        self.keeps_directory = keeps_directory
        self.subagents: dict[str, AgentScope] = {}
        """The open sub-agents by path, and those that ended and are in no checkpoint yet."""
        self.running: list[ToolCall] = []
        """The tool calls in progress."""
        self.new_parts: list[str] = []
        """Parts that the resumed checkpoint does not have."""
        self.problems: list[str] = []
        """Notices for the agent about problems."""
        self.branches: list[Any] = []
        """Open forks in this process; the references prevent garbage collection."""
        self.prices: Prices = {}
        """Prices of tokens, by model."""
        self.unwritten_metrics: list[dict[str, float]] = []
        """Metrics of model calls that no written checkpoint has: of new ones, and of failed
        saves."""
        self.pid = os.getpid()
        self._making = Lock()

    @property
    def workspace(self) -> Workspace | None:
        """The working directory."""
        return None if self.files is None else self.files.workspace

    @property
    def in_flight(self) -> list[str]:
        """The names of the tools that are running."""
        return [call.name for call in list(self.running)]

    def own(self, ledger: Ledger, epoch: Epoch) -> None:
        """Set the ledger, and the epoch under which this process writes to it."""
        self.ledger = ledger
        self._epoch, self._effects = epoch, None

    @property
    def effects(self) -> Effects:
        """The external side effects, and the decisions about new ones; created at the first use.

        Its modules are slow to load, and a session without effects needs none of them.
        """
        if self._effects is None:
            with block_forks(), self._making:
                from agent_checkpoint.session.effects.effects import Effects
                from agent_checkpoint.session.effects.outcomes import EffectOutcomes

                if self._effects is None:
                    outcomes = EffectOutcomes(
                        self.ledger, self._epoch, self.owner, self.manager.policy
                    )
                    self._effects = Effects(outcomes, self.record)
        return self._effects

    def verify_unknown_effects(self) -> None:
        """Verify the effects whose outcome is unknown; failures leave them unknown."""
        if self.ledger.all_effects():
            self.effects.verify_unknown()

    def owner(self, tool: Tool, part: str | None = None) -> Any:
        """Return the object that a method tool is called on. Raises NotFoundError."""
        with block_forks():
            from agent_checkpoint.session.tools.method_owner import find_owner

        return find_owner(self.live_parts(), tool, part)

    def add_notice(self, words: str) -> None:
        """Add a notice for the agent, once."""
        if words not in self.problems:
            self.problems.append(words)

    def note_mismatch(self, name: str, result: Any) -> None:
        """Add a notice if the fields of a loaded part are not those of the checkpoint."""
        found = []
        for words, keys in (
            ("not in the checkpoint, and kept as they are", getattr(result, "missing_keys", None)),
            (
                "only in the checkpoint, and unknown to the class",
                getattr(result, "unexpected_keys", None),
            ),
        ):
            if isinstance(keys, (list, tuple)) and keys:
                names = [short_repr(key) for key in keys[:_MAX_NAMED]]
                found.append(f"{words}: {', '.join(names)}{', …' * (len(keys) > _MAX_NAMED)}")
        if found:
            self.add_notice(
                f"The fields of {short_repr(name)} have changed; {'; '.join(found)}. If a field "
                "was renamed, change the version of the class and register a migration."
            )

    # -- checks ----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that this process may use the session. Raises InvalidInputError, ConflictError."""
        if not self.is_open:
            raise InvalidInputError(f"The session {short_repr(self.key)} is closed. Open it again.")
        self.check_process()

    def check_idle(
        self,
        action: str,
        concerns: Callable[[str], bool] = lambda path: True,
        *,
        files: bool = False,
    ) -> None:
        """Check that no agent that an action concerns is running, apart from the caller.

        Args:
            action: what the caller is about to do, for the message.
            concerns: returns whether the action concerns an agent, by path.
            files: whether the action concerns the files, and so every agent.

        Raises:
            ConflictError: a tool is running, or a sub-agent.
        """
        here, around = current_path(self.root.tools), enclosing_calls()
        running = [
            call.name
            for call in list(self.running)
            # A tool of an enclosing agent waits for the caller.
            if concerns(call.subagent) or (files and (call not in around or call.subagent == here))
        ]
        if running:
            raise ConflictError(
                f"Tools are running: {', '.join(running)}. Wait for them to finish, then {action}."
            )
        beside = [
            scope.path
            for scope in self.entered()
            if not is_entered(scope.tools) and (files or concerns(scope.path))
        ]
        if beside:
            raise ConflictError(
                f"Sub-agents are running: {', '.join(map(short_repr, beside))}. Wait for them to "
                f"finish, then {action}."
            )

    def entered(self) -> list[AgentScope]:
        """Return the sub-agents that are running."""
        return [scope for scope in list(self.subagents.values()) if scope.thread is not None]

    def check_process(self) -> None:
        """Check that this process opened the session. Raises ConflictError."""
        if os.getpid() != self.pid:
            raise ConflictError(
                f"The session {short_repr(self.key)} was opened by process {self.pid}, and this "
                "process is a fork of it. Open the session again in this process, or use another "
                "key."
            )

    # -- save ------------------------------------------------------------------------------------

    def scopes(self) -> list[AgentScope]:
        """Return the session's own agent and its sub-agents."""
        return [self.root, *self.subagents.values()]

    @property
    def is_only_opened(self) -> bool:
        """Whether nothing was saved since the session was opened."""
        return self.writer.head is not None and self.writer.head.kind == Kind.OPEN

    @property
    def is_interrupted(self) -> bool:
        """Whether `run_tools` of an agent was interrupted during a call."""
        return any(scope.is_interrupted for scope in self.scopes())

    def live_parts(self, *, every: bool = False) -> dict[str, Any]:
        """Return the live objects to save, by part name; or every object that can be loaded."""
        parts = {**self.root.live_parts(every=every), **self.parts}
        for scope in list(self.subagents.values()):
            parts.update(scope.live_parts(every=every))
        return parts if self.files is None else {**parts, FILES: self.files}

    def draft(self, *, kind: CheckpointKind = Kind.SAVE, **options: Any) -> Draft:
        """Capture all parts for a checkpoint. Raises the same errors as `save`."""
        self.check_process()
        record = self.record
        record.in_flight = self.in_flight
        record.ledger = max(record.ledger, self.ledger.seq)
        self.has_unsaved_calls = False
        running = {call.decision.effect.id for call in list(self.running) if call.decision}
        in_progress = [] if self._effects is None else list(self._effects.in_progress)
        record.under_way = sorted(running.union(in_progress))
        parts, elsewhere = self.live_parts(), self._captured_elsewhere()
        for name in [name for scope in elsewhere for name in scope.live_parts()]:
            del parts[name]
        if elsewhere:  # they are carried over from the head, so it must contain their last capture
            self.manager.background.flush()
        if kind in (Kind.SAVE, Kind.CLOSE):
            kind = Kind.IN_FLIGHT if record.in_flight else kind
        if kind in (Kind.SAVE, Kind.CLOSE, Kind.IN_FLIGHT, Kind.SAFETY):
            here = [scope for scope in self.scopes() if scope not in elsewhere]
            self.unwritten_metrics.append(_model_metrics(here))
            given, self.drafted_metrics = options.get("metrics"), len(self.unwritten_metrics)
            options["metrics"] = {**_sum(list(self.unwritten_metrics)), **(given or {})}
        restarted = [
            qualified_part(scope.path, "")
            for scope in list(self.subagents.values())
            if scope.is_restarted and not scope.is_saved
        ]
        return self.writer.draft(parts, without=tuple(restarted), kind=kind, **options)

    def _captured_elsewhere(self) -> list[AgentScope]:
        """Return the sub-agents whose state this thread must not capture.

        A sub-agent is captured by the thread in which it runs, at its own checkpoints. So no state
        is captured in the middle of a change, and a checkpoint costs what its own agent changed.
        The session's own agent and parts are always captured: sub-agents may share them.
        """
        here, thread = current_path(self.root.tools), get_ident()
        return [
            scope
            for scope in list(self.subagents.values())
            if scope.is_lost
            or (scope.is_saved and scope.thread not in (None, thread) and scope.path != here)
        ]

    def save(self, *, if_changed: bool = False, **options: Any) -> str:
        """Save all parts; return the checkpoint id. Raises the same errors as `Session.save`.

        With `if_changed`, the head is enough if it was saved in this way with the same content.
        """
        with self.writer.lock:
            draft = self.draft(**options)
            if if_changed and self.writer.is_repeated(draft):
                return self.writer.head_id
            saved = self.write(draft)
            for path, scope in list(self.subagents.items()):
                scope.is_saved = True
                if not scope.is_open:
                    del self.subagents[path]
            return saved.id

    def save_outside_changes(self, write: Callable[[Draft], T]) -> T | None:
        """Save files that changed outside of calls, before a call: they are not its own.

        Does nothing if there are none; or if calls are running or not saved yet, which may have
        made them. The state of the checkpoint is that of the head.

        Args:
            write: writes the draft; its result is returned.

        Raises the same errors as `save`, except for files that cannot be read.
        """
        self.check_open()
        with self.writer.lock:
            # With on_drift="restore", what no call made is undone at the next opening: keep it so.
            is_unwanted = self.drops_drift or self.every in ("task", "manual")
            if is_unwanted or self.files is None or self.running or self.has_unsaved_calls:
                return None
            self.manager.background.flush()  # its state is carried over
            head = self.writer.head
            try:
                draft = self.writer.draft({FILES: self.files}, kind=Kind.OUTSIDE, label=OUTSIDE)
            except WorkspaceError:  # the save after the call raises it, if it is still so
                return None
            files: Any = draft.parts[FILES]
            is_new = head is None or files.inline() != head.parts.get(FILES)
            return write(draft) if is_new else None

    def write(self, draft: Draft) -> Checkpoint:
        """Write the last draft. Raises the same errors as `CheckpointWriter.write`."""
        saved = self.writer.write(draft)
        del self.unwritten_metrics[: self.drafted_metrics]
        return saved

    def follow_head(self) -> None:
        """Mark the sub-agents that are not running at the head, as after a rollback."""
        parts = {} if self.writer.head is None else self.writer.head.parts
        for path, scope in self.subagents.items():
            is_known = qualified_part(path, STATUS) in parts
            scope.is_lost = not is_known or scope.status.status == COMPLETED
            scope.is_restarted = False  # the safety checkpoint has discarded what was before
            if scope.is_open and scope.status.status == FAILED:  # it continues
                scope.status.status = IN_PROGRESS

    async def asave(self, *, if_changed: bool = False, **options: Any) -> str:
        """Capture all parts now, and await the write. Raises the same errors as `save`."""
        with self.writer.lock:
            draft = self.draft(**options)
            if if_changed and self.writer.is_repeated(draft):
                return self.writer.head_id
            future = self.writer.submit(draft)
            # The next draft may be captured before this one is written.
            metrics = _sum(self.unwritten_metrics[: self.drafted_metrics])
            del self.unwritten_metrics[: self.drafted_metrics]
        future.add_done_callback(
            lambda done: self.unwritten_metrics.append(metrics) if done.exception() else None
        )
        return await await_future(future)

    @contextmanager
    def full_scan(self, full: bool = True) -> Iterator[None]:
        """Make the next capture a full stat pass: some changes raise no event."""
        if self.files is None:
            yield
            return
        self.files.full = full
        try:
            yield
        finally:
            self.files.full = False


def _model_metrics(scopes: Iterable[AgentScope]) -> dict[str, float]:
    """Return tokens, cost and time of the model calls of agents since the last draft."""
    found: list[dict[str, float]] = []
    for scope in scopes:
        rows = scope.model_calls[scope.counted_model_calls :]
        scope.counted_model_calls = len(scope.model_calls)
        for row in rows:
            found.append({f"{name}_tokens": count for name, count in row.get("tokens", {}).items()})
            found[-1]["model_seconds"] = row["seconds"]
            found[-1].update({} if row.get("cost") is None else {"cost": row["cost"]})
    return _sum(found)


def _sum(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for row in metrics:
        for name, value in row.items():
            totals[name] = totals.get(name, 0) + value
    return totals
