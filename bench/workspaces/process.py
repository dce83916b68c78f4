"""P3: a snapshot in a new process that does not watch, from its start to its end, as git's two are.

Both look at every file and find an index of the last time; ours also starts Python, which the time
of git has nothing of. The floors look at every file whose path they know, and commit 8 kB: in a
bare Python, in one with the modules of the standard library that ours loads, and with all of them.
"""

from __future__ import annotations

import subprocess
import sys

from bench.workspaces.floors import LstatFloor
from bench.workspaces.stage import (
    WARM_UP,
    Stage,
    Taken,
    environment_of,
    processes,
)

PROGRAM = """\
import sys
from agent_checkpoint import Workspace
with Workspace(sys.argv[1], watch=sys.argv[2] == "watch") as workspace:
    print(workspace.snapshot().id)
"""


def measure_processes(stage: Stage) -> None:
    """One file changed, and nothing changed, in turn."""
    seen: list[str] = []

    def by_us() -> Taken:
        return processes(lambda: seen.append(new_process(stage, watch=False)))

    sides = stage.present(ours=by_us, git=lambda: processes(stage.git.snapshot))
    modules = new_process(stage, watch=False, then="print(*sys.modules)").split()[1:]
    modules = [each for each in modules if not each.startswith("__")]
    environment = environment_of(stage.home)
    floor = LstatFloor(stage.checkout.path, stage.place / "floor.db", modules, environment)

    for turn in range(-1, stage.rounds.process):
        stage.change()
        floored = {
            **sides,
            "floor": lambda: processes(floor.bare),
            "floor-modules": lambda: processes(floor.with_modules),
            "floor-own": lambda: processes(floor.with_own_modules),
        }
        stage.take_turns("changed" if turn >= 0 else WARM_UP, turn, floored)
        stage.take_turns("same" if turn >= 0 else WARM_UP, turn, sides)
    assert seen[0::2] == seen[1::2], "nothing changed, and the tree is another one"
    assert len(set(seen)) == len(seen) // 2, "a change was not seen"


def new_process(stage: Stage, *, watch: bool, then: str = "") -> str:
    """Take a snapshot in a new process; the id of the tree, and what a last statement prints.

    Raises:
        RuntimeError: the process failed; the text has what it said.
    """
    how = "watch" if watch else "compare"
    command = [sys.executable, "-c", PROGRAM + then, str(stage.checkout.path), how]
    environment = environment_of(stage.home)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"A snapshot in a new process failed: {done.stderr}")
    return done.stdout.strip()
