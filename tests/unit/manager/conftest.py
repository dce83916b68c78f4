from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from tests.agents import managers


@pytest.fixture(params=["memory", "file", "pickle", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    with managers(tmp_path)[request.param] as opened:
        yield opened
