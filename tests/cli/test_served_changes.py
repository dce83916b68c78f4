"""The daemons host the change service: new processes then scan only what changed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.scene import Scene, scene, wait_for
from tests.unit.workspace.watching import can_watch

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/mnt").exists(), reason="Linux only")

# Prints whether the service has told the changed paths, and the tree.
PROGRAM = """
import sys
from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.scan.stat_pass import StatPass
passes, run = [], StatPass.run
StatPass.run = lambda self, known: (passes.append(known), run(self, known))[1]
with CheckpointManager() if sys.argv[2] == "new" else CheckpointManager(sys.argv[2]) as manager:
    with Workspace(sys.argv[1], manager.store, watch=sys.argv[2] != "new") as workspace:
        tree = workspace.snapshot()
        print(workspace._scanner._token is not None and not passes, tree.id)
"""


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "served") as found:
        if not can_watch(found.workspace):
            pytest.skip("the file system of the test directory raises no events")
        yield found


def snapshot(work: Scene, store: str) -> "tuple[bool, str]":
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(work.workspace), store],
        env=work.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    is_told, tree = done.stdout.split()
    return is_told == "True", tree


@pytest.mark.parametrize("host", ["hook", "watch"])
def test_a_new_process_is_told_what_changed(work: Scene, host: str) -> None:
    store = str(work.place / "store of the new process")
    watching = None
    if host == "hook":
        work.tool(1)
    else:
        watching = subprocess.Popen(
            [sys.executable, "-m", "agent_checkpoint", "watch", str(work.workspace)],
            env=work.environment,
            stdout=subprocess.DEVNULL,
        )
    try:
        # A mount that another process makes meanwhile ends the watching.
        wait_for(lambda: snapshot(work, store)[0], 300)
        (work.workspace / "new").write_text("x")

        def is_told() -> bool:
            told, tree = snapshot(work, store)
            assert tree == snapshot(work, "new")[1]
            return told

        wait_for(is_told, 300)
    finally:
        if watching is not None:
            watching.terminate()
            watching.wait()
