"""P15: how long it takes until an explored strategy runs, for one and for sixteen at once.

On one core: the process that explores, its workers and their trials share it. The workers of the
pool are started before. A run is one exploration of one variant, and one of sixteen; a trial beyond
the first is a fifteenth of the difference between the times until their last strategy is called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Explore one variant and sixteen, in turn."""
    files = QUICK_FILES if quick else FILES
    place = directory / "workspace"
    make_files(place, files)
    runs = QUICK_RUNS if quick else RUNS
    command = [sys.executable, "-m", "bench.strategy"]
    command += map(str, (place, directory / "store", FORKS, runs))
    environment = {**os.environ, "AGENT_CHECKPOINT_HOME": str(directory / "home")}
    with _one_core():
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    found = json.loads(done.stdout)
    return {
        "files": files,
        **found,
        "one_ms": summary_ms(found["one_ns"]),
        "beyond_ms": summary_ms(found["beyond_ns"]),
    }


def rows(figures: dict[str, Any]) -> list[Row]:
    """The target, and the first trial for scale."""
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
        )
    ]


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
