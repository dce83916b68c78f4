"""What the parts and operations of a session share. Owns capturing and saving it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.log import Log
from agent_checkpoint.core.stateful import Stateful
from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.manager.async_verbs import await_future
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import Every, Prices, Provider
from agent_checkpoint.records import CheckpointKind, Draft, Kind, short_repr
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.current_session import OpenSession
from agent_checkpoint.session.effects.effect_context import ToolCall
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord
from agent_checkpoint.session.tools.method_owner import find_owner
from agent_checkpoint.session.tools.tool import Tool
from agent_checkpoint.session.workspace_part import WorkspacePart
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

if TYPE_CHECKING:
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff
    from agent_checkpoint.workspace.workspace import Workspace

AGENT, MESSAGES, CALLS, TASKS = "agent", "messages", "calls", "tasks"
MODEL_CALLS = "model_calls"
RESERVED_PARTS = frozenset({AGENT, MESSAGES, CALLS, MODEL_CALLS, TASKS, FILES, SESSION_PART})


@dataclass(eq=False, repr=False)
class SessionState:
    """The live objects of a session, and the files, ledger and checkpoints behind them."""

    key: str
    manager: CheckpointManager
    every: Every = "manual"
    agent: Any = None
    parts: dict[str, Any] = field(default_factory=dict)
    """The additional parts, by name."""
    messages: Log[Any] = field(default_factory=Log)
    calls: Log[Any] = field(default_factory=Log)
    model_calls: Log[Any] = field(default_factory=Log)
    tasks: Stateful = field(init=False)
    tools: OpenSession = field(init=False)
    """Runs the tools; the session as `current_session` returns it."""
    record: SessionRecord = field(init=False)
    writer: CheckpointWriter = field(init=False)
    ledger: Ledger = field(init=False)
    effects: Effects = field(init=False)
    files: WorkspacePart | None = None
    running: list[ToolCall] = field(default_factory=list)
    """The tool calls in progress."""
    finished_calls: int = 0
    resumed: bool = False
    drift: WorkspaceDiff | None = None
    new_parts: list[str] = field(default_factory=list)
    """Parts that the resumed checkpoint does not have."""
    problems: list[str] = field(default_factory=list)
    """Notices for the agent about problems."""
    branches: list[Any] = field(default_factory=list)
    """Open forks in this process; the references prevent garbage collection."""
    provider: Provider | None = None
    """The model API of the conversation."""
    prices: Prices = field(default_factory=dict)
    """Prices of tokens, by model."""
    has_model_calls: bool = False
    """Whether the resumed checkpoint has model calls; other sessions have the part once used."""
    counted_model_calls: int = 0
    """The model calls whose tokens are in the metrics of a checkpoint."""
    keeps_directory: bool = True
    """Whether the directory is recorded, and used when the session is resumed."""
    is_open: bool = False
    is_interrupted: bool = False
    """Whether a local tool was interrupted, so that the last checkpoint is the last consistent
    state: the next open finds what the tool has changed since as drift."""
    has_kept_drift: bool = False
    """Whether files that had drifted when the session was opened were kept."""
    after_restore: Callable[[], None] = lambda: None
    """Called when objects and files were restored from a checkpoint."""
    is_ended: bool = False
    """Whether the last checkpoint of the run was saved."""
    pid: int = field(default_factory=os.getpid)

    @property
    def workspace(self) -> Workspace | None:
        """The working directory."""
        return None if self.files is None else self.files.workspace

    @property
    def in_flight(self) -> list[str]:
        """The names of the tools that are running."""
        return [call.tool.name for call in list(self.running)]

    def own(self, ledger: Ledger, epoch: Epoch) -> None:
        """Set the ledger, and the epoch under which this process writes to it."""
        self.ledger = ledger
        self.effects = Effects(
            EffectOutcomes(ledger, epoch, self.owner, self.manager.policy), self.record
        )

    def owner(self, tool: Tool, part: str | None = None) -> Any:
        """Return the object that a method tool is called on. Raises NotFoundError."""
        return find_owner(self.live_parts(), tool, part)

    def add_notice(self, words: str) -> None:
        """Add a notice for the agent, once."""
        if words not in self.problems:
            self.problems.append(words)

    # -- checks ----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that this process may use the session. Raises InvalidInputError, ConflictError."""
        if not self.is_open:
            raise InvalidInputError(f"The session {short_repr(self.key)} is closed. Open it again.")
        self.check_process()

    def check_idle(self, action: str) -> None:
        """Check that no tool is running. Raises ConflictError."""
        if self.running:
            raise ConflictError(
                f"Tools are running: {', '.join(self.in_flight)}. Wait for them to finish, then "
                f"{action}."
            )

    def check_process(self) -> None:
        """Check that this process opened the session. Raises ConflictError."""
        if os.getpid() != self.pid:
            raise ConflictError(
                f"The session {short_repr(self.key)} was opened by process {self.pid}, and this "
                "process is a fork of it. Open the session again in this process, or use another "
                "key."
            )

    # -- save ------------------------------------------------------------------------------------

    def live_parts(self) -> dict[str, Any]:
        """Return the live objects to save, by part name."""
        parts: dict[str, Any] = {} if self.agent is None else {AGENT: self.agent}
        parts.update({MESSAGES: self.messages, CALLS: self.calls, TASKS: self.tasks, **self.parts})
        if self.model_calls or self.has_model_calls:
            parts[MODEL_CALLS] = self.model_calls
        return parts if self.files is None else {**parts, FILES: self.files}

    def draft(self, *, kind: CheckpointKind = Kind.SAVE, **options: Any) -> Draft:
        """Capture all parts for a checkpoint. Raises the same errors as `save`."""
        self.check_process()
        record = self.record
        record.in_flight = self.in_flight
        record.ledger = max(record.ledger, self.ledger.seq)
        running = {call.decision.effect.id for call in list(self.running) if call.decision}
        record.under_way = sorted(running.union(list(self.effects.in_progress)))
        if kind in (Kind.SAVE, Kind.CLOSE):
            kind = Kind.IN_FLIGHT if record.in_flight else kind
            options["metrics"] = {**self._model_metrics(), **(options.get("metrics") or {})}
        return self.writer.draft(self.live_parts(), kind=kind, **options)

    def save(self, **options: Any) -> str:
        """Save all parts; return the checkpoint id. Raises the same errors as `Session.save`."""
        with self.writer.lock:
            return self.writer.write(self.draft(**options)).id

    async def asave(self, **options: Any) -> str:
        """Capture all parts now, and await the write. Raises the same errors as `save`."""
        with self.writer.lock:
            future = self.writer.submit(self.draft(**options))
        return await await_future(future)

    def _model_metrics(self) -> dict[str, float]:
        """Return tokens, cost and time of the model calls since the last checkpoint."""
        rows = self.model_calls[self.counted_model_calls :]
        self.counted_model_calls = len(self.model_calls)
        totals: dict[str, float] = {}
        for row in rows:
            found = {f"{name}_tokens": count for name, count in row.get("tokens", {}).items()}
            found["model_seconds"] = row["seconds"]
            found.update({"cost": row["cost"]} if "cost" in row else {})
            for name, value in found.items():
                totals[name] = totals.get(name, 0) + value
        return totals

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
