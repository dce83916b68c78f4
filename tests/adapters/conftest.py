"""What the tests of all adapters share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from tests.agents import managers


@pytest.fixture(
    params=[
        *("memory", "file", "pickle", "sqlite"),
        pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.long]),
    ]
)
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        with CheckpointManager(server.url(server.new_schema())) as remote:
            yield remote
        return
    with managers(tmp_path)[request.param] as opened:
        yield opened
