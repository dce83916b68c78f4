"""The table as text: coloured and ruled in a terminal, plain in a pipe. Knows no measurement."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from bench.rows import Row

COLOURS = {"holds": "32", "misses": "1;31", "waiting": "33"}
RIGHT = {"ours", "peer", "ratio", "target"}
GAP = "  "
Cells = dict[str, str]


def verdict_table(rows: Sequence[Row], colour: bool) -> str:
    """The comparisons, with a rule between their subjects."""
    groups = [row.id for row in rows]
    return _lay_out([row_cells(row) for row in rows], groups, colour)


def detail_table(runs: Sequence[dict[str, Any]], titles: dict[str, str], colour: bool) -> str:
    """What lies behind the ratios: every side of every conversation, in absolute figures."""
    cells, groups = [], []
    for run in runs:
        for name, side in run["sides"].items():
            save = side["save_ms"]
            loads = {how: side.get(f"load_{how}_ms") for how in ("again", "first", "fresh")}
            cells.append(
                {
                    "conversation": f"{run['kind']}, {run['durability']}",
                    "side": titles[name],
                    "save mean": quantity(save["mean"], "ms"),
                    "p50": quantity(save["p50"], "ms"),
                    "p99": quantity(save["p99"], "ms"),
                    "cpu": quantity(side["cpu_ms"], "ms"),
                    **{
                        f"load {how}": quantity(load["p50"], "ms") if load else ""
                        for how, load in loads.items()
                    },
                    "stored, open": quantity(side["bytes_open"], "B"),
                    "reserve": quantity(side["bytes_kept_back"] or None, "B"),
                    "closed": quantity(side["bytes_closed"], "B"),
                    "of raw": times(side["bytes_closed"] / run["raw_bytes"]),
                }
            )
            groups.append(f"{run['kind']} {run['durability']}")
    right = set(cells[0]) - {"conversation", "side"} if cells else set()
    return _lay_out(cells, groups, colour, right)


def work_table(cells: Sequence[Cells], groups: Sequence[str], colour: bool) -> str:
    """What lies behind the ratios of other work: a line a side, with a rule between groups."""
    right = set(cells[0]) - {"work", "side"} if cells else set()
    return _lay_out(cells, groups, colour, right)


def quantity(value: float | None, unit: str) -> str:
    """A figure in the unit that suits its size."""
    if value is None:
        return "-"
    if unit == "calls":
        return f"{value:,.0f} calls"
    if unit == "ms" and value >= 999.5:
        return f"{_three(value / 1000)} s"
    if unit == "x":
        return f"{value:g}"
    if unit == "ms":
        return f"{value * 1000:.0f} µs" if value < 0.1 else f"{_three(value)} ms"
    for name in ("B", "kB", "MB", "GB"):
        if value < 999.5 or name == "GB":
            break
        value /= 1000
    return f"{value:.0f} B" if name == "B" else f"{_three(value)} {name}"


def times(ratio: float | None) -> str:
    """A ratio, such as `0.31 x`, or `1/250` where that says more."""
    if ratio is None:
        return "-"
    if 0 < ratio < 0.095:
        return f"1/{1 / ratio:,.0f}"
    return f"{_three(ratio)} x"


def wants_colour() -> bool:
    """Whether standard output is a terminal that may be coloured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def row_cells(row: Row) -> Cells:
    """The texts of a row, by their columns."""
    target = ""
    if row.target is not None and row.difference:
        target = f"≤ +{quantity(row.target, row.unit)}"
    elif row.target is not None and row.absolute:
        target = f"≤ {quantity(row.target, row.unit)}"
    elif row.target is not None:
        target = f"≤ {_fraction(row.target)}"
    if row.waiting or row.absolute or not row.peer_name:
        ratio = ""
    elif row.difference and row.judged is not None:
        ratio = f"{row.judged:+.1f} {row.unit}"
    else:
        ratio = times(row.ratio)
    return {
        "row": row.id,
        "what": row.what,
        "ours": quantity(row.ours, row.unit),
        "peer": f"{quantity(row.peer, row.unit)} {row.peer_name}" if row.peer_name else "",
        "ratio": ratio,
        "target": target,
        "verdict": row.verdict,
        "durability": row.durability,
    }


def _fraction(ratio: float) -> str:
    """A ratio that was promised: `1/4`, `1.2 x`."""
    whole = round(1 / ratio)
    return f"1/{whole}" if whole > 1 and abs(1 / ratio - whole) < 1e-9 else f"{ratio:g} x"


def _lay_out(
    cells: Sequence[Cells], groups: Sequence[str], colour: bool, right: set[str] = RIGHT
) -> str:
    if not cells:
        return ""
    names = list(cells[0])
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in names}

    def line(row: Cells) -> str:
        texts = []
        for name in names:
            aligned = (
                row[name].rjust(widths[name]) if name in right else row[name].ljust(widths[name])
            )
            code = COLOURS.get(row[name]) if colour else None
            texts.append(f"\033[{code}m{aligned}\033[0m" if code else aligned)
        return GAP.join(texts).rstrip()

    rule = GAP.join(("─" if colour else "-") * widths[name] for name in names)
    if colour:
        rule = f"\033[2m{rule}\033[0m"
    lines = [line({name: name for name in names}), rule]
    for number, row in enumerate(cells):
        if number and groups[number] != groups[number - 1]:
            lines.append(rule if colour else "")
        lines.append(line(row))
    return "\n".join(lines)


def _three(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
