"""docs/benchmarks.md, generated from bench/results.json.

python -m bench.page       writes it again from the committed results
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from bench.rows import Row
from bench.table import quantity, row_cells
from bench.turns import ROOT

RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
SUBJECTS = {
    "P1": "First snapshot of a directory",
    "P2": "Snapshot after one change, watching",
    "P3": "Snapshot after one change, new process",
    "P4": "Undo of one change",
    "P5": "Fork of a directory",
    "P6": "Stored bytes of a conversation",
    "P7": "Time of a save of a conversation",
    "P8": "Time of a load of a conversation",
    "P9": "Imports",
    "help": "Help of the command",
    "P10": "Many checkpoints in one store",
    "P11": "PostgreSQL",
    "P13": "Hook of a coding agent",
    "P14": "New process with a daemon running",
    "P15": "Start of explored strategies",
    "P16": "Questions about a trajectory",
    "P17": "Peak memory",
    "P18": "LangGraph graph",
    "save": "Save of a session",
    "calls": "Calls of a backend",
    "forks": "Forks of a session",
    "same": "Unchanged state",
    "fork": "Fork of a state",
    "trim": "Trimmed list",
    "edit": "Edited list",
}
"""Titles of the groups of rows, by their ids."""
Floors = dict[tuple[str, str], Optional[float]]
"""The figures of the floors, by the id and the work of their rows."""


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    rows = [Row.from_json(found) for found in results["rows"]]
    misses = [row for row in rows if row.verdict == "misses"]
    floors = {(row.id, row.what): row.peer for row in rows if row.floor}
    slower = [row for row in rows if row.is_comparison and row.ratio is not None and row.ratio > 1]
    return _PAGE.format(
        machine=_machine(results["machine"]),
        held=sum(row.verdict == "holds" for row in rows),
        missed=len(misses),
        misses="\n".join(_table(misses, floors) if misses else ["None in this run."]),
        slower="\n".join(_table(slower) if slower else ["None in this run."]),
        stops=_stops(results["curves"]),
        groups="\n".join(line for group in _groups(rows) for line in group),
    )


_PAGE = """\
# Benchmarks

All figures of one run of `make bench`: ours and the peers on one machine, in turn. Compare the
ratios, not the times. `bench/results.json` has the results, and `python -m bench.page` generates
this page from it.

{machine}

**{held} targets hold, {missed} are missed.** A ratio is ours divided by the peer's: below 1, ours
is faster or smaller. The spread is p50 / p90 / longest of the runs. `FULL` is `synchronous=FULL` of
SQLite, which survives a power loss; `NORMAL` survives a killed process only. A floor is a
small program that does only what its name says, in turn with the others. The column `floor` has its
ratio to the same peer: a target below it asks for more than saving the rest of the work.

## Missed targets

{misses}

## Slower or larger than a peer

{slower}

## Growth

![Time of a snapshot by files, time and bytes of a save by steps](images/bench-curves.svg)

{stops}

![All ratios and their targets](images/bench.svg)

## All figures
{groups}
"""
_CELLS = ("what", "ours", "peer", "ratio", "target", "verdict", "durability")


def _table(rows: list[Row], floors: Floors | None = None) -> list[str]:
    """A line a row; with floors, a last column: what the floor has instead of our ratio."""
    heads = "| work | ours | peer | ratio | target | | durability | spread, ours | spread, peer |"
    lines = [heads, "|---|---|---|---|---|---|---|---|---|"]
    if floors is not None:
        lines = [lines[0] + " floor |", lines[1] + "---|"]
    for row in rows:
        cells = row_cells(row)
        texts = [cells[name] for name in _CELLS]
        texts += [_spread(row.ours_times), _spread(row.peer_times)]
        if floors is not None:
            texts.append(row_cells(replace(row, ours=floors.get((row.id, row.what))))["ratio"])
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
    return lines


def _spread(times: dict[str, float] | None) -> str:
    if times is None:
        return ""
    figures = " / ".join(quantity(times[name], "ms") for name in ("p50", "p90", "most"))
    return f"{figures}, {times['runs']:,.0f} runs"


def _groups(rows: list[Row]) -> list[list[str]]:
    found = []
    for id, title in SUBJECTS.items():
        group = [row for row in rows if row.id == id]
        if group:
            found.append(["", f"### {title} ({id})", "", *_table(group)])
    return found


def _stops(curves: dict[str, Any]) -> str:
    """The sides that were stopped before the end of the curve, as a sentence."""
    names = {"ours": "ours", "sqlite": "LangGraph SqliteSaver", "delta": "LangGraph, DeltaChannel"}
    stopped = [
        f"{names[side]} {found['stopped']}, at {found['points'][-1]['steps']:,} steps"
        for side, found in curves["steps"].items()
        if found["stopped"]
    ]
    return f"A side stops at 5 GB or 5 minutes: {'; '.join(stopped) or 'none did'}."


def _machine(where: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in where["versions"].items() if text)
    return (
        f"{where['when'][:10]}, {where['system']}, {where['cores']} cores, load "
        f"{where['load_average']:.1f} at the start, {where['filesystem']}, an fsync of 8 kB takes "
        f"{where['sync_ms']['p50']:.2f} ms, Python {where['python']}, SQLite {where['sqlite']}; "
        f"{versions}."
    )


def write() -> Path:
    """Write the page, and return its path."""
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    return PAGE


if __name__ == "__main__":
    write()
