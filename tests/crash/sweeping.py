"""Breaks an action at one call after another, each time on a fresh copy of a store.

Owns the copies and the list of what went wrong; what is done and what must hold is in `scenarios`.
"""

import shutil
from contextlib import contextmanager

from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.fault_process import CHANGES, OPENS, places
from tests.crash.power_loss import Disk
from tests.crash.scenarios import ACTIONS, check_is_one_of, check_usable, contents, large

SCENARIOS = "tests.crash.scenarios"


class Failures:
    """What went wrong in a sweep, told together at its end."""

    def __init__(self):
        self.tried = 0
        self.told = []

    @contextmanager
    def at(self, point):
        """Note what is raised in the block and go on."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            self.told.append(f"{point}: {type(error).__name__}: {str(error)[:500]}")

    def check(self):
        """Fail if anything went wrong."""
        assert self.tried, "nothing was tried"
        text = "\n".join(self.told[:10])
        assert not self.told, f"{len(self.told)} of {self.tried} failed, the first:\n{text}"


class BrokenStore:
    """A store to break, made anew for every run: see the fixture `broken_store`."""

    def __init__(self, fault_process, pristine, scratch):
        self.path, self._scratch = scratch / "store", scratch
        self._fault_process, self._pristine = fault_process, pristine

    def run(self, function, action, **options):
        """Run an action by `act` or `act_and_go_on` on a fresh copy; return its outcome."""
        for item in self._scratch.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()
        if ACTIONS[action].before:
            shutil.copytree(self._pristine / "store", self.path)
        shutil.copy(self._pristine / "packed.ckpt", self._scratch)
        return self._fault_process.run(
            f"{SCENARIOS}:{function}", action, self.path, self._scratch / "packed.ckpt", **options
        )

    def run_next(self, **options):
        """Run `go_on` in a process of its own, on what the last run left."""
        return self._fault_process.run(f"{SCENARIOS}:go_on", self.path, **options)

    def log(self):
        """What strace told of the last run."""
        return (self._fault_process.scratch / "calls").read_text()

    def disk(self, action):
        """A disk as it is before the action."""
        disk = Disk(self._scratch)
        if ACTIONS[action].before:
            disk.hold("store", self._pristine / "store")
        disk.hold("packed.ckpt", self._pristine / "packed.ckpt")
        return disk

    def broken_runs(self, action, points, fault):
        """Run `act_and_go_on` once for each point, with a fault such as `error=EIO` there."""
        for point in points:
            inject = f"{point.name}:{fault}:when={point.when}"
            outcome = self.run("act_and_go_on", action, inject=inject, trace=CHANGES + OPENS)
            if outcome.was_hit_in_time(point):
                yield point, outcome

    def points(self, action, names=CHANGES):
        """The calls at which the action can be broken before it says that it is done."""
        whole = self.run("act", action, trace=CHANGES + OPENS)
        assert whole.status == 0, whole.errors
        check_is_one_of(contents(self.path), [ACTIONS[action].after])
        calls = whole.calls if ACTIONS[action].then_close else whole.calls_before_it_said_anything()
        return places(calls, self._scratch, names)

    def check_went_on(self, action, outcome, path=None):
        """Old or new; the process itself went on to save and verify; so can the next."""
        path = self.path if path is None else path
        assert outcome.status == 0, (outcome.said, outcome.errors.splitlines()[-1])
        first, then, verified = outcome.said
        assert verified == "verified True"
        allowed = [ACTIONS[action].after]
        if not first.startswith("did"):
            allowed.append(ACTIONS[action].before)
        seq = parse_checkpoint_id(then.split()[1]).seq
        present = contents(path)
        check_is_one_of(
            present, [{**one, "Key": {**one.get("Key", {}), seq: large(5)}} for one in allowed]
        )
        check_usable(path, present)
