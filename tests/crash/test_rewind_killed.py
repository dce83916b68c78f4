"""F14: a rewind that is killed at any call is not done at all, or finished by who comes next."""

import json
import os
import shutil
from contextlib import closing

import pytest

from agent_checkpoint import CheckpointManager
from tests.crash.fault_process import CHANGES, OPENS, FaultProcess, places
from tests.crash.rewind_scenarios import KEY, NOW, THEN

SCENARIOS = "tests.crash.rewind_scenarios"
TRACED = (*CHANGES, *OPENS, "chmod", "fchmod", "syncfs", "flock")


@pytest.fixture(scope="module")
def process(session_scratch):
    with closing(FaultProcess(SCENARIOS, session_scratch)) as found:
        yield found


class Broken:
    """A session in one place: its paths are sealed, so that it is made anew where it was."""

    def __init__(self, process, scratch):
        self._process = process
        self.place, self._pristine = scratch / "place", scratch / "pristine"
        self._do("make", scratch)
        self.place.rename(self._pristine)

    def rewind(self, *options, fresh=True, **faults):
        if fresh:
            shutil.rmtree(self.place, ignore_errors=True)
            shutil.copytree(self._pristine, self.place)
        return self._process.run(
            f"{SCENARIOS}:rewind", self.place, *options, trace=TRACED, **faults
        )

    def next(self, who):
        return self._do(who, self.place)

    def _do(self, function, *arguments):
        outcome = self._process.run(f"{SCENARIOS}:{function}", *arguments, trace=TRACED)
        assert outcome.status == 0, outcome.errors
        return outcome

    def seen(self):
        lines = (self.place / "talk" / "t.jsonl").read_text().splitlines()
        files = self.place / "project"
        made = sorted(path.name for path in files.glob("made-*"))
        return [json.loads(line)["n"] for line in lines], (files / "src/app.py").read_text(), made

    def check(self, may_be):
        assert self.seen() in [state(number) for number in may_be]
        left = {path.name for path in (self.place / "talk").iterdir()}
        assert not [name for name in left if name.startswith(".")]
        assert not list(self.place.rglob(".agent-checkpoint-restore*"))
        with CheckpointManager(backend="sqlite", path=self.place / "store") as manager:
            head = manager.store.head(KEY)
            saved = manager.state_dict(KEY)["transcript"]
            assert [json.loads(line)["n"] for line in saved] == self.seen()[0]
            # Killed before the mark: all is as it was, and the safety checkpoint is of that.
            if self.seen() != state(NOW):
                assert "rewind" not in manager.state_dict(KEY)["hook"]
                assert head.kind != "safety"
            assert manager.verify().ok


def state(number):
    made = [f"made-{one}" for one in range(THEN, number + 1)]
    lines = [line for one in range(THEN, number + 1) for line in (one, -one)]
    return [1, *lines], f"print({number})\n", made


@pytest.mark.slow
@pytest.mark.parametrize("who", ["event", "look"])
def test_a_rewind_that_is_killed_is_finished_by_the_next(who, process, scratch, sample, tried):
    broken = Broken(process, scratch)
    whole = broken.rewind()
    assert whole.status == 0, whole.errors
    broken.check([THEN])
    made = places(whole.calls_before_it_said_anything(), scratch, set(TRACED) - set(OPENS))
    points = list({(call.name, call.when): call for call in made}.values())
    assert {"rename", "unlinkat"} & {call.name for call in points}
    chosen = sample(points, 14, kind=lambda call: (call.name, os.path.dirname(call.paths[-1])))
    found = set()
    for point in chosen:
        outcome = broken.rewind(inject=f"{point.name}:signal=KILL:when={point.when}")
        if not outcome.was_killed:
            continue
        broken.next(who)
        broken.check([THEN, NOW])
        found.add(len(broken.seen()[0]))
        tried("a rewind killed, then " + who)
        undo = next(iter(sorted((broken.place / "talk").glob("*.before-rewind"))), None)
        if broken.seen() == state(THEN):
            assert undo is not None
            assert len(undo.read_text().splitlines()) == len(state(NOW)[0])
    assert found == {len(state(THEN)[0]), len(state(NOW)[0])}


@pytest.mark.parametrize("only", ["files", "conversation"])
def test_a_part_of_a_rewind_that_is_killed(only, process, scratch, sample):
    broken = Broken(process, scratch)
    whole = broken.rewind("--only", only)
    assert whole.status == 0, whole.errors
    made = places(whole.calls_before_it_said_anything(), scratch, ("rename", "renameat", "link"))
    for point in sample(made, 6):
        inject = f"{point.name}:signal=KILL:when={point.when}"
        if not broken.rewind("--only", only, inject=inject).was_killed:
            continue
        broken.next("event")
        (lines, *files), then, now = broken.seen(), state(THEN), state(NOW)
        assert (lines, files) in [
            (now[0], list(now[1:])),
            (now[0], list(then[1:])) if only == "files" else (then[0], list(now[1:])),
        ]
