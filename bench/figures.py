"""Times of calls, and summaries of them. Standard library only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def timed(work: Callable[[], Any]) -> int:
    """The wall nanoseconds of one call."""
    started = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - started


def milliseconds(nanoseconds: float) -> float:
    """The same time in milliseconds."""
    return nanoseconds / 1e6


def median_ms(nanoseconds: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return milliseconds(statistics.median(nanoseconds))


def summary_ms(nanoseconds: Sequence[float]) -> dict[str, float]:
    """Mean, median and 99th percentile, in milliseconds."""
    ordered = sorted(nanoseconds)
    return {
        "mean": milliseconds(statistics.fmean(ordered)),
        "p50": milliseconds(statistics.median(ordered)),
        "p99": milliseconds(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]),
    }
