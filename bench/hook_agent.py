"""P13 with a real agent: what the hook adds to a tool call of Claude Code.

Three sessions of Claude Code run side by side, and take turns call by call: one without hooks, one
with ours, and one whose hooks only start Python. Each edits a file of its own checkout by a shell
command, call after call. A scripted model on loopback holds the answer to one session back until
the others have made their calls, so only one works at a time, and all have the same noise. A call
takes from the answer of the model to the next request. What a side adds is the difference to the
call without hooks of the same turn: no call is left out.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Semaphore
from typing import Any

from agent_checkpoint.agents.agent_events import CLAUDE
from agent_checkpoint.agents.settings.agent_settings import FORMATS
from bench.aside import set_aside
from bench.figures import Times, summary_ms
from bench.rows import Row
from bench.workspaces.checkouts import NoCheckoutError, small

PLAIN, FLOOR, OURS = SIDES = ("plain", "floor", "hook")
CALLS = 40
QUICK_CALLS = 10
SESSIONS = 3
TARGET_MS = 60.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """The times of a call of each side, and what two of them add; why there are none."""
    import pytest

    checkouts = {}
    times: dict[str, list[int]] = {side: [] for side in SIDES}
    try:
        checkouts = {side: small(directory / f"agent-{side}") for side in SIDES}
        for _ in range(1 if quick else SESSIONS):
            places = {side: checkout.path for side, checkout in checkouts.items()}
            found = _sessions(places, QUICK_CALLS if quick else CALLS)
            for side in SIDES:
                times[side] += found[side]
    except (NoCheckoutError, pytest.skip.Exception) as error:  # no network, or no npm
        return {"waiting": str(error)}
    finally:
        for checkout in checkouts.values():
            set_aside(checkout.path)
    added = {
        f"{side}_added": summary_ms([one - plain for one, plain in zip(times[side], times[PLAIN])])
        for side in (OURS, FLOOR)
    }
    calls = {side: summary_ms(taken) for side, taken in times.items()}
    return {**calls, **added, "files": len(checkouts[OURS].files)}


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promise: milliseconds that a call takes longer. The floor, and the mean of both."""
    what = "what the hook adds to a tool call of Claude Code"
    if "waiting" in figures:
        waiting = figures["waiting"]
        return [Row("P13", what, None, None, "ms", "without", TARGET_MS, waiting=waiting)]
    what = f"{what}, {figures['files']:,} files"
    added, floor = figures[f"{OURS}_added"], figures[f"{FLOOR}_added"]

    def row(figure: str, peer: Times, peer_name: str, **rest: Any) -> Row:
        name = f"{what}, {figure}"
        return Row.of_times("P13", name, added, peer, figure, peer_name=peer_name, **rest)

    bare = "hooks that only start Python"
    return [
        row("p50", figures[PLAIN], "a call without hooks", target=TARGET_MS, absolute=True),
        row("p50", floor, bare, floor=True),
        row("mean", floor, bare, floor=True),
    ]


def _sessions(projects: dict[str, Path], calls: int) -> dict[str, list[int]]:
    """Run a session of each side, in turn; return the nanoseconds of their calls."""
    turns = {side: Semaphore(0) for side in projects}
    following = dict(zip(projects, [*list(projects)[1:], next(iter(projects))]))

    def run(side: str) -> list[int]:
        try:
            is_last = following[side] == next(iter(projects))
            return _session(
                side, projects[side], calls, turns[side], turns[following[side]], is_last=is_last
            )
        finally:
            turns[following[side]].release(calls + 1)  # if it failed, nobody waits for it

    with ThreadPoolExecutor(len(projects)) as pool:
        return dict(zip(projects, pool.map(run, projects)))


def _session(
    side: str, project: Path, calls: int, mine: Semaphore, following: Semaphore, *, is_last: bool
) -> list[int]:
    """Run a session that makes each of its calls when it is its turn; return their times."""
    from tests.coding_agents.model_server import model_server
    from tests.coding_agents.programs import ClaudeCode

    with TemporaryDirectory(prefix="bench-agent-") as place, model_server() as model:
        agent = ClaudeCode(Path(place), model)
        agent.project = project
        if side == OURS:
            agent.command("hook", "install", agent.agent)
        elif side == FLOOR:
            _start_python_at_events(agent.home / ".claude" / "settings.json")
        times: list[int] = []
        answered = 0

        def take_turns(request: int) -> None:
            nonlocal answered
            arrived = time.perf_counter_ns()
            if request:
                times.append(arrived - answered)
            if request or is_last:  # the last side to start lets the first one begin
                following.release()
            mine.acquire()
            answered = time.perf_counter_ns()

        model.before_answer = take_turns
        model.script = [(agent.ask(f"echo {number} > made"),) for number in range(calls)]
        try:
            agent.run(agent.start("edit a file again and again"))
        finally:
            agent.close()
        if side == OURS and len(agent.rows()) < calls:
            raise RuntimeError("The hook has not saved every call.")
    return times


def _start_python_at_events(settings: Path) -> None:
    """Install hooks that start Python in the way ours do, at the same events, and end."""
    command = [sys.executable, "-I", "-S", "-c", "import os; os.read(0, 1 << 20); os._exit(0)"]
    handler = {"type": "command", "command": f"{shlex.join(command)} 2>/dev/null || true"}
    events = (*FORMATS[CLAUDE].events, *FORMATS[CLAUDE].newer)
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"hooks": {event: [{"hooks": [handler]}] for event in events}}))
