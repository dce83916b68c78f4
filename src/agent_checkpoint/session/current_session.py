"""The current session and task of a call. Owns the context variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work

_session: ContextVar[Work | None] = ContextVar("agent_checkpoint_session", default=None)
_task: ContextVar[tuple[Any, str] | None] = ContextVar("agent_checkpoint_task", default=None)
_enclosing: ContextVar[tuple[Any, ...]] = ContextVar("agent_checkpoint_around", default=())
_open: WeakSet[Work] = WeakSet()
_forked = Event()
"""Whether a session was ever forked in this process: a thread of a fork may outlive it."""


def current_session() -> Work | None:
    """Return the session of this context.

    A new thread has no context: there it is the only open session of the process, if there is
    exactly one. After a fork the thread could belong to either, so there is none.
    """
    current = _session.get()
    if current is not None:
        return current if current in _open else None
    return next(iter(_open)) if len(_open) == 1 and not _forked.is_set() else None


def open_sessions() -> list[Work]:
    """Return the sessions that are open in this process."""
    return list(_open)


def current_task(session: Work) -> str | None:
    """Return the id of a session's current task in this context."""
    current = _task.get()
    if current is not None and current[0] is session:
        return current[1]
    return session.tasks.only_one_in_progress()


def enter(session: Work) -> Any:
    """Make a session the current one of this context; return the token for `leave`."""
    return _session.set(session)


def leave(token: Any) -> None:
    """Restore the previous session of this context."""
    try:
        _session.reset(token)
    except ValueError:  # entered in another context, as generators may do
        _session.set(None)


def set_task(session: Work, task: str | None) -> None:
    """Set the current task of this context."""
    _task.set(None if task is None else (session, task))


def is_nested(session: Work) -> bool:
    """Tell whether this call is made by a running tool of the session."""
    return any(item is session for item in _enclosing.get())


@contextmanager
def nested_calls(session: Work) -> Iterator[None]:
    """Mark calls in this block as nested in a tool call."""
    around = _enclosing.get()
    _enclosing.set((*around, session))
    try:
        yield
    finally:
        _enclosing.set(around)


def register_open(session: Work) -> None:
    """Add a session to the open sessions of this process."""
    _open.add(session)
    if not session._keeps_directory:
        _forked.set()


def unregister(session: Work) -> None:
    """Remove a session from the open sessions."""
    _open.discard(session)
