"""How time and bytes grow: with the number of files, and with the number of steps (`curves`).

Files: a directory of small files; one changes, and the time of a snapshot is the median of a few:
ours that watches, ours in a new process, and git's two commands.

Steps: a conversation that gets a message and is saved at every step. The time is the median of the
last WINDOW saves before each point, the bytes are those of all files of the open store. Ours keeps
a `Log`; LangGraph's graph, saved by `SqliteSaver`, has a list, and once more a `DeltaChannel`.

A side that has stored LIMIT_BYTES or has run for LIMIT_SECONDS stops; its last point says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.figures import milliseconds
from bench.sides import SideName
from bench.turns import taking_turns
from bench.workspaces.checkouts import Checkout, look
from bench.workspaces.first import measure_first
from bench.workspaces.live import live_workspace, measure_watching
from bench.workspaces.process import measure_processes
from bench.workspaces.stage import Rounds, Stage

FILES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
QUICK_FILES = (1_000, 3_000)
A_DIRECTORY = 50
"""Files in each directory."""
ROUNDS = Rounds(1, 0, watching=5, process=3, undo=0, overlay=0, copy=0, extras=False)
WORK = {"watching": ("ours", "git"), "changed": ("ours",)}
"""What is on the curve, and of whom; git's two commands are the same in a new process."""
STEPS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
QUICK_STEPS = (10, 30, 100, 300)
WINDOW = 100
BLOCK = 500
LIMIT_BYTES = 5 * 10**9
LIMIT_SECONDS = 300.0


def measure(directory: Path, *, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Both curves; `quick` takes the small ends of them."""
    files = {}
    for count in QUICK_FILES if quick else FILES:
        say(f"the curve of files, {count:,} …")
        files[str(count)] = _files(count, directory / f"files-{count}")
    steps = {}
    last = QUICK_STEPS if quick else STEPS
    for side, saves in (("ours", _log_saves), ("sqlite", _graph_saves), ("delta", _graph_saves)):
        say(f"the curve of steps, {side} …")
        place = directory / f"steps-{side}"
        place.mkdir()
        steps[side] = _curve(saves(side, last[-1], place), last)
    return {"files": files, "steps": steps}


def _files(count: int, place: Path) -> dict[str, float]:
    """The medians of each kind of work, in a new directory of small files."""
    stage_place = place / "stage"
    stage_place.mkdir(parents=True)
    checkout = _small_files(count, place / "files")
    stage = Stage(checkout, ROUNDS, stage_place)
    measure_first(stage, thorough=False)
    measure_processes(stage)
    with live_workspace(stage) as ours:
        measure_watching(stage, ours)
    work = stage.figures()["work"]
    return {
        f"{name} {side}": work[name][side]["ms"]["p50"]
        for name, sides in WORK.items()
        for side in sides
        if side in work[name]
    }


def _small_files(count: int, path: Path) -> Checkout:
    for number in range(count):
        folder = path / f"d{number // A_DIRECTORY // 100:03}" / f"e{number // A_DIRECTORY % 100:02}"
        if number % A_DIRECTORY == 0:
            folder.mkdir(parents=True, exist_ok=True)
        text = f"value_{number} = {number}\n" * 100
        (folder / f"m{number:06}.py").write_text(text, encoding="ascii")
    return look(path)


Saves = Iterator[tuple[list[int], int]]
"""The nanoseconds of some saves, and the bytes that are stored after them."""


def _log_saves(side: str, steps: int, place: Path) -> Saves:
    """Save with a `Log`, a block at a time."""
    name = SideName("log")
    with taking_turns([name], "varied", steps, place) as turns:
        turns.ask(str(name), "open")
        start = 0
        for stop in _blocks(steps):
            answer = turns.ask(str(name), "steps", start=start, stop=stop)
            yield answer["ns"], answer["bytes"]
            start = stop


def _graph_saves(side: str, steps: int, place: Path) -> Saves:
    """Run a graph, a block of steps at a time."""
    from bench import langgraph  # only here: it needs LangGraph itself

    with langgraph.stepping(side, place, steps) as run:
        for stop in _blocks(steps):
            yield run(stop)


def _blocks(steps: int) -> list[int]:
    """Where blocks end: at every point of the curve, and every BLOCK steps."""
    return sorted({*(s for s in STEPS if s <= steps), *range(BLOCK, steps + 1, BLOCK), steps})


def _curve(saves: Saves, points: tuple[int, ...]) -> dict[str, Any]:
    found: list[dict[str, float]] = []
    times: list[int] = []
    began, done, stopped = time.monotonic(), 0, ""
    for taken, size in saves:
        done += len(taken)
        times = [*times, *taken][-WINDOW:]
        spent = time.monotonic() - began
        if size > LIMIT_BYTES:
            stopped = f"stopped at {LIMIT_BYTES / 10**9:g} GB"
        elif spent > LIMIT_SECONDS:
            stopped = f"stopped after {LIMIT_SECONDS / 60:g} minutes"
        if done in points or stopped:
            median = milliseconds(statistics.median(times))
            found.append({"steps": done, "ms": median, "bytes": size})
        if stopped:
            break
    return {"points": found, "stopped": stopped}
