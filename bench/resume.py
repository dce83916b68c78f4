"""P8: opening a session with a long conversation again, with a store that was not open before."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from agent_checkpoint import Session
from bench.figures import summary_ms
from bench.rows import Row
from bench.texts import conversation

MESSAGES = 10_000
RUNS = 21
TARGET_MS = 100.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Open the session again and again; every message is read before the clock stops."""
    messages = conversation("varied", MESSAGES)
    with Session("bench", store=directory / "store") as session:
        session.messages.extend(messages)
    times = [_resume(directory / "store", messages) for _ in range(RUNS + 1)]
    return {"messages": MESSAGES, "resume_ms": summary_ms(times[1:])}  # the first one imports


def rows(figures: dict[str, Any]) -> list[Row]:
    """The target."""
    return [
        Row.of_times(
            "P8",
            f"resume of a session with {figures['messages']:,} messages, p50",
            figures["resume_ms"],
            None,
            "p50",
            peer_name="",
            target=TARGET_MS,
            absolute=True,
        )
    ]


def _resume(store: Path, messages: list[dict[str, Any]]) -> int:
    gc.collect()
    began = time.perf_counter_ns()
    session = Session("bench", store=store)
    found = session.messages[:]
    taken = time.perf_counter_ns() - began
    assert found == messages
    session.close()
    return taken
