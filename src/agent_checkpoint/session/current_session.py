"""The current session and task of a call. Owns the context variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import Any, Protocol
from weakref import WeakSet


class OpenSession(Protocol):
    """An open session, as its tools use it."""

    def run(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool."""

    async def arun(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a coroutine tool."""

    def add_notice(self, words: str) -> None:
        """Add a notice for the agent."""


_session: ContextVar[OpenSession | None] = ContextVar("agent_checkpoint_session", default=None)
_task: ContextVar[tuple[object, str] | None] = ContextVar("agent_checkpoint_task", default=None)
_enclosing: ContextVar[tuple[object, ...]] = ContextVar("agent_checkpoint_around", default=())
_open: WeakSet[OpenSession] = WeakSet()
_forked = Event()
"""Whether a session was ever forked in this process: a thread of a fork may outlive it."""


def current_session() -> OpenSession | None:
    """Return the session of this context.

    A new thread has no context. There, return the only open session of the process; None if
    several are open, or if a session was forked, because the thread could belong to either.
    """
    current = _session.get()
    if current is not None:
        return current if current in _open else None
    return next(iter(_open)) if len(_open) == 1 and not _forked.is_set() else None


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
    return _session.set(session)


def leave(token: Any) -> None:
    """Restore the previous session of this context."""
    try:
        _session.reset(token)
    except ValueError:  # entered in another context, as generators may do
        _session.set(None)


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
    return any(item is session for item in _enclosing.get())


@contextmanager
def nested_calls(session: OpenSession) -> Iterator[None]:
    """Mark calls in this block as nested in a tool call."""
    around = _enclosing.get()
    _enclosing.set((*around, session))
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
