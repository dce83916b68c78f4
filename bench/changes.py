"""Small changes of a large state: what a save costs when little or nothing is different.

All sides hold the conversation of a thousand messages (about 1.09 MB) and take turns REPEATS times.
Written bytes are what the process handed to the system (`wchar` of /proc/self/io) during the call:
SQLite's log, its pages and loose files, on every side. Linux only. The figures are medians, so that
a moment at which SQLite moves its log into the database does not count.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

from bench.figures import summary_ms
from bench.rows import Row
from bench.turns import Turns

REPEATS = 15


def measure_changes(turns: Turns, names: list[str]) -> dict[str, dict[str, Any]]:
    """Let the sides do each kind of change in turn."""
    rng = random.Random("changes")
    places = [rng.random() for _ in range(REPEATS)]
    lists = [name for name in names if not name.startswith(("log", "part"))]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for do in ("unchanged", "fork", "edit", "trim"):
        who = lists if do in ("edit", "trim") else names
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in who}
        for place in places:
            arguments = {"where": place} if do == "edit" else {}
            for name, answer in turns.ask_all(do, only=who, **arguments).items():
                answers[name].append(answer)
        for name, of_side in answers.items():
            found[name][do] = _summary(of_side)
    return found


def _summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    written = [answer["written"] for answer in answers]
    return {
        "ms": summary_ms([answer["ns"] for answer in answers]),
        "written": None if None in written else statistics.median(written),
    }


def change_rows(figures: dict[str, Any]) -> list[Row]:
    """The rows without a target: for information."""
    peer = figures["sides"]["langgraph"]["changes"]
    both = f"{figures['durability']} / {figures['durability']}"
    rows = []

    def add(side: str, do: str, what: str, unit: str) -> None:
        ours = figures["sides"][side]["changes"][do]
        rest: Any = {"peer_name": "LangGraph", "durability": both}
        if unit == "ms":
            rows.append(Row.of_times("changes", what, ours["ms"], peer[do]["ms"], "p50", **rest))
        else:
            rows.append(Row("changes", what, ours["written"], peer[do]["written"], unit, **rest))

    for unit, says in (("ms", "time"), ("B", "bytes written")):
        add("log-fast", "unchanged", f"Log, fast: unchanged, {says}", unit)
        add("part-fast", "unchanged", f"Log as a part, fast: unchanged, {says}", unit)
        add("list-fast", "unchanged", f"list, fast: unchanged, {says}", unit)
    for unit, says in (("ms", "time"), ("B", "bytes written")):
        add("list-fast", "fork", f"list, fast: fork of 1 MB, {says}", unit)
    for do, says in (("trim", "10 dropped in front"), ("edit", "1 of 1,000 edited")):
        add("list-fast", do, f"list, fast: {says}, bytes written", "B")
    return rows
