"""What several tests of sessions share."""

import functools
from contextlib import suppress
from weakref import WeakSet

import pytest

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session import current_session
from tests.team_stores import TEAM_STORES, team_store
from tests.unit.session.stores import BACKENDS, manager_on


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


@pytest.fixture(params=["memory", "file", "sqlite", *TEAM_STORES])
def store(request, tmp_path):
    """What `store=` gets, for each backend; the memory of a process is only in its manager."""
    if request.param == "memory":
        return CheckpointManager()
    if request.param == "file":
        return f"file://{tmp_path}/json"
    return team_store(request, tmp_path) or tmp_path / "store"


@pytest.fixture(params=[*BACKENDS, *TEAM_STORES])
def manager(request, tmp_path):
    """A store that outlives its sessions, on each backend."""
    url = team_store(request, tmp_path)
    with CheckpointManager(url) if url else manager_on(request.param, tmp_path) as manager:
        yield manager


@pytest.fixture
def memory():
    """A store in memory, where the backend makes no difference."""
    return CheckpointManager()


@pytest.fixture
def place(tmp_path):
    """A workspace."""
    place = tmp_path / "work"
    (place / "src").mkdir(parents=True)
    (place / "src/app.py").write_text("print(1)\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    return place
