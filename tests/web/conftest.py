"""Stores for tests. Creating one takes a second, so read-only tests share it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.timeline import key_catalog
from tests.web.agent_store import make_agent_work
from tests.web.browsing import Served, chromium
from tests.web.example_store import make_example
from tests.web.hostile_store import make_hostile
from tests.web.visitor import Visitor, opened

SECRET = "the secret of the tests of the page"


class Place(NamedTuple):
    """A store, and the directory that its session works in."""

    store: Path
    repo: Path


@pytest.fixture(autouse=True)
def own_secret(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have directories be sealed alike in all tests: the shared store is made before them."""
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)


def make(folder: Path) -> Place:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)
        patch.setenv("AGENT_CHECKPOINT_HOME", str(folder / "home"))
        place = Place(folder / "store", folder / "repo")
        make_example(place.store, place.repo)
        return place


@pytest.fixture(autouse=True)
def always_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pages be up to date however slow the machine is."""
    monkeypatch.setattr(key_catalog, "_CHEAP", 600.0)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Only to be looked at."""
    return make(tmp_path_factory.mktemp("example"))


@pytest.fixture
def example(tmp_path: Path) -> Place:
    """To be changed."""
    return make(tmp_path)


@pytest.fixture
def looking(shared: Place) -> "Iterator[Visitor]":
    with opened(shared.store) as manager:
        yield Visitor(manager)


@pytest.fixture
def acting(example: Place) -> "Iterator[Visitor]":
    with opened(example.store) as manager:
        yield Visitor(manager)


@pytest.fixture(scope="session")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    make_hostile(folder / "store", folder / "files")
    return folder / "store"


@pytest.fixture
def hostile(hostile_store: Path) -> "Iterator[Visitor]":
    with opened(hostile_store) as manager:
        yield Visitor(manager)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Any]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def served(browser: Any) -> "Iterator[Served]":
    found = Served(browser)
    yield found
    found.end()


@pytest.fixture
def manager(shared: Place) -> "Iterator[CheckpointManager]":
    """Of a store that is only to be looked at."""
    with opened(shared.store) as found:
        yield found


@pytest.fixture(scope="session")
def agent_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the work of a coding agent, for tests that only read."""
    folder = tmp_path_factory.mktemp("agent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", SECRET)
        patch.setenv("AGENT_CHECKPOINT_HOME", str(folder / "home"))
        make_agent_work(folder / "store", folder / "project")
    return folder / "store"


@pytest.fixture
def agent_visitor(agent_store: Path) -> "Iterator[Visitor]":
    with opened(agent_store) as manager:
        yield Visitor(manager)
