"""P13 with a real agent: what the hook adds to a tool call of Claude Code.

Claude Code edits a file of the checkout by a shell command, call after call; a scripted model on
loopback notes when each request arrives. The same session runs with the hook and without, in turn.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import summary_ms
from bench.rows import Row
from bench.workspaces.checkouts import NoCheckoutError, small

CALLS = 12
TURNS = 5
QUICK_TURNS = 2
TARGET_MS = 60.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """The times of a call with the hook and without; why there are none, if there are none."""
    import pytest

    try:
        checkout = small(directory / "agent-checkout")
    except NoCheckoutError as error:
        return {"waiting": str(error)}
    times: dict[str, list[int]] = {"hook": [], "plain": []}
    try:
        for _ in range(QUICK_TURNS if quick else TURNS):
            for side in times:
                times[side] += _gaps(checkout.path, has_hook=side == "hook")
    except pytest.skip.Exception as error:  # no npm
        return {"waiting": str(error)}
    finally:
        shutil.rmtree(checkout.path)
    found: dict[str, Any] = {side: summary_ms(taken) for side, taken in times.items()}
    return {**found, "files": len(checkout.files)}


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promise: milliseconds that a call takes longer."""
    what = "a tool call of Claude Code with the hook"
    if "waiting" in figures:
        waiting = figures["waiting"]
        return [Row("P13", what, None, None, "ms", "without", TARGET_MS, waiting=waiting)]
    return [
        Row.of_times(
            "P13",
            f"{what}, {figures['files']:,} files, p50",
            figures["hook"],
            figures["plain"],
            "p50",
            peer_name="without the hook",
            target=TARGET_MS,
            difference=True,
        )
    ]


def _gaps(project: Path, *, has_hook: bool) -> list[int]:
    """Run a session; return the nanoseconds from one request to the next, after the first call."""
    from tests.coding_agents.model_server import model_server
    from tests.coding_agents.programs import ClaudeCode

    with TemporaryDirectory(prefix="bench-agent-") as place, model_server() as model:
        agent = ClaudeCode(Path(place), model)
        agent.project = project
        if has_hook:
            agent.command("hook", "install", agent.agent)
        arrived: list[int] = []
        model.before_answer = lambda request: arrived.append(time.perf_counter_ns())
        model.script = [(agent.ask(f"echo {number} > made"),) for number in range(CALLS)]
        try:
            agent.run(agent.start("edit a file again and again"))
        finally:
            agent.close()
        if has_hook and len(agent.rows()) < CALLS:
            raise RuntimeError("The hook has not saved every call.")
    # The first call starts the daemon, and saves all files.
    return [later - earlier for earlier, later in zip(arrived[1:], arrived[2:])]
