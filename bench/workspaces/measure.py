"""Everything of P1 to P5 and P14, on a real checkout and on many copies of it.

All sides work on one and the same directory and take turns; another one begins each round. Every
file was read before, so that the caches of the system are warm for all. Figures are medians. The
processors' time is told beside: it depends less on what else the machine does, and is of all
processors together.

Ours is durable when it returns (SQLite FULL). git, as it comes, syncs nothing: that is in git's
favour. What is measured, and how, is told in `first.py`, `live.py`, `process.py`
and `served.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.aside import set_aside
from bench.workspaces.checkouts import Checkout, NoCheckoutError, large, small
from bench.workspaces.first import measure_first
from bench.workspaces.live import (
    live_workspace,
    measure_forks,
    measure_parts,
    measure_undo,
    measure_watching,
)
from bench.workspaces.peers import versions
from bench.workspaces.process import measure_processes
from bench.workspaces.served import measure_served
from bench.workspaces.stage import Rounds, Stage, unmount_below

AT_SMALL = Rounds(5, 2, watching=25, process=9, undo=11, overlay=7, copy=7, extras=True)
QUICK = Rounds(3, 1, watching=11, process=5, undo=5, overlay=5, copy=1, extras=False)
AT_LARGE = Rounds(3, 1, watching=11, process=5, undo=5, overlay=11, copy=5, extras=False)


def measure(
    only: set[str], directory: Path, *, quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """All that is wanted; `quick` takes one directory, and fewer peers. Leaves no file."""
    figures: dict[str, Any] = {"versions": versions(), "sizes": [], "waiting": ""}
    try:
        checkout = small(directory / "checkout")
    except NoCheckoutError as error:
        figures["waiting"] = str(error)
        return figures
    rounds = QUICK if quick else AT_SMALL
    figures["sizes"].append(_measure_one(only, checkout, rounds, directory / "small", say))
    if not quick:
        say("copies of the checkout …")
        copies = large(checkout, directory / "copies")
        figures["sizes"].append(_measure_one(only, copies, AT_LARGE, directory / "large", say))
        set_aside(copies.path)
    set_aside(checkout.path)
    return figures


def _measure_one(
    only: set[str], checkout: Checkout, rounds: Rounds, place: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    def begin(what: str) -> None:
        say(f"{len(checkout.files):,} files: {what} …")
        os.sync()

    place.mkdir()
    checkout.warm()
    stage = Stage(checkout, rounds, place)
    try:
        begin("first snapshots")
        measure_first(stage, thorough="P1" in only)
        if "P3" in only:
            begin("one changed, a new process")
            measure_processes(stage)
        if "P14" in only:
            begin("one changed, a new process beside a daemon")
            measure_served(stage)
        with live_workspace(stage) as ours:
            if only & {"P2", "P14"}:
                begin("one changed, watching")
                measure_watching(stage, ours)
            if "P4" in only:
                begin("undo")
                measure_undo(stage, ours)
            if "P5" in only:
                begin("forks")
                measure_forks(stage, ours)
            if "P2" in only:
                begin("parts of a snapshot")
                measure_parts(stage, ours)
    finally:
        unmount_below(place)
        set_aside(place)
    return stage.figures()
