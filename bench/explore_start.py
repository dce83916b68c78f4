"""P15: how long it takes until an explored strategy runs, for one and for sixteen at once.

On one core: the process that explores, its workers and their trials share it. The workers of the
pool are started before. A run is one exploration of one variant, and one of sixteen; a trial beyond
the first is a fifteenth of the difference between the times until their last strategy is called.

The floor takes turns with it: the same number of trials by direct calls of the system and SQLite
(`bench/explore_floor.py` lists what they contain).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.explore import FORKS, make_files
from bench.figures import summary_ms
from bench.rows import Row
from bench.turns import ROOT

FILES = 9_000
QUICK_FILES = 900
RUNS = 11
QUICK_RUNS = 5
TARGET_MS = 40.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Explore one variant and sixteen, and do the same directly, in turn."""
    files = QUICK_FILES if quick else FILES
    place = directory / "workspace"
    make_files(place, files)
    runs = QUICK_RUNS if quick else RUNS
    environment = {**os.environ, "AGENT_CHECKPOINT_HOME": str(directory / "home")}
    found: dict[str, list[float]] = {}
    with _one_core(), ExitStack() as stack:
        programs = {}
        for side, module in (("", "bench.strategy"), ("floor_", "bench.explore_floor")):
            command = [
                sys.executable,
                "-m",
                module,
                str(place),
                str(directory / module),
                str(FORKS),
            ]
            programs[side] = stack.enter_context(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        for _ in range(runs):
            for side, program in programs.items():
                for name, nanoseconds in _asked(program).items():
                    found.setdefault(f"{side}{name}", []).append(nanoseconds)
    return {
        "files": files,
        **{f"{name}_ns": times for name, times in found.items()},
        **{f"{name}_ms": summary_ms(times) for name, times in found.items()},
    }


def rows(figures: dict[str, Any]) -> list[Row]:
    """The target, with the first trial for scale; and the floor."""
    return [
        Row.of_times(
            "P15",
            f"a strategy beyond the first, {FORKS} at once, on one core",
            figures["beyond_ms"],
            figures["one_ms"],
            "p50",
            peer_name="the first",
            target=TARGET_MS,
            absolute=True,
        ),
        Row.of_times(
            "P15",
            f"a strategy beyond the first, {FORKS} at once, on one core",
            figures["beyond_ms"],
            figures["floor_beyond_ms"],
            "p50",
            peer_name="fork, overlay, four commits, clean-up",
            durability="FULL / FULL",
            floor=True,
        ),
    ]


def _asked(program: subprocess.Popen[bytes]) -> dict[str, float]:
    """Ask a program for one run."""
    if program.stdin is None or program.stdout is None:
        raise AssertionError("unreachable: both are pipes")
    program.stdin.write(b"\n")
    program.stdin.flush()
    return dict(json.loads(program.stdout.readline()))


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
