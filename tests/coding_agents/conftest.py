"""Tests with published coding agents run only if asked: `--coding-agents all`, or some names."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.coding_agents.model_server import model_server
from tests.coding_agents.moments import Moments
from tests.coding_agents.programs import PROGRAMS, Program


def pytest_collection_modifyitems(config: pytest.Config, items: "list[pytest.Item]") -> None:
    wanted = config.getoption("--coding-agents").split(",")
    here = Path(__file__).parent
    names = [name for name in PROGRAMS if name in wanted or wanted == ["all"]]
    items[:] = [item for item in items if here not in item.path.parents or _agent(item) in names]


def _agent(item: pytest.Item) -> "str | None":
    return item.callspec.params.get("program") if hasattr(item, "callspec") else None


@pytest.fixture(params=sorted(PROGRAMS))
def program(request: pytest.FixtureRequest) -> "Iterator[Program]":
    """One agent with our hook installed, in an empty project."""
    with TemporaryDirectory(prefix=f"{request.param}-") as place, model_server() as model:
        found = PROGRAMS[request.param](Path(place), model)
        found.command("hook", "install", found.agent)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture
def moments(request: pytest.FixtureRequest, program: Program) -> Moments:
    """The results of the test, which `--record-moments` writes."""
    is_recorded = request.config.getoption("--record-moments")
    return Moments(program.agent, program.package, is_recorded=is_recorded)
