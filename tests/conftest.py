"""Every test has its own home: no secret, store or setting of the person who runs it is touched."""

import functools
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakSet

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--coding-agents",
        default="",
        help="run tests with these published coding agents: names separated by commas, or all",
    )
    parser.addoption(
        "--record-moments",
        action="store_true",
        help="write the results of published coding agents to tests/coding_agents/results",
    )


def pytest_configure() -> None:
    # Shells ignore it for what runs in the background, and tests interrupt themselves.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Path]":
    with TemporaryDirectory(prefix="home-") as name:
        home = Path(name)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        monkeypatch.setenv("AGENT_CHECKPOINT_HOME", str(home / "store"))
        monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)
        yield home


@pytest.fixture
def no_session_is_left(monkeypatch):
    """Close what a test has left open: threads of the next one would find two sessions."""
    from agent_checkpoint import Session
    from agent_checkpoint.errors import CheckpointError
    from agent_checkpoint.session import current_session

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


@pytest.fixture(scope="session")
def postgres_server():
    """A PostgreSQL server of this test process, started at first use."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")
    from tests.backends.postgres_server import started

    server = started()
    yield server
    server.stop()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The client of a dask cluster of two workers."""
    pytest.importorskip("distributed", reason="dask is not made for this Python")
    from tests.unit.session.explore.dask_cluster import started

    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "one secret for the whole cluster, as it must be")
    with started(tmp_path) as client:
        yield client
