"""A conversation of a thousand steps, saved at every step (targets P6, P7, P8).

Each side appends the same messages and saves after each; they take turns in blocks of BLOCK
steps. A save is timed from before the append until the call returns, when it is as durable as the
side's mode says. Stored bytes are the sizes of all files of the store: while it is open, with
SQLite's log, and after it is closed, which is what the table shows; the room that our store keeps
back for a full disk counts, and is told apart as well. Noise shrinks to three quarters at most, and
a message is stored twice, with its checkpoint and in a leaf: the floors of its rows are what
`size_floor.py` writes, and the entries and objects in it without a database around them.
The processor's time a save is told beside: it hardly depends on what else the machine does.

Afterwards each side loads the latest checkpoint LOADS times, in turn, in three ways:

    again   with a store that stays open and has loaded this very checkpoint before. Ours then
            answers from its cache and reads nothing; the peer reads and decodes every time
    first   with a store that is open and has loaded nothing yet: both read and decode
    fresh   the same, and the opening counts too

Every load is compared with what was saved. Two floors of a first load take turns with it. For one,
the objects of the checkpoint are known beforehand: they are read with one connection, decompressed,
hashed and parsed. The other is a whole verified load without the library: `load_floor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.aside import set_aside
from bench.changes import measure_changes
from bench.figures import median_ms, milliseconds, summary_ms
from bench.rows import Row
from bench.sides import SideName
from bench.size_floor import least_bytes
from bench.texts import conversation, raw_bytes
from bench.turns import Turns, taking_turns

STEPS = 1_000
QUICK_STEPS = 300
BLOCK = 50
LOADS = 41
ENDS = 100
"""How many saves at the beginning and at the end are compared."""

HOW = {"again": "load again, cached", "first": "first load", "fresh": "open and load"}
PEER = "langgraph"
PEER_NAME = "LangGraph"
TITLES = {
    "log-fast": "Log, fast",
    "log-plain": "Log, plain",
    "part-fast": "Log as a part, fast",
    "part-plain": "Log as a part, plain",
    "list-fast": "list, fast",
    "list-plain": "list, plain",
    PEER: "LangGraph SqliteSaver",
}
WHOLE = ["log-fast", "log-plain", "part-fast", "list-fast", "list-plain"]
"""The sides that have rows; the others are in the second table."""
LOAD_FLOORS = {"floor": "read, unpack, hash, parse", "straight": "the same load, straight-line"}
SIZE_FLOORS = {"file": "the same rows in bare SQLite", "alone": "entries and objects alone"}
LOAD_TARGETS = {
    ("again", True): 1.0,
    ("again", False): 1.0,
    ("first", True): 1.5,
    ("first", False): 4.0,
}
"""By how it is loaded, and whether the extra `fast` is there."""


def sides(durability: str) -> list[SideName]:
    """Ours with and without the extra `fast`, and the peer."""
    return [
        *(
            SideName(side, fast, durability)
            for side in ("log", "part", "list")
            for fast in (True, False)
        ),
        SideName("langgraph", True, durability),
    ]


def measure_all(
    only: set[str], directory: Path, *, quick: bool, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The conversations that the wanted rows need, the one that all of them need first."""
    runs = [("varied", "FULL")]
    if "P7" in only and not quick:
        runs.append(("varied", "NORMAL"))
    if "P6" in only and not quick:
        runs.append(("noise", "FULL"))
    steps = QUICK_STEPS if quick else STEPS
    found = []
    for kind, durability in runs:
        say(f"a conversation of {steps:,} steps, {kind}, {durability} …")
        place = directory / f"{kind}-{durability}"
        place.mkdir()
        thorough = not found and bool(only & {"P8", "changes"})
        found.append(_measure(kind, durability, steps, place, thorough=thorough))
        set_aside(place)
    return found


def _measure(
    kind: str, durability: str, steps: int, place: Path, *, thorough: bool
) -> dict[str, Any]:
    """Run one conversation on all sides; `thorough`: loads and changes of the whole as well."""
    figures: dict[str, Any] = {
        "kind": kind,
        "durability": durability,
        "steps": steps,
        "raw_bytes": raw_bytes(conversation(kind, steps)),
    }
    if kind == "noise":
        figures["least_bytes"] = least_bytes(conversation(kind, steps), place / "least.db")
    with taking_turns(sides(durability), kind, steps, place) as turns:
        found = _save_all(turns, steps)
        for name, answer in turns.ask_all("close").items():
            found[name]["bytes_closed"] = answer["bytes"]
            found[name]["bytes_kept_back"] = answer["kept_back"]
        if thorough:
            _load_all(turns, found)
            turns.ask_all("resume")
            for name, changes in measure_changes(turns, list(found)).items():
                found[name]["changes"] = changes
            turns.ask_all("close")
    figures["sides"] = found
    return figures


def _save_all(turns: Turns, steps: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        name: {"save_ns": [], "cpu_ns": [], "bytes_at": []} for name in turns.ask_all("open")
    }
    for start in range(0, steps, BLOCK):
        stop = min(start + BLOCK, steps)
        for name, answer in turns.ask_all("steps", start=start, stop=stop).items():
            found[name]["save_ns"] += answer["ns"]
            found[name]["cpu_ns"].append(answer["cpu_ns"])
            found[name]["bytes_at"].append([stop, answer["bytes"]])
            found[name]["pragmas"] = answer["pragmas"]
            found[name]["accelerators"] = answer["accelerators"]
    for side in found.values():
        side["save_ms"] = summary_ms(side["save_ns"])
        blocks = ENDS // BLOCK
        side["cpu_ms"] = milliseconds(sum(side["cpu_ns"]) / steps)
        side["first_cpu_ms"] = milliseconds(sum(side["cpu_ns"][:blocks]) / ENDS)
        side["last_cpu_ms"] = milliseconds(sum(side["cpu_ns"][-blocks:]) / ENDS)
        side["first_ms"] = median_ms(side["save_ns"][:ENDS])
        side["last_ms"] = median_ms(side["save_ns"][-ENDS:])
        side["bytes_open"] = side["bytes_at"][-1][1]
    return found


def _load_all(turns: Turns, found: dict[str, dict[str, Any]]) -> None:
    turns.ask_all("open")
    for how in HOW:
        turns.ask_all("load", how=how)  # not counted: fills the caches of the system, and `again`
        for _ in range(LOADS):
            for side, answer in turns.ask_all("load", how=how).items():
                found[side].setdefault(f"load_{how}_ns", []).append(answer["ns"])
            if how == "first":
                for floor in LOAD_FLOORS:
                    for side, answer in turns.ask_all(floor, only=WHOLE).items():
                        found[side].setdefault(f"load_{floor}_ns", []).append(answer["ns"])
    for figures in found.values():
        for how in (*HOW, *LOAD_FLOORS):
            if f"load_{how}_ns" in figures:
                figures[f"load_{how}_ms"] = summary_ms(figures[f"load_{how}_ns"])


# -- rows ------------------------------------------------------------------------------------------


def rows(runs: list[dict[str, Any]], only: set[str]) -> list[Row]:
    """The rows of P6, P7 and P8."""
    found: list[Row] = []
    if "P6" in only:
        found += _size_rows(runs[0], WHOLE)
        if runs[-1]["kind"] == "noise":
            found += _size_rows(runs[-1], ["log-fast", "list-fast"])
    if "P7" in only:
        for run in runs:
            if run["kind"] == "varied":
                found += _save_rows(run)
    if "P8" in only:
        found += _load_rows(runs[0])
    return found


def _size_rows(figures: dict[str, Any], names: Sequence[str]) -> list[Row]:
    """P6: stored bytes against the raw messages, and against the peer."""
    sides, durability = figures["sides"], figures["durability"]
    text = "text" if figures["kind"] == "varied" else "noise"
    rows = [
        Row(
            id="P6",
            what=f"{TITLES[name]}: stored, {text}",
            ours=sides[name]["bytes_closed"],
            peer=figures["raw_bytes"],
            unit="B",
            peer_name="raw",
            target=2,
            durability=durability,
        )
        for name in names
    ]
    floors = [
        replace(row, peer=figures["least_bytes"][which], peer_name=name, target=None, floor=True)
        for row in rows
        for which, name in SIZE_FLOORS.items()
        if "least_bytes" in figures
    ]
    first = sides[names[0]]
    without = first["bytes_closed"] - first["bytes_kept_back"]
    return [
        *rows,
        *floors,
        replace(rows[0], what=f"{rows[0].what}, without the reserve", ours=without, target=None),
        replace(
            rows[0],
            peer=sides[PEER]["bytes_closed"],
            peer_name=PEER_NAME,
            target=None,
            durability=f"{durability} / {durability}",
        ),
    ]


def _save_rows(figures: dict[str, Any]) -> list[Row]:
    """P7: the mean time of a save against the peer's, and the end against the beginning."""
    sides, durability = figures["sides"], figures["durability"]
    targets = {
        "log-fast": 1 / 3,
        "log-plain": 1 / 3,
        "part-fast": 1 / 3,
        "list-fast": 1.0,
        "list-plain": None,
    }
    rows = [
        Row.of_times(
            "P7",
            f"{TITLES[name]}: a save, mean",
            sides[name]["save_ms"],
            sides[PEER]["save_ms"],
            "mean",
            peer_name=PEER_NAME,
            target=target,
            durability=f"{durability} / {durability}",
        )
        for name, target in targets.items()
    ]
    # Far apart in time: other work on the machine may differ, the processor's time hardly.
    return rows + [
        Row(
            id="P7",
            what=f"{TITLES[name]}: last {ENDS} saves, {says}",
            ours=sides[name][f"last_{figure}ms"],
            peer=sides[name][f"first_{figure}ms"],
            unit="ms",
            peer_name=f"first {ENDS}",
            target=1.5,
            durability=durability,
        )
        for name in ("log-fast", "part-fast")
        for figure, says in (("", "p50"), ("cpu_", "processor's time"))
    ]


def _load_rows(figures: dict[str, Any]) -> list[Row]:
    """P8: the median time of a load of everything, again and for the first time."""
    sides = figures["sides"]
    loads = [
        Row.of_times(
            "P8",
            f"{TITLES[name]}: {HOW[how]}, p50",
            sides[name][f"load_{how}_ms"],
            sides[PEER][f"load_{how}_ms"],
            "p50",
            peer_name=PEER_NAME,
            target=LOAD_TARGETS[how, name.endswith("-fast")],
        )
        for how in ("again", "first")
        for name in WHOLE
    ]
    return loads + [
        Row.of_times(
            "P8",
            f"{TITLES[name]}: {HOW['first']}, p50",
            sides[name]["load_first_ms"],
            sides[name][f"load_{floor}_ms"],
            "p50",
            peer_name=says,
            floor=True,
        )
        for floor, says in LOAD_FLOORS.items()
        for name in WHOLE
    ]
