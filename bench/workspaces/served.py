"""P14: a snapshot in a new process while a daemon of ours runs, which tells it what changed.

The daemon is `agent-checkpoint watch` of another, empty directory: it serves all directories of the
user. The time of ours is that of `Workspace(…).snapshot()`, with opening the store, in a process
that has imported the library; it is compared with a snapshot of a process that watches (P2). For
information: the whole process beside git, from its start to its end, as in P3. The floor is a new
process that asks the daemon, reads and hashes the head of the index, a block of it per directory
above the changed file and that file, and commits 8 kB.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.turns import ROOT
from bench.workspaces.floors import ask_and_commit
from bench.workspaces.format_floor import make_database
from bench.workspaces.process import new_process
from bench.workspaces.stage import WARM_UP, Stage, Taken, environment_of, processes, told

FIRST = 4
"""How many snapshots it takes until the daemon has watched for one of them, and one more."""


def measure_served(stage: Stage) -> None:
    """One file changed: the snapshot alone, then the whole process beside git, in turn."""
    seen: list[str] = []

    def snapshot() -> Taken:
        with stage.worker("fast", stage.home) as worker:
            answer = worker.ask("ours", "first")
            worker.ask("ours", "close")
        seen.append(answer["id"])
        return told(answer)

    def by_us() -> Taken:
        return processes(lambda: seen.append(new_process(stage, watch=True)))

    database = stage.place / "floor of served.db"
    make_database(database).close()

    def by_floor(changed: Path) -> Taken:
        indexes = (stage.home / "index").iterdir()
        index = max(indexes, key=lambda path: path.stat().st_size)
        environment = environment_of(stage.home)
        return told(ask_and_commit(stage.checkout.path, database, index, changed, environment))

    with _daemon(stage):
        for turn in range(-FIRST, stage.rounds.process):
            is_counted = turn >= 0
            changed, _ = stage.change()
            stage.note("served" if is_counted else WARM_UP, "ours", snapshot())
            if is_counted:
                stage.note("served", "floor", by_floor(changed))
            stage.change()
            sides = stage.present(ours=by_us, git=lambda: processes(stage.git.snapshot))
            stage.take_turns("served process" if is_counted else WARM_UP, turn, sides)
    assert len(set(seen)) == len(seen), "a change was not seen"


@contextmanager
def _daemon(stage: Stage) -> Iterator[None]:
    """Run the daemon."""
    elsewhere = stage.place / "watched"
    elsewhere.mkdir()
    store = str(stage.place / "store of the daemon")
    command = [sys.executable, "-m", "agent_checkpoint", "--store", store, "watch"]
    with subprocess.Popen(
        [*command, "--every", "1000", str(elsewhere)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment_of(stage.home),
    ) as daemon:
        try:
            assert daemon.stdout is not None
            while "Watching" not in (line := daemon.stdout.readline()):
                if not line:
                    raise RuntimeError("The daemon has ended.")
            yield
        finally:
            daemon.terminate()
