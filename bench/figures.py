"""Times of calls, and summaries of them. Standard library only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Times = dict[str, float]
"""What `summary_ms` returns."""


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


def summary_ms(nanoseconds: Sequence[float]) -> Times:
    """Mean, percentiles, the least and the most in milliseconds, and how many times there are."""
    ordered = sorted(nanoseconds)

    def percentile(share: float) -> float:
        return milliseconds(ordered[min(len(ordered) - 1, int(len(ordered) * share))])

    return {
        "mean": milliseconds(statistics.fmean(ordered)),
        "least": milliseconds(ordered[0]),
        "p50": milliseconds(statistics.median(ordered)),
        "p90": percentile(0.9),
        "p99": percentile(0.99),
        "most": milliseconds(ordered[-1]),
        "runs": len(ordered),
    }
