"""P2, P4 and P5: what one live workspace does that has watched since its first snapshot.

P2: one source file gets a line; the time is of `snapshot()` alone. It is the median: at least once
a minute a snapshot looks at every file all the same. A git that asks Watchman is there for
information. One floor reads and hashes the changed file, and commits 8 kB; three others do in plain
Python what the format takes, what the guarantees take with it, and that with our SQLite backend,
see `format_floor.py`.

P4: one source file gets a line and the workspace is put back, ours with its safety snapshot. The
side that was not measured then looks at the file, untimed, so that each finds a directory it knows.

P5: a second directory with the same files: overlay over the held directory, and copies. The fork is
timed until it returns; holding the directory and closing the fork have times of their own. Before
each, the disk is given time to finish what the others have left it to do. The floor copies in plain
Python, see `copy_floor.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.aside import set_aside
from bench.turns import Turns
from bench.workspaces.peers import ShadowGit
from bench.workspaces.stage import WARM_UP, Sides, Stage, Taken, processes, told

MANY_FILES = 20_000
"""From here on only one floor watches: each needs as many watches as there are directories."""


@contextmanager
def live_workspace(stage: Stage) -> Iterator[Turns]:
    """A process with a workspace that watches and has seen everything."""
    with stage.worker("fast", stage.home) as worker:
        worker.ask("ours", "first")
        yield worker
        worker.ask("ours", "close")


def measure_watching(stage: Stage, ours: Turns) -> None:
    """P2: a snapshot after one change."""
    seen: list[str] = []

    def by_us() -> Taken:
        answer = ours.ask("ours", "snapshot")
        seen.append(answer["id"])
        return told(answer)

    def by_floor(floor: Turns, changed: str) -> Taken:
        return told(floor.ask("floor", "snapshot", changed=changed))

    sides = stage.present(ours=by_us, git=lambda: processes(stage.git.snapshot))
    watched = ShadowGit(stage.place / "watched-git", stage.checkout.path, watched=True)
    if not stage.absent.keys() & {"git", "watchman"}:
        watched.make()
        sides["git-watched"] = lambda: processes(watched.snapshot)
    with stage.floor() as floor:
        floor.ask("floor", "watch")
        sides["floor-format"] = lambda: told(floor.ask("floor", "format_snapshot"))
        if len(stage.checkout.files) < MANY_FILES:
            floor.ask("floor", "watch_guarded")
            sides["floor-guarded"] = lambda: told(floor.ask("floor", "guarded_snapshot"))
            sides["floor-backend"] = lambda: told(floor.ask("floor", "backend_snapshot"))
        for turn in range(-1, stage.rounds.watching):
            changed = str(stage.change()[0])
            sides["floor"] = partial(by_floor, floor, changed)
            stage.take_turns("watching" if turn >= 0 else WARM_UP, turn, sides)
    if "git-watched" in sides:
        watched.end_watch()
    assert len(set(seen)) == len(seen), "a change was not seen"


def measure_parts(stage: Stage, ours: Turns) -> None:
    """The parts of P2. The process is slower from then on."""
    ours.ask("ours", "watch_parts")
    for _ in range(stage.rounds.watching):
        stage.change()
        ours.ask("ours", "taken_parts")
        ours.ask("ours", "snapshot")
        stage.note_parts("watching", ours.ask("ours", "taken_parts"))


def measure_undo(stage: Stage, ours: Turns) -> None:
    """P4: put one change back."""

    def by_us() -> Taken:
        path, before = stage.change()
        answer = ours.ask("ours", "restore")
        _expect(path, before)
        if stage.has_git:
            stage.git.refresh()
        return told(answer)

    def by_git() -> Taken:
        path, before = stage.change()
        taken = processes(stage.git.undo)
        _expect(path, before)
        ours.ask("ours", "snapshot")
        return taken

    ours.ask("ours", "snapshot")
    if stage.has_git:
        stage.git.snapshot()
    for turn in range(-1, stage.rounds.undo):
        sides = stage.present(ours=by_us, git=by_git)
        stage.take_turns("undo" if turn >= 0 else WARM_UP, turn, sides)


def measure_forks(stage: Stage, ours: Turns) -> None:
    """P5: overlays, then copies."""
    target = stage.place / "fork"
    for _ in range(stage.rounds.few):
        if "overlay" not in stage.absent:
            _overlays(stage, ours, target)

    def by_us() -> Taken:
        answer = _fork(stage, ours, "copy", target)
        if answer is None:
            raise RuntimeError(stage.absent["copy"])  # works everywhere, or is broken
        return told(answer["copy"])

    def by_git() -> Taken:
        os.sync()
        taken = processes(lambda: stage.git.check_out(target))
        set_aside(target)
        stage.git.forget_work_trees()
        return taken

    def by_floor() -> Taken:
        os.sync()
        taken = told(floor.ask("floor", "copy", target=str(target)))
        set_aside(target)
        return taken

    sides: Sides = {"cp": lambda: _copy(stage.checkout.path, target), "ours": by_us}
    with stage.floor() as floor:
        sides["floor"] = by_floor
        for turn in range(stage.rounds.copy):
            stage.take_turns("copy", turn, sides)
    if stage.rounds.extras and stage.has_git:
        stage.note("copy", "git-worktree", by_git())


def _overlays(stage: Stage, ours: Turns, target: Path) -> None:
    """One overlay after the other over the held directory; the first is not counted."""
    stage.note("hold", "ours", told(ours.ask("ours", "hold")))
    for turn in range(-1, stage.rounds.overlay):
        answer = _fork(stage, ours, "overlay", target)
        if answer is None:
            break
        for work in ("overlay", "close"):
            stage.note(work if turn >= 0 else WARM_UP, "ours", told(answer[work]))
    ours.ask("ours", "release")


def _fork(stage: Stage, ours: Turns, driver: str, target: Path) -> dict[str, Any] | None:
    """Fork, look, close; None and a reason if this driver does not work here."""
    os.sync()
    shows = stage.checkout.source(0)
    answer = ours.ask("ours", "fork", driver=driver, path=str(target), shows=shows)
    if answer.get("left_mounted"):
        raise RuntimeError(f"The fork at {target} was closed and is still mounted.")
    set_aside(target)
    if "failed" in answer:
        stage.absent[driver] = f"no fork with the driver {driver}: {answer['failed']}"
        return None
    return answer


def _copy(source: Path, target: Path) -> Taken:
    os.sync()
    command = ["cp", "-a", str(source), str(target)]
    taken = processes(lambda: subprocess.run(command, check=True))
    set_aside(target)
    return taken


def _expect(path: Path, content: bytes) -> None:
    if path.read_bytes() != content:
        raise RuntimeError(f"{path} was not put back.")
