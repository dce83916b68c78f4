"""Several processes at one workspace: no snapshot holds half of a restore, and none is lost."""

import random
import shutil
import time
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree.snapshot import read_record
from tests.crash.crowd import ended, go, start, stop, tell, together
from tests.crash.workspace_scenarios import build, check_same, file, folder, link, seen, stored

HERE = "tests.crash.test_workspace_processes"
FILES = 40


def state(name):
    """A state in which every file says which one it is."""
    return {
        **{
            f"{n:02}": file(f"{name} {n}" * 20, 0o600 if name == "one" else 0o644) for n in range(5)
        },
        "d": folder(0o755 if name == "one" else 0o711),
        **{f"d/{n:02}": file(f"{name} {n}") for n in range(FILES)},
        "link": link(name),
        f"only {name}": folder(),
        f"only {name}/f": file(name),
        "turning": file(name) if name == "one" else folder(),
        **({} if name == "one" else {"turning/f": file(name)}),
    }


STATES = {name: state(name) for name in ("one", "two")}


def restore_by_turns(place, one, two, times):
    """Run as a process: restore the one tree and the other."""
    with (
        CheckpointManager(backend="sqlite", path=Path(place) / "store") as manager,
        Workspace(Path(place) / "workspace", manager.store) as ws,
    ):
        for n in range(int(times)):
            plan = ws.restore(ObjectRef((one, two)[n % 2], manager.store.backend))
            assert plan.leave == {}, plan.leave
            tell(plan.safety.ref)
            time.sleep(0.03)  # and let the others have it


def snapshot_until(place, stop_file, watch):
    """Run as a process: take snapshots until told to stop, and tell what they are."""
    with (
        CheckpointManager(backend="sqlite", path=Path(place) / "store") as manager,
        Workspace(Path(place) / "workspace", manager.store, watch=watch == "True") as ws,
    ):
        while not Path(stop_file).exists():
            tree = ws.snapshot()
            assert not tree.incomplete, tree.notes
            tell(tree.ref)
            time.sleep(0.005)  # a lock that all others share at all times is never free


@pytest.fixture
def place(scratch):
    build(scratch / "workspace", STATES["two"])
    return scratch


@pytest.mark.slow
@pytest.mark.parametrize("takers", [1, 3])
def test_no_snapshot_holds_half_of_a_restore(place, takers, full_faults, tried):
    times = 200 if full_faults else 16
    trees = {}
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        for name in ("one", "two"):
            build(place / "new", STATES[name])
            shutil.rmtree(place / "workspace")
            (place / "new").rename(place / "workspace")
            with Workspace(place / "workspace", manager.store) as ws:
                trees[name] = ws.snapshot().ref
    stop_file = place / "stop"
    processes = [start(f"{HERE}:restore_by_turns", place, *trees.values(), times)]
    try:
        for n in range(takers):
            processes.append(start(f"{HERE}:snapshot_until", place, stop_file, n % 2 == 0))
        for process in processes:
            go(process)
        told = ended(processes[0])
        stop_file.touch()
        taken = [ref for process in processes[1:] for ref in ended(process)]
    finally:
        stop_file.touch()
        stop(processes)
    assert len(told) == times
    assert set(told) == set(trees.values())
    assert set(taken) <= set(trees.values()), "a snapshot holds half of a restore"
    assert set(taken) == set(trees.values())
    check_same(seen(place / "workspace"), STATES["two"])
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        assert manager.verify().ok
    tried("restores beside snapshots", times)
    tried("snapshots beside restores", len(taken))


# -- many at once --------------------------------------------------------------------------------


def change_and_take(place, name, times):
    """Run as a process: change a file of one's own, take a snapshot, and tell what it is."""
    chosen = random.Random(name)
    mine = Path(place) / "workspace" / f"by {name}"
    with (
        CheckpointManager(backend="sqlite", path=Path(place) / "store") as manager,
        Workspace(Path(place) / "workspace", manager.store) as ws,
    ):
        for n in range(int(times)):
            text = f"{n} " * chosen.choice((1, 1000, 100_000))
            mine.with_suffix(".new").write_text(text)
            mine.with_suffix(".new").rename(mine)
            tell(n, ws.snapshot(label=f"{name} {n}").ref)


@pytest.mark.slow
def test_eight_processes_take_snapshots_at_once(place, full_faults, tried):
    """Each has its own change in its snapshot, and each is in the history."""
    processes, times = 8, 40 if full_faults else 4
    calls = [(f"{HERE}:change_and_take", place, name, times) for name in range(processes)]
    told = together(calls)
    with CheckpointManager(backend="sqlite", path=place / "store") as manager:
        ws = Workspace(place / "workspace", manager.store)
        labels = {row["label"]: row["id"] for row in manager.history(ws.key)}
        assert len(labels) == processes * times
        backend = manager.store.backend
        for name, lines in enumerate(told):
            chosen = random.Random(str(name))
            assert len(lines) == times
            for n, line in enumerate(lines):
                text = f"{n} " * chosen.choice((1, 1000, 100_000))
                found = stored(read_record(line.split()[1], backend))
                assert found[f"by {name}"] == file(text)
                check_same({path: found.get(path) for path in STATES["two"]}, STATES["two"])
                assert f"{name} {n}" in labels
        check_same(stored(ws.snapshot(full=True)), seen(place / "workspace"))
        ws.close()
        manager.gc()
        assert manager.verify().ok
    tried("snapshots by many processes", processes * times)
