"""What several tests of sessions share."""

import pytest

from agent_checkpoint import CheckpointManager
from tests.team_stores import TEAM_STORES, team_store
from tests.unit.session.stores import BACKENDS, manager_on


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
