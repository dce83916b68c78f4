"""Trajectories begin in an empty directory, with a store on SQLite."""

import pytest


@pytest.fixture
def manager(sqlite_manager):
    return sqlite_manager


@pytest.fixture
def place(empty_place):
    return empty_place
