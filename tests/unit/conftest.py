"""What the tests of several packages share."""

import functools
from contextlib import suppress
from weakref import WeakSet

import pytest

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session import current_session


@pytest.fixture(autouse=True)
def no_session_is_left(monkeypatch):
    """Close what a test has left open: threads of the next one would find two sessions."""
    opened = WeakSet()
    real = Session.__init__

    @functools.wraps(real)
    def init(session, *args, **options):
        real(session, *args, **options)
        opened.add(session)

    monkeypatch.setattr(Session, "__init__", init)
    yield
    for session in list(opened):
        with suppress(CheckpointError):
            session.close()
    current_session._open.clear()
    current_session._forked.clear()


@pytest.fixture
def sqlite_manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def empty_place(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place
