"""Savers on every store. Without LangGraph, which needs Python 3.11, these tests are left out."""

from importlib.util import find_spec

import pytest

if find_spec("langgraph") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(
    params=["memory", "sqlite", "file", pytest.param("postgres", marks=pytest.mark.slow)]
)
def store_url(request, tmp_path):
    """The URL of an empty store."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        return server.url(server.new_schema())
    return {"memory": None, "sqlite": str(tmp_path / "s"), "file": f"file://{tmp_path}/f"}[
        request.param
    ]


@pytest.fixture
def saver(store_url):
    """A saver on each store."""
    from agent_checkpoint.adapters.langgraph import CheckpointSaver

    with CheckpointSaver(store_url) as opened:
        yield opened
