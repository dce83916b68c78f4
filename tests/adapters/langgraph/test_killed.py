"""SIGKILL at a tool boundary, resumed in another process: nothing is lost or doubled."""

import pytest

from tests.adapters.langgraph.killing import BOUNDARIES, cost_of, total


@pytest.mark.slow
@pytest.mark.parametrize("boundary", [1, 4, 5])
def test_no_effect_is_doubled_and_no_file_is_wrong(boundary, tmp_path):
    cost = cost_of("ours", boundary, tmp_path)
    assert (cost.steps, cost.effects, cost.lines) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.long
def test_no_boundary_doubles_an_effect():
    cost = total("ours", BOUNDARIES)
    assert (cost.steps, cost.effects, cost.lines) == (0, 0, 0)
    assert total("sqlite", [4]).effects == 1
