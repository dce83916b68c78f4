"""Stores for sessions, and sessions that stop without a word as a killed process does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.session import current_session
from agent_checkpoint.store.ledger.ledger import Ledger

BACKENDS = ["memory", "file", "sqlite"]
DURABLE = ["file", "sqlite"]


def manager_on(backend: str, tmp_path: Path) -> CheckpointManager:
    if backend == "memory":
        return CheckpointManager()
    return CheckpointManager(backend=backend, path=tmp_path / "store")


class Killed(BaseException):
    """The process is gone at this point."""


@contextmanager
def killed(key: str, store: CheckpointManager, **options: Any) -> "Iterator[Session]":
    """Open a session for a block that ends it by `raise Killed`: nothing more is saved."""
    session = Session(key, store=store, **options)
    token = current_session.enter(session._tools)
    try:
        yield session
    except Killed:
        pass
    finally:
        current_session.leave(token)
        current_session.unregister(session._tools)


def ledger_of(session: Session) -> Ledger:
    """Read a session's ledger anew, as another process would."""
    ledger = Ledger(session.manager.store, session._state.ledger.lineage)
    ledger.refresh()
    return ledger


def statuses(session: Session) -> "list[str]":
    """Return what became of each effect, as the store has it."""
    return [effect.status for effect in ledger_of(session).state.effects.values()]
