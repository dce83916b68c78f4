"""Which session, and which task of it, a call belongs to. Owns the context variables."""

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
"""Whether there was ever a fork in this process: a thread of one may outlive it."""


def current_session() -> Work | None:
    """Return the session that is entered here.

    A new thread begins without one: there it is the only one that is open in the process, if it
    is the only one. Where there were forks, nobody knows whose thread it is.
    """
    found = _session.get()
    if found is not None:
        return found if found in _open else None
    return next(iter(_open)) if len(_open) == 1 and not _forked.is_set() else None


def open_sessions() -> list[Work]:
    """Return the sessions that are open in this process."""
    return list(_open)


def current_task(session: Work) -> str | None:
    """Return the id of the task of a session that is under way here."""
    found = _task.get()
    if found is not None and found[0] is session:
        return found[1]
    return session.tasks.only_one_in_progress()


def enter(session: Work) -> Any:
    """Make a session the one of this context; return what `leave` needs."""
    return _session.set(session)


def leave(token: Any) -> None:
    """Give the context the session that it had before."""
    try:
        _session.reset(token)
    except ValueError:  # left in another context than it was entered in, as generators may be
        _session.set(None)


def set_task(session: Work, task: str | None) -> None:
    """Say which task is under way here."""
    _task.set(None if task is None else (session, task))


def is_nested(session: Work) -> bool:
    """Tell whether a tool of a session is running around this call."""
    return any(item is session for item in _enclosing.get())


@contextmanager
def nested_calls(session: Work) -> Iterator[None]:
    """Have the calls within take themselves for parts of this one."""
    around = _enclosing.get()
    _enclosing.set((*around, session))
    try:
        yield
    finally:
        _enclosing.set(around)


def register_open(session: Work) -> None:
    """Count a session among those that are open in this process."""
    _open.add(session)
    if not session._keeps_directory:
        _forked.set()


def unregister(session: Work) -> None:
    """Count it no more."""
    _open.discard(session)
