"""The part of a session that belongs to one agent: the session's own, or a sub-agent.

Owns the names of the parts of a sub-agent in a checkpoint: `subagents/researcher/messages`, and
`subagents/researcher/reader/messages` for a sub-agent of that sub-agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agent_checkpoint.core.log import Log
from agent_checkpoint.core.stateful import Stateful
from agent_checkpoint.errors import InvalidInputError, StateMismatchError
from agent_checkpoint.options import Provider
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.current_session import OpenSession
from agent_checkpoint.session.open_calls import OpenCalls

AGENT, MESSAGES, CALLS, TASKS, STATUS = "agent", "messages", "calls", "tasks", "status"
MODEL_CALLS, OPEN_CALLS = "model_calls", "open_calls"
SUBAGENTS = "subagents/"
"""The prefix of the parts of sub-agents."""
IN_PROGRESS, COMPLETED, FAILED = "in_progress", "completed", "failed"


def qualified_part(path: str, name: str) -> str:
    """Return the name in a checkpoint of a part of an agent; the session's own path is empty."""
    return f"{SUBAGENTS}{path}/{name}" if path else name


def split_part(name: str) -> tuple[str, str]:
    """Return the path of the agent that a part of a checkpoint belongs to, and its name there."""
    path, _, last = name[len(SUBAGENTS) :].rpartition("/")
    return (path, last) if path and name.startswith(SUBAGENTS) else ("", name)


def part_groups(names: Iterable[str]) -> list[str]:
    """Return the names of parts, with all parts of a sub-agent as one: `subagents/NAME`."""
    chosen = list(names)
    whole = {path for path, last in map(split_part, chosen) if path and last == STATUS}
    paths = {name: split_part(name)[0] for name in chosen}
    return list(
        dict.fromkeys(SUBAGENTS + path if path in whole else name for name, path in paths.items())
    )


def is_within(path: str, outer: str) -> bool:
    """Return whether an agent is `outer`, or a sub-agent of it at any depth."""
    return not outer or path == outer or path.startswith(f"{outer}/")


def path_of_place(place: str | None) -> str:
    """Return the path of the agent of a `place`; see `AgentScope.place`."""
    path, is_subagent, _ = (place or "").partition("\0")
    return path if is_subagent else ""


class SubagentStatus:
    """Whether a sub-agent has finished, and its result; a Stateful."""

    def __init__(
        self, status: str = IN_PROGRESS, note: str = "", result: Any = None, run: int = 1
    ) -> None:
        self.status = status
        self.note = note
        """The error of a sub-agent that failed."""
        self.result = result
        self.run = run
        """How many times the sub-agent was started anew."""

    def state_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(vars(self))

    def load_state_dict(self, state: Any) -> None:
        """Load the fields. Raises StateMismatchError."""
        try:
            vars(self).update(vars(SubagentStatus(**state)))
        except TypeError as error:
            raise StateMismatchError(f"The state is not that of a sub-agent ({error}).") from None


class AgentScope:
    """The live objects of one agent of a session: its state, conversation, calls and tasks."""

    tasks: Stateful
    tools: OpenSession
    """Runs the tools; the agent as `current_session` returns it."""
    finished_calls = 0
    provider: Provider | None = None
    """The model API of the conversation."""
    has_model_calls = False
    """Whether the part `model_calls` exists; the first model call creates it."""
    has_open_calls = False
    """Whether the part `open_calls` exists; the first `run_tools` creates it."""
    counted_model_calls = 0
    """How many model calls were counted for the metrics of checkpoints."""
    is_interrupted = False
    """Whether `run_tools` was interrupted during a call."""
    is_open = True
    is_lost = False
    """Whether the session was rolled back to a checkpoint in which the sub-agent is not running."""
    is_saved = False
    """Whether a checkpoint of this process contains it."""
    is_restarted = False
    thread: int | None = None
    """The thread in which the sub-agent runs: only this thread captures its state."""

    def __init__(self, agent: Any = None, path: str = "") -> None:
        self.agent = agent
        self.path = path
        """The names of the sub-agent and of those around it, such as `researcher/reader`."""
        self.messages: Log[Any] = Log()
        self.calls: Log[Any] = Log()
        self.model_calls: Log[Any] = Log()
        self.status = SubagentStatus()
        self.open_calls = OpenCalls()
        """The calls of a model that `run_tools` is making."""
        self.after_restore: Callable[[], None]
        """Makes the conversation valid after a rollback."""

    def live_parts(self, *, every: bool = False) -> dict[str, Any]:
        """Return the live objects to save, by part name; or every object that can be loaded."""
        parts: dict[str, Any] = {} if self.agent is None else {AGENT: self.agent}
        parts.update({MESSAGES: self.messages, CALLS: self.calls, TASKS: self.tasks})
        if every or self.model_calls or self.has_model_calls:
            parts[MODEL_CALLS] = self.model_calls
        if every or self.open_calls or self.has_open_calls:
            parts[OPEN_CALLS] = self.open_calls
        if not self.path:
            return parts
        parts[STATUS] = self.status
        return {qualified_part(self.path, name): part for name, part in parts.items()}

    def place(self, task: str | None) -> str | None:
        """Return where calls without an idempotency key are counted: the task of this agent.

        For a sub-agent, its path, its run and the task, separated by NUL: no task id contains it.
        """
        return f"{self.path}\0{self.status.run}\0{task or ''}" if self.path else task

    def label(self, words: str) -> str:
        """Return the label of a checkpoint of this agent: it names the sub-agent."""
        return f"{self.path}: {words}" if self.path else words

    def check_open(self) -> None:
        """Check that the agent may be used. Raises InvalidInputError."""
        name = f"The sub-agent {short_repr(self.path)}"
        if self.is_lost:
            raise InvalidInputError(
                f"{name} is not running at the checkpoint that the session was rolled back to. "
                "Open it again."
            )
        if not self.is_open and self.status.status == COMPLETED:
            raise InvalidInputError(
                f"{name} has finished. Use another name, or pass restart=True to start again."
            )
        if not self.is_open:
            raise InvalidInputError(f"{name} has ended. Open it again.")
