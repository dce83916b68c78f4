"""What the tests of trajectories share."""

import pytest

from agent_checkpoint import CheckpointManager
from tests.unit.session.conftest import no_session_is_left  # noqa: F401


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place
