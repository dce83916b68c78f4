"""Fixtures for the tests of backends."""

import sys

import pytest


@pytest.fixture(scope="session")
def server(postgres_server):
    """The PostgreSQL server of this test process."""
    return postgres_server


@pytest.fixture(scope="module")
def use_server(server):
    """Let the classes of the shipped suite use the PostgreSQL server."""
    from tests.backends.test_postgres import PostgresHooks

    PostgresHooks.server = server


@pytest.fixture
def installed_package(tmp_path, monkeypatch):
    """A package that registers the scheme `shelf`, as pip would install it."""
    site = tmp_path / "site"
    info = site / "shelf-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[agent_checkpoint.backends]\nshelf = shelf_of_tests:open_shelf\n"
    )
    (site / "shelf_of_tests.py").write_text(
        "from agent_checkpoint import MemoryBackend\n"
        "class Shelf(MemoryBackend):\n"
        "    def __init__(self, url):\n"
        "        super().__init__()\n"
        "        self.url = url\n"
        "def open_shelf(url):\n"
        "    return Shelf(url)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("shelf_of_tests", None)
