"""What the tests of several packages share."""

import pytest

from agent_checkpoint import CheckpointManager


@pytest.fixture(autouse=True)
def no_session_is_left_here(no_session_is_left):
    """Every unit test closes its sessions."""


@pytest.fixture
def sqlite_manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def empty_place(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place
