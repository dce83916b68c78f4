"""Killed at a tool boundary and resumed in another process: no effect is lost or doubled."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.adapters.killing import BOUNDARIES, PROGRAMS, Damage, kill_and_resume

PACKAGES = {
    "Claude Agent SDK": "claude_agent_sdk",
    "OpenAI Agents SDK": "agents",
    "Pydantic AI": "pydantic_ai",
}
ASKS_AGAIN = {"Claude Agent SDK": 1}
"""How often a reply is asked for again: the CLI does so if its tools had not ended."""
SAMPLE = (3, 6)


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROGRAMS)
@pytest.mark.parametrize(
    "boundary",
    [pytest.param(n, marks=[] if n in SAMPLE else [pytest.mark.long]) for n in BOUNDARIES],
)
def test_nothing_is_lost_or_doubled(framework: str, boundary: int) -> None:
    if find_spec(PACKAGES[framework]) is None:
        pytest.skip(f"needs {PACKAGES[framework]}")
    found = kill_and_resume(Path(__file__).parent / PROGRAMS[framework], "ours", boundary)
    assert found._replace(steps_lost=0, tools_repeated=0) == Damage()
    assert found.steps_lost <= ASKS_AGAIN.get(framework, 0)
    assert found.tools_repeated <= 1  # its file was restored first
