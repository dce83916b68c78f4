"""The current session and task of a call. Owns the context variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from agent_checkpoint.errors import InvalidInputError

if TYPE_CHECKING:
    from agent_checkpoint.workspace.workspace import Workspace


class OpenSession(Protocol):
    """An agent of an open session, as its tools use it."""

    path: str
    """The path of the sub-agent; empty for the session's own agent."""

    @property
    def session(self) -> OpenSession:
        """The session's own agent."""

    @property
    def workspace(self) -> Workspace | None:
        """The workspace of the session."""

    def run(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool."""

    async def arun(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a coroutine tool."""

    def add_notice(self, words: str) -> None:
        """Add a notice for the agent."""


_entered: ContextVar[tuple[OpenSession, ...]] = ContextVar("agent_checkpoint_session", default=())
"""The agents that this context has entered; the last one is the current one."""
_task: ContextVar[tuple[object, str] | None] = ContextVar("agent_checkpoint_task", default=None)
_enclosing: ContextVar[tuple[tuple[object, object], ...]] = ContextVar(
    "agent_checkpoint_around", default=()
)
_open: WeakSet[OpenSession] = WeakSet()
_forked = Event()
"""Whether a session was ever forked in this process: a thread of a fork may outlive it."""


def current_session() -> OpenSession | None:
    """Return the session of this context, or its sub-agent.

    A new thread has no context. There, return the only open session of the process; None if
    several are open, or if a session was forked, because the thread could belong to either.
    """
    entered = _entered.get()
    if entered:
        return entered[-1] if entered[-1].session in _open else None
    return next(iter(_open)) if len(_open) == 1 and not _forked.is_set() else None


def current_workspace() -> Workspace:
    """Return the workspace of the current session: in a fork, that of the fork.

    Raises:
        InvalidInputError: no session is current, or it has no workspace.
    """
    session = current_session()
    workspace = None if session is None else session.workspace
    if workspace is None:
        why = "has no workspace" if session is not None else "is not current in this thread"
        raise InvalidInputError(
            f"A session {why}. Call this within `with Session(…, workspace=…)`, or in a tool that "
            "is called there."
        )
    return workspace


def current_path(session: OpenSession) -> str:
    """Return the path of the sub-agent of a session that this context is in; empty if none."""
    entered = _entered.get()
    return entered[-1].path if entered and entered[-1].session is session else ""


def is_entered(agent: OpenSession) -> bool:
    """Return whether this context is inside a block of an agent."""
    return any(item is agent for item in _entered.get())


def open_sessions() -> list[OpenSession]:
    """Return the sessions that are open in this process."""
    return list(_open)


def current_task(session: OpenSession) -> str | None:
    """Return the id of the task that this context has set for a session."""
    current = _task.get()
    return current[1] if current is not None and current[0] is session else None


def set_task(session: OpenSession, task: str | None) -> None:
    """Set the current task of this context."""
    _task.set(None if task is None else (session, task))


def enter(session: OpenSession) -> Any:
    """Make a session the current one of this context; return the token for `leave`."""
    return _entered.set((*_entered.get(), session)), _task.get()


def leave(entered: Any) -> None:
    """Restore the previous session and task of this context."""
    token, task = entered
    _task.set(task)
    try:
        _entered.reset(token)
    except ValueError:  # entered in another context, as generators may do
        _entered.set(())


@contextmanager
def as_current(session: OpenSession) -> Iterator[None]:
    """Make a session the current one in this block."""
    token = enter(session)
    try:
        yield
    finally:
        leave(token)


def is_nested(session: OpenSession) -> bool:
    """Return whether this call is made by a running tool of the session."""
    return any(agent is session for agent, _ in _enclosing.get())


def enclosing_calls(session: OpenSession | None = None) -> list[object]:
    """Return the running tool calls that this call is made by, outermost first; of one agent."""
    return [call for agent, call in _enclosing.get() if session in (None, agent)]


@contextmanager
def nested_calls(session: OpenSession, call: object) -> Iterator[None]:
    """Mark calls in this block as nested in a tool call."""
    around = _enclosing.get()
    _enclosing.set((*around, (session, call)))
    try:
        yield
    finally:
        _enclosing.set(around)


def register_open(session: OpenSession, *, is_fork: bool) -> None:
    """Add a session to the open sessions of this process."""
    _open.add(session)
    if is_fork:
        _forked.set()


def unregister(session: OpenSession) -> None:
    """Remove a session from the open sessions."""
    _open.discard(session)
