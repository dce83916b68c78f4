"""Compare bench/results.json with those of an earlier commit: which rows got worse?

    python -m bench.compare REVISION

A row counts by what its target is on. A ratio to a peer of the same run is compared as it is. Times
of ours alone are divided by the machine factor first: the median of how the times of all
peers changed, since they ran the same programs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from typing import Any

from bench.page import RESULTS
from bench.rows import Row
from bench.table import quantity, times
from bench.turns import ROOT

WORSE = 1.1
"""From which factor on a row is listed: below it, two runs of the same code differ."""
Rows = dict[tuple[str, str, str], Row]


def rows_of(results: dict[str, Any]) -> Rows:
    """The rows that can be compared, by what they are of."""
    rows = map(Row.from_json, results["rows"])
    return {
        (row.what, row.peer_name, row.durability): row
        for row in rows
        if row.judged is not None and not row.floor
    }


def machine_factor(old: Rows, new: Rows) -> float:
    """How much longer the peers took in the new run."""
    factors = {
        row.peer_name + row.what: row.peer / before.peer
        for key, row in new.items()
        if (before := old.get(key)) and row.unit == "ms" and row.peer and before.peer
    }
    return statistics.median(factors.values()) if factors else 1.0


def change(before: Row, row: Row, factor: float) -> float:
    """By which factor the judged number grew on the same machine."""
    is_time = row.unit == "ms" and (row.absolute or row.difference)
    return (row.judged or 0) / (before.judged or 1) / (factor if is_time else 1.0)


def report(old: Rows, new: Rows) -> list[str]:
    """The rows that got worse, worst first, and the counts."""
    factor = machine_factor(old, new)
    shared = [
        (change(old[key], row, factor), old[key], row) for key, row in new.items() if key in old
    ]
    worse = sorted((found for found in shared if found[0] > WORSE), key=lambda found: -found[0])
    lines = [
        f"{len(shared)} rows in both runs; the peers take {factor:.2f} x as long as then.",
        f"{sum(grown < 1 / WORSE for grown, _, _ in shared)} got better by more than "
        f"{WORSE - 1:.0%}, {len(worse)} got worse:",
    ]
    for grown, before, row in worse:
        verdict = f" ({before.verdict} -> {row.verdict})" if row.verdict != before.verdict else ""
        lines.append(
            f"  {grown:.2f} x  {row.id} {row.what}, {row.peer_name or 'alone'}: "
            f"{_shown(before)} -> {_shown(row)}{verdict}"
        )
    return lines


def _shown(row: Row) -> str:
    ours = quantity(row.ours or 0, row.unit)
    return f"{ours} = {times(row.ratio)}" if row.ratio and not row.absolute else ours


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="a commit that has bench/results.json")
    revision = parser.parse_args().revision
    then = subprocess.run(
        ["git", "show", f"{revision}:bench/results.json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    now = RESULTS.read_text(encoding="utf-8")
    print("\n".join(report(rows_of(json.loads(then)), rows_of(json.loads(now)))))


if __name__ == "__main__":
    main()
