"""F1: a workspace whose process is killed at any call that changes the disk."""

import pytest

from tests.crash.sweeping import Failures
from tests.crash.workspace_scenarios import (
    ACTIONS,
    TAKING,
    captured,
    check_one_of,
    check_same,
    open_manager,
    open_workspace,
    snapshots,
    stored,
)

FEW = {"large snapshot": 4, "restore": 14}


@pytest.mark.slow
@pytest.mark.parametrize("action", TAKING)
def test_killed_in_a_snapshot(broken_workspace, action, sample_calls, tried):
    """The snapshot is there whole or not at all; what was acknowledged is there."""
    failures = Failures()
    workspace, (before, after) = broken_workspace, (ACTIONS[action].earlier, ACTIONS[action].after)
    for point in sample_calls(workspace.points(action), FEW.get(action, 8)):
        inject = f"{point.name}:signal=KILL:when={point.when}"
        outcome = workspace.run("act", action, inject=inject)
        if not outcome.was_killed and action == "large snapshot":
            continue  # its threads share the work in another way each time
        with failures.at(point):
            assert outcome.was_killed, outcome.errors
            check_same(workspace.seen(), after)
            with (
                open_manager(workspace.place) as manager,
                open_workspace(workspace.place, manager) as ws,
            ):
                kept = snapshots(ws)
                if outcome.said:
                    assert kept[-1][1].ref == outcome.said[0].split()[1]
                if kept:
                    allowed = [captured(state) for state in (before, after) if state]
                    check_one_of(stored(kept[-1][1]), *allowed[-1:] if outcome.said else allowed)
                workspace.check_usable(ws)
                assert manager.verify().ok
    tried("F1 killed in a snapshot", failures.tried)
    failures.check()


@pytest.mark.slow
def test_killed_in_a_restore(broken_workspace, sample_calls, tried):
    """The old or the new after the next open, never a mix; the safety checkpoint has the old."""
    failures = Failures()
    for point in sample_calls(broken_workspace.points("restore"), FEW["restore"]):
        inject = f"{point.name}:signal=KILL:when={point.when}"
        outcome = broken_workspace.run("act", "restore", inject=inject)
        with failures.at(point):
            assert outcome.was_killed, outcome.errors
            broken_workspace.check_recovered("restore", is_done=bool(outcome.said))
    tried("F1 killed in a restore", failures.tried)
    failures.check()
