"""P15: how long it takes until an explored strategy runs, for one and for sixteen at once.

On one core: the process that explores, its workers and their trials share it. The workers of the
pool are started before. A run is one exploration of one variant, and one of sixteen; a trial beyond
the first is a fifteenth of the difference between the times until their last strategy is called.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent_checkpoint import Session, explore
from bench.explore import FORKS, make_files
from bench.figures import summary_ms
from bench.rows import Row
from bench.strategy import tell_time

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
    one, beyond = [], []
    with (
        patch.dict(os.environ, {"AGENT_CHECKPOINT_HOME": str(directory / "home")}),
        _one_core(),
        Session("bench", workspace=place, store=directory / "store") as session,
        ProcessPoolExecutor(FORKS) as pool,
    ):
        session.save()
        list(pool.map(time.sleep, [0.1] * FORKS))  # each has a job, so each is started
        _until_last(session, pool, 1)  # not counted: looks once which forks the system can make
        for _ in range(QUICK_RUNS if quick else RUNS):
            one.append(_until_last(session, pool, 1))
            beyond.append((_until_last(session, pool, FORKS) - one[-1]) / (FORKS - 1))
    return {
        "files": files,
        "one_ns": one,
        "beyond_ns": beyond,
        "one_ms": summary_ms(one),
        "beyond_ms": summary_ms(beyond),
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


def _until_last(session: Session, pool: ProcessPoolExecutor, variants: int) -> float:
    """The nanoseconds from the call until the last strategy is called."""
    began = time.time()
    outcome = explore(session, tell_time, [{}] * variants, executor=pool)
    return 1e9 * (max(trial.metrics["at"] for trial in outcome) - began)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
