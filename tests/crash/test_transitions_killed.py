"""F1, F14: whatever moves a directory to another checkpoint, killed at any call, and once more.

Killed in the operation, and again in the next opening: the one after that finds the directory, the
state and the head of the key in agreement, either before the operation or after it.
"""

import json
import os
import shutil
from contextlib import closing

import pytest

from tests.crash.fault_process import CHANGES, FaultProcess, places

SCENARIOS = "tests.crash.transition_scenarios"
TRACED = (*CHANGES, "openat", "chmod", "fchmod", "syncfs", "flock")
KINDS = ("rollback", "undo", "adopt", "merge", "command")


@pytest.fixture(scope="module")
def process(session_scratch):
    with closing(FaultProcess(SCENARIOS, session_scratch)) as found:
        yield found


class Moved:
    """A session or directory in one place, which is put back before each run."""

    def __init__(self, process, scratch, kind):
        self._process, self._kind = process, kind
        self.place, self._pristine = scratch / "place", scratch / "pristine"
        assert self._run("make").status == 0
        self.place.rename(self._pristine)
        self.reset()

    def reset(self):
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._pristine, self.place, symlinks=True)

    def act(self, inject=None):
        self.reset()
        return self._run("act", inject)

    def resume(self, inject=None):
        return self._run("resume", inject)

    def state(self):
        """Open it, check that all parts agree, and return files and state."""
        outcome = self.resume()
        assert outcome.status == 0, outcome.errors
        state = json.loads(outcome.said[-1])
        assert not state.pop("drift"), outcome.said
        assert state.pop("sound")
        assert not list(self.place.rglob(".agent-checkpoint-restore*"))
        return state

    def _run(self, function, inject=None):
        return self._process.run(
            f"{SCENARIOS}:{function}", self.place, self._kind, inject=inject, trace=TRACED
        )


def points_of(outcome, scratch):
    made = places(outcome.calls_before_it_said_anything(), scratch, CHANGES)
    return list({(call.name, call.when): call for call in made}.values())


def kill(point):
    return f"{point.name}:signal=KILL:when={point.when}"


def kind_of(point):
    return point.name, os.path.dirname(point.paths[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_killed_twice_it_is_before_or_after(kind, process, scratch, sample, tried):
    moved = Moved(process, scratch, kind)
    before = moved.state()
    whole = moved.act()
    assert whole.status == 0, whole.errors
    after = moved.state()
    assert before != after
    seen, again = [], None
    for point in sample(points_of(whole, scratch), 12, kind=kind_of):
        if not moved.act(kill(point)).was_killed:
            continue
        tried(f"{kind} killed")
        if again is None:
            again = sample(points_of(moved.resume(), scratch), 12, kind=kind_of)
        elif again:
            second = again.pop(0)
            again.append(second)
            if moved.resume(kill(second)).was_killed:
                tried(f"{kind} killed, and the next opening too")
        seen.append(moved.state())
        assert seen[-1] in (before, after), str(point)
    assert before in seen
    assert after in seen
