"""Questions about a trajectory of 1,000 steps in a directory of 7,000 files: bisect and blame.

Nobody else answers them with files; the scale of `bisect` is its tests alone.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent_checkpoint import Session, bisect, blame, current_workspace, tool
from agent_checkpoint.trajectory.bisection import Bisection
from bench.figures import summary_ms, timed
from bench.rows import Row
from bench.turns import ROOT

FILES, STEPS, LINES = 7_000, 1_000, 1_000
QUICK_STEPS = 100
RUNS, QUICK_RUNS = 5, 2
TEST_SECONDS = 0.1
TARGET_MS, BLAME_MS = 120_000.0, 1_000.0


@tool
def write(name: str, text: str) -> None:
    """Write a file of the session."""
    (current_workspace().path / name).write_text(text)


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Record a trajectory, and ask it."""
    steps = QUICK_STEPS if quick else STEPS
    place = directory / "workspace"
    for folder in range(FILES // 100):
        (place / f"folder{folder:02d}").mkdir(parents=True)
        for number in range(100):
            (place / f"folder{folder:02d}" / f"file{number:02d}.txt").write_text(f"{number}\n" * 50)
    lines = [f"line {number}" for number in range(LINES)]
    results: list[Bisection] = []
    with patch.dict(os.environ, {"AGENT_CHECKPOINT_HOME": str(directory / "home")}):
        with Session("bench", workspace=place, store=directory / "store"):
            for number in range(steps):
                lines[number * 37 % LINES] = f"step {number}"
                if number == steps * 7 // 10:
                    write("bug", "x")
                write("folder07/file07.txt", "\n".join(lines) + "\n")
        bisects, probes = [], 0
        for _ in range(QUICK_RUNS if quick else RUNS):
            bisects.append(timed(lambda: results.append(_bisect(directory / "store"))))
            probes = len(results[-1].tested)
        file = place / "folder07" / "file07.txt"
        blames = [_blames(file, directory / "store") for _ in bisects]
    return {
        "files": FILES,
        "steps": steps,
        "probes": probes,
        "bisect": summary_ms(bisects),
        "blame": summary_ms([first for first, _ in blames]),
        "blame again": summary_ms([again for _, again in blames]),
    }


def _bisect(store: Path) -> Bisection:
    found = bisect("bench", f"sleep {TEST_SECONDS}; test ! -e bug", store=store)
    if found.step is None or found.step.calls[0].arguments["name"] != "bug":
        raise AssertionError(f"bisect found {found.first_bad}")
    return found


def _blames(file: Path, store: Path) -> list[int]:
    """The nanoseconds of a blame in a new process, and of the same once more."""
    command = [sys.executable, "-m", "bench.trajectory", str(file), str(store)]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return [int(text) for text in done.stdout.split()]


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promises."""
    steps, probes = figures["steps"], figures["probes"]
    tests = 1000 * TEST_SECONDS * probes
    return [
        replace(
            Row.of_times(
                "P16",
                f"bisect {steps:,} steps, {figures['files']:,} files, a test of 0.1 s",
                figures["bisect"],
                None,
                "p50",
                peer_name="its tests alone",
                target=TARGET_MS,
                absolute=True,
            ),
            peer=tests,
        ),
        Row(
            id="P16",
            what=f"tests that it runs for {steps:,} steps",
            ours=float(probes),
            peer=float(math.ceil(math.log2(steps + 2)) + 2),
            unit="calls",
            peer_name="log2 + 2",
            target=1.0,
        ),
        Row.of_times(
            "P16",
            f"blame of a file with {steps:,} versions of {LINES:,} lines",
            figures["blame"],
            None,
            "p50",
            peer_name="",
            target=BLAME_MS,
            absolute=True,
        ),
        Row.of_times(
            "P16",
            "the same blame again, in the same process",
            figures["blame again"],
            figures["blame"],
            "p50",
            peer_name="the first one",
            target=1.0,
        ),
    ]


if __name__ == "__main__":
    path, where = sys.argv[1:]
    for _ in range(2):
        print(timed(lambda: blame(path, store=where)))
