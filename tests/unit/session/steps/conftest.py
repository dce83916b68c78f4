"""The fixtures of trajectories: an empty directory and a store on SQLite."""

from tests.unit.trajectory.conftest import manager, place  # noqa: F401
