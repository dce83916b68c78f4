"""Fixtures for the tests of backends."""

import pytest


@pytest.fixture(scope="session")
def server(postgres_server):
    """The PostgreSQL server of this test process."""
    return postgres_server
