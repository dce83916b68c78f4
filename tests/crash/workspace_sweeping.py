"""Breaks what is done with a workspace at one call after another, each time in a fresh place.

Owns the places; what is done and what the states are is in `workspace_scenarios`.
"""

import shutil

from tests.crash.fault_process import CHANGES, OPENS, places
from tests.crash.workspace_scenarios import (
    ACTIONS,
    OUTSIDE,
    captured,
    check_one_of,
    check_same,
    make_place,
    open_manager,
    open_workspace,
    remove,
    seen,
    snapshots,
    stored,
)

SCENARIOS = "tests.crash.workspace_scenarios"
CHANGES_OF_FILES = (*CHANGES, "chmod", "fchmod", "fchmodat", "symlink", "symlinkat", "syncfs")
READS = (*OPENS, "getdents64", "read", "readlinkat")
TRACED = (*CHANGES_OF_FILES, *READS)


class BrokenWorkspace:
    """A workspace with its store, made anew for every run: see the fixture `broken_workspace`."""

    def __init__(self, fault_process, scratch):
        # Its path is part of its key, so there is one place, and copies to make it from.
        self.place, self._pristine = scratch / "place", scratch / "pristine"
        self._fault_process = fault_process

    def run(self, function, action, **options):
        """Run an action by `act` or `act_and_go_on` in a fresh place; return its outcome."""
        self.make(action)
        return self._run(function, action, self.place, **options)

    def run_next(self, **options):
        """Run `reopen` in a process of its own, on what the last run left."""
        return self._run("reopen", self.place, **options)

    def _run(self, function, *arguments, trace=TRACED, **options):
        function = f"{SCENARIOS}:{function}"
        return self._fault_process.run(function, *arguments, trace=trace, **options)

    def make(self, action):
        """Make the place anew, as it is before an action."""
        pristine = self._pristine / action
        if not pristine.exists():
            make_place(self.place, earlier=ACTIONS[action].earlier, now=ACTIONS[action].before)
            self._pristine.mkdir(exist_ok=True)
            self.place.rename(pristine)
        remove(self.place)
        shutil.copytree(pristine, self.place, symlinks=True)

    def keep(self):
        """Keep the place as it is now, for `set_back`."""
        kept = self.place.with_name("kept")
        remove(kept)
        shutil.copytree(self.place, kept, symlinks=True)

    def set_back(self):
        """Make the place again what it was when it was kept."""
        remove(self.place)
        shutil.copytree(self.place.with_name("kept"), self.place, symlinks=True)

    def points(self, action, names=CHANGES_OF_FILES):
        """The calls at which the action can be broken before it says that it is done."""
        whole = self.run("act", action)
        assert whole.status == 0, whole.errors
        check_same(self.seen(), ACTIONS[action].after)
        return self._points(whole, names)

    def points_of_recovery(self, names=CHANGES_OF_FILES):
        """The calls at which the next process can be broken while it finishes a restore."""
        whole = self.run_next()
        assert whole.status == 0, whole.errors
        return self._points(whole, names)

    def _points(self, whole, names):
        found = places(whole.calls_before_it_said_anything(), self.place, names)
        return list({(call.name, call.when): call for call in found}.values())

    def seen(self):
        """What is in the workspace now."""
        return seen(self.place / "workspace")

    def has_staging(self):
        return (self.place / "workspace" / ".agent-checkpoint-restore").exists()

    def check_recovered(self, action, *, is_done):
        """Whoever opens the workspace next finds the old or the new, can go back and go on."""
        before, after = ACTIONS[action].before, ACTIONS[action].after
        with open_manager(self.place) as manager, open_workspace(self.place, manager) as ws:
            found = check_one_of(self.seen(), *([after] if is_done else [before, after]))
            check_same(seen(self.place / "outside"), OUTSIDE)
            kept = snapshots(ws)
            if found is not before:
                kind, safety = kept[1]
                assert kind == "safety"
                check_same(stored(safety), captured(before))
                ws.restore(safety)
                check_same(self.seen(), before)
            assert manager.verify().ok
            self.check_usable(ws)
            manager.gc()
            assert manager.verify().ok

    def check_usable(self, ws):
        found = self.seen()
        tree = ws.snapshot(full=True)
        check_same(stored(tree), captured(found))
        (self.place / "workspace" / "later").write_bytes(b"later")
        assert ws.restore(tree).delete == ["later"]
        check_same(self.seen(), found)
