"""A conversation of a thousand steps, saved at every step (targets P6, P7, P8).

Each side appends the same messages and saves after each; they take turns in blocks of BLOCK
steps. A save is timed from before the append until the call returns, when it is as durable as the
side's mode says. Stored bytes are the sizes of all files of the store: while it is open, with
SQLite's log, and after it is closed, which is what the table shows; the room that our store keeps
back for a full disk, the same for any number of checkpoints, counts, and is told apart as well.
The processor's time a save is told beside: it hardly depends on what else the machine does.

Afterwards each side loads the latest checkpoint LOADS times, in turn, in three ways:

    again   with a store that stays open and has loaded this very checkpoint before. Ours then
            answers from its cache and reads nothing; the peer reads and decodes every time
    first   with a store that is open and has loaded nothing yet: both read and decode
    fresh   the same, and the opening counts too

Every load is compared with what was saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.changes import measure_changes
from bench.figures import median_ms, milliseconds, summary_ms
from bench.rows import Row
from bench.sides import SideName
from bench.texts import conversation, raw_bytes
from bench.turns import Turns, taking_turns

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
NO_LOG = "Log is not in this version"


def sides(durability: str, with_log: bool) -> list[SideName]:
    """Ours with and without the extra `fast`, and the peer."""
    ours = ("log", "part", "list") if with_log else ("list",)
    return [
        *(SideName(side, fast, durability) for side in ours for fast in (True, False)),
        SideName("langgraph", True, durability),
    ]


def measure(
    kind: str,
    durability: str,
    steps: int,
    directory: Path,
    *,
    with_log: bool,
    thorough: bool = False,
) -> dict[str, Any]:
    """Run one conversation on all sides; `thorough`: loads and changes of the whole as well."""
    place = directory / f"{kind}-{durability}"
    place.mkdir()
    figures: dict[str, Any] = {
        "kind": kind,
        "durability": durability,
        "steps": steps,
        "raw_bytes": raw_bytes(conversation(kind, steps)),
    }
    with taking_turns(sides(durability, with_log), kind, steps, place) as turns:
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
        times: dict[str, list[int]] = {side: [] for side in found}
        for _ in range(LOADS):
            for side, answer in turns.ask_all("load", how=how).items():
                times[side].append(answer["ns"])
        for side, taken in times.items():
            found[side][f"load_{how}_ns"] = taken
            found[side][f"load_{how}_ms"] = summary_ms(taken)


# -- rows ------------------------------------------------------------------------------------------


def _side(figures: dict[str, Any], name: str) -> dict[str, Any] | None:
    side: dict[str, Any] | None = figures["sides"].get(name)
    return side


def size_rows(figures: dict[str, Any], names: Sequence[str]) -> list[Row]:
    """P6: stored bytes against the raw messages, and against the peer."""
    peer = figures["sides"][PEER]
    text = "text" if figures["kind"] == "varied" else "noise"
    both = f"{figures['durability']} / {figures['durability']}"
    rows = []
    for name in names:
        side = _side(figures, name)
        ours = None if side is None else side["bytes_closed"]
        waiting = NO_LOG if side is None else ""
        rows.append(
            Row(
                id="P6",
                what=f"{TITLES[name]}: stored, {text}",
                ours=ours,
                peer=figures["raw_bytes"],
                unit="B",
                peer_name="raw",
                target=2,
                durability=figures["durability"],
                waiting=waiting,
            )
        )
    first = _side(figures, names[0])
    ours = None if first is None else first["bytes_closed"]
    information = Row(
        id="P6",
        what=f"{TITLES[names[0]]}: stored, {text}",
        ours=ours,
        peer=peer["bytes_closed"],
        unit="B",
        peer_name=PEER_NAME,
        durability=both,
        waiting=NO_LOG if first is None else "",
    )
    rows.append(information)
    if first is not None and first["bytes_kept_back"]:
        rows.append(
            replace(
                information,
                what=f"{information.what}, without the reserve",
                ours=first["bytes_closed"] - first["bytes_kept_back"],
                peer=figures["raw_bytes"],
                peer_name="raw",
                durability=figures["durability"],
            )
        )
    return rows


def save_rows(figures: dict[str, Any]) -> list[Row]:
    """P7: the mean time of a save against the peer's, and the end against the beginning."""
    peer = figures["sides"][PEER]
    durability = figures["durability"]
    targets = {
        "log-fast": 1 / 3,
        "log-plain": 1 / 3,
        "part-fast": 1 / 3,
        "list-fast": 1.0,
        "list-plain": None,
    }
    rows = []
    for name, target in targets.items():
        side = _side(figures, name)
        rows.append(
            Row(
                id="P7",
                what=f"{TITLES[name]}: a save, mean",
                ours=None if side is None else side["save_ms"]["mean"],
                peer=peer["save_ms"]["mean"],
                unit="ms",
                peer_name=PEER_NAME,
                target=target,
                durability=f"{durability} / {durability}",
                waiting=NO_LOG if side is None else "",
            )
        )
    for name in ("log-fast", "part-fast"):
        side = _side(figures, name)
        # Far apart in time: other work on the machine may differ, the processor's time hardly.
        for figure, says in (("", "p50"), ("cpu_", "processor's time")):
            rows.append(
                Row(
                    id="P7",
                    what=f"{TITLES[name]}: last {ENDS} saves, {says}",
                    ours=None if side is None else side[f"last_{figure}ms"],
                    peer=None if side is None else side[f"first_{figure}ms"],
                    unit="ms",
                    peer_name=f"first {ENDS}",
                    target=1.5,
                    durability=durability,
                    waiting=NO_LOG if side is None else "",
                )
            )
    return rows


def load_rows(figures: dict[str, Any]) -> list[Row]:
    """P8: the median time of a load of everything, again and for the first time."""
    peer = figures["sides"][PEER]
    targets = {
        "log-fast": 1.0,
        "log-plain": 4.0,
        "part-fast": 1.0,
        "list-fast": 1.0,
        "list-plain": 4.0,
    }
    rows = []
    for how in ("again", "first"):
        for name, target in targets.items():
            side = _side(figures, name)
            rows.append(
                Row(
                    id="P8",
                    what=f"{TITLES[name]}: {HOW[how]}, p50",
                    ours=None if side is None else side[f"load_{how}_ms"]["p50"],
                    peer=peer[f"load_{how}_ms"]["p50"],
                    unit="ms",
                    peer_name=PEER_NAME,
                    target=target,
                    waiting=NO_LOG if side is None else "",
                )
            )
    return rows
