"""Questions about a trajectory of 1,000 steps in a directory of 7,000 files: bisect and blame.

Nobody else answers them with files; the scale of `bisect` is its tests alone.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent_checkpoint import Session, bisect, blame, current_workspace, tool
from bench.rows import Row

FILES, STEPS, LINES = 7_000, 1_000, 1_000
QUICK_STEPS = 100
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
    with patch.dict(os.environ, {"AGENT_CHECKPOINT_HOME": str(directory / "home")}):
        with Session("bench", workspace=place, store=directory / "store"):
            for number in range(steps):
                lines[number * 37 % LINES] = f"step {number}"
                if number == steps * 7 // 10:
                    write("bug", "x")
                write("folder07/file07.txt", "\n".join(lines) + "\n")
        began = time.perf_counter()
        found = bisect("bench", f"sleep {TEST_SECONDS}; test ! -e bug", store=directory / "store")
        bisect_ms = _ms(began)
        if found.step is None or found.step.calls[0].arguments["name"] != "bug":
            raise AssertionError(f"bisect found {found.first_bad}")
        began = time.perf_counter()
        blame(place / "folder07" / "file07.txt", store=directory / "store")
        blame_ms = _ms(began)
        began = time.perf_counter()
        blame(place / "folder07" / "file07.txt", store=directory / "store")
        blame_again_ms = _ms(began)
    shutil.rmtree(directory)
    return {
        "files": FILES,
        "steps": steps,
        "probes": len(found.tested),
        "bisect_ms": bisect_ms,
        "blame_ms": blame_ms,
        "blame_again_ms": blame_again_ms,
    }


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promises."""
    steps, probes = figures["steps"], figures["probes"]
    most = math.ceil(math.log2(steps + 2)) + 2
    return [
        Row(
            id="P16",
            what=f"bisect {steps:,} steps, {figures['files']:,} files, a test of 0.1 s",
            ours=figures["bisect_ms"],
            peer=1000 * TEST_SECONDS * probes,
            unit="ms",
            peer_name="its tests alone",
            target=TARGET_MS,
            absolute=True,
        ),
        Row(
            id="P16",
            what=f"tests that it runs for {steps:,} steps",
            ours=float(probes),
            peer=float(most),
            unit="calls",
            peer_name="log2 + 2",
            target=1.0,
        ),
        Row(
            id="P16",
            what=f"blame of a file with {steps:,} versions of {LINES:,} lines",
            ours=figures["blame_ms"],
            peer=None,
            unit="ms",
            peer_name="-",
            target=BLAME_MS,
            absolute=True,
        ),
        Row(
            id="P16",
            what="the same blame again, in the same process",
            ours=figures["blame_again_ms"],
            peer=figures["blame_ms"],
            unit="ms",
            peer_name="the first one",
            target=1.0,
        ),
    ]


def _ms(began: float) -> float:
    return 1000 * (time.perf_counter() - began)
