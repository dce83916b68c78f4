"""F2: a workspace on a full or failing disk, or in a process out of descriptors.

One call fails in each run. What is asked for is a typed error or success, that nothing is
acknowledged that is not there, and that the same process as well as a new one can go on.
"""

import json

import pytest

from tests.crash.fault_process import OPENS
from tests.crash.sweeping import Failures
from tests.crash.workspace_scenarios import (
    ACTIONS,
    PRESENT,
    TAKING,
    captured,
    check_same,
    open_manager,
    open_workspace,
    snapshots,
    stored,
)
from tests.crash.workspace_sweeping import CHANGES_OF_FILES, READS

FEW = {"restore": 8}
AIMED_AT = {
    "ENOSPC": CHANGES_OF_FILES,
    "EIO": CHANGES_OF_FILES + READS,
    "EDQUOT": CHANGES_OF_FILES,
    "EMFILE": OPENS,
}


def runs(workspace, action, error, choose):
    """Run an action once for each chosen point, with an error there."""
    function = "act_once" if action == "large snapshot" else "act_and_go_on"
    # strace counts the calls of each thread by itself. With several, one that opens or reads may
    # come up again after the action, in what this process does to tell about it.
    calls = CHANGES_OF_FILES if action == "large snapshot" else AIMED_AT[error]
    for point in choose(workspace.points(action, calls), FEW.get(action, 5)):
        inject = f"{point.name}:error={error}:when={point.when}"
        outcome = workspace.run(function, action, inject=inject)
        if outcome.was_hit_in_time(point):
            yield point, outcome


def check_ended_well(outcome):
    """It said all that it had to say: there was no other error than one of ours."""
    assert outcome.status == 0, (outcome.said, outcome.errors.splitlines()[-3:])


@pytest.mark.slow
@pytest.mark.parametrize("error", AIMED_AT)
@pytest.mark.parametrize("action", TAKING)
def test_a_snapshot_is_refused_by_the_disk(broken_workspace, action, error, sample_calls, tried):
    """Refused, or taken and said to be incomplete where it is; the next one is whole."""
    failures = Failures()
    wanted = captured(ACTIONS[action].after)
    for point, outcome in runs(broken_workspace, action, error, sample_calls):
        with failures.at(f"{error} at {point}"):
            check_ended_well(outcome)
            first, *rest = outcome.said
            check_same(broken_workspace.seen(), ACTIONS[action].after)
            with (
                open_manager(broken_workspace.place) as manager,
                open_workspace(broken_workspace.place, manager) as ws,
            ):
                trees = {tree.ref: tree for _, tree in snapshots(ws)}
                if first.startswith("did"):
                    check_flawed(trees[first.split()[1]], wanted)
                for words in rest[1::2]:
                    tree = trees[words.split()[1]]
                    assert not tree.incomplete, tree.notes
                    check_same(stored(tree), wanted)
                broken_workspace.check_usable(ws)
                assert manager.verify().ok
    tried(f"F2 {error} in a snapshot", failures.tried)
    failures.check()


def check_flawed(tree, wanted):
    """What a snapshot lacks it says that it lacks, and it has nothing that is wrong."""
    found = stored(tree)
    lost = {note.path for note in tree.notes if note.kind in ("unreadable", "torn")}
    assert tree.incomplete == bool(lost)
    below = {path for path in wanted if any(path == p or path.startswith(f"{p}/") for p in lost)}
    check_same(found, {path: what for path, what in wanted.items() if path not in below})


@pytest.mark.slow
@pytest.mark.parametrize("error", AIMED_AT)
def test_a_restore_is_refused_by_the_disk(broken_workspace, error, sample_calls, tried):
    """Untouched, done, or an error that names what was not done; the old files are safe."""
    failures = Failures()
    for point, outcome in runs(broken_workspace, "restore", error, sample_calls):
        with failures.at(f"{error} at {point}"):
            check_ended_well(outcome)
            first, then, second, finally_ = outcome.said
            check_told(error, first, json.loads(then))
            assert second.startswith("did"), second
            assert json.loads(finally_) == {
                **json.loads(finally_),
                "not after": [],
                "staged": False,
            }
            check_old_files_are_safe(broken_workspace, json.loads(then))
    tried(f"F2 {error} in a restore", failures.tried)
    failures.check()


def check_told(error, words, then):
    """What was not done was said, path by path, or nothing was touched, or it will be finished."""
    if words.startswith("did "):
        # What cannot be read is in no safety checkpoint: it is left alone, and that is no error.
        left = json.loads(words.partition(" ")[2]) if error in ("EIO", "EMFILE") else {}
        assert is_below(then["not after"], left), (words, then)
        assert not then["staged"]
    elif then["not before"] and then["not after"]:
        assert words.startswith(("refused RestoreIncompleteError", "refused WorkspaceError"))
        named = any(repr(path) in words for path in then["not after"])
        assert named or (then["staged"] and "goes on" in words), (words, then)


def is_below(paths, above):
    return all(any(path == p or path.startswith(f"{p}/") for p in above) for path in paths)


def check_old_files_are_safe(workspace, then):
    """Each file that was touched is in the first safety checkpoint, as it was."""
    with open_manager(workspace.place) as manager, open_workspace(workspace.place, manager) as ws:
        assert not workspace.has_staging()
        kept = [stored(tree) for kind, tree in snapshots(ws) if kind == "safety"]
        for path in then["not before"]:
            if path in PRESENT:
                assert kept[0][path] == PRESENT[path], path
        workspace.check_usable(ws)
        assert manager.verify().ok
