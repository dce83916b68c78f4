from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from tests.agents import managers
from tests.team_stores import TEAM_STORES, team_store


@pytest.fixture(params=["memory", "file", "pickle", "sqlite", *TEAM_STORES])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    url = team_store(request, tmp_path)
    with CheckpointManager(url) if url else managers(tmp_path)[request.param] as opened:
        yield opened
