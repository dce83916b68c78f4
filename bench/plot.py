"""The figures as a picture: time of workspaces, bytes and time over the conversation, and every
ratio by its target. What was not measured has no panel.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.conversation import BLOCK, TITLES
from bench.table import quantity, times
from bench.workspaces.rows import PEERS
from bench.workspaces.rows import WORK as TITLES_OF_WORK

COLOURS = {
    "log-fast": "#0b6e4f",
    "log-plain": "#6fb98f",
    "part-fast": "#b8860b",
    "part-plain": "#e0c068",
    "list-fast": "#1f5fa8",
    "list-plain": "#8fb8de",
    "langgraph": "#c8553d",
}
HOLDS, MISSES = "#0b6e4f", "#c8553d"
WORK = ("first", "watching", "changed", "undo", "overlay", "copy")
WORK_SIDES = {
    "ours": "#0b6e4f",
    "git": "#c8553d",
    "restic": "#8a6d9e",
    "borg": "#b9a5c9",
    "cp": "#777777",
    "git-worktree": "#e39a8a",
}


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the picture; the ending of the path says in which format."""
    runs = [run for run in results.get("conversations", []) if run["kind"] == "varied"]
    sizes = results.get("workspaces", {}).get("sizes", [])
    style: Any = {"font.size": 9, "svg.hashsalt": "bench", "figure.facecolor": "white"}
    plt.rcParams.update(style | {"axes.spines.top": False, "axes.spines.right": False})
    judged = [row for row in results["rows"] if _share(row) is not None]
    heights = [3.6] * bool(sizes) + [3.75] * bool(runs) + [1 + 0.2 * len(judged)]
    figure = plt.figure(figsize=(11, sum(heights)), layout="constrained")
    panels = list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).flat)
    if sizes:
        axes = panels.pop(0).subplots(1, len(sizes), squeeze=False)
        for place, size in zip(axes.flat, sizes):
            _work(place, size)
    if runs:
        stored, saves = panels.pop(0).subplots(1, 2)
        _stored(stored, runs[0])
        _time_a_save(saves, runs[0])
    _ratios(panels.pop(0).subplots(), judged)
    machine = results["machine"]
    figure.suptitle(
        f"agent-checkpoint {machine['versions']['agent-checkpoint']} and its peers, one run, "
        f"{machine['cores']} cores, {machine['filesystem']}"
    )
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=130, metadata=metadata)
    plt.close(figure)


CURVES = {  # the lines: colour and label
    "watching ours": ("#0b6e4f", "ours, watching"),
    "changed ours": ("#6fb98f", "ours, new process"),
    "watching git": ("#c8553d", "git add, git commit"),
    "ours": ("#0b6e4f", "ours, Log"),
    "sqlite": ("#c8553d", "LangGraph SqliteSaver"),
    "delta": ("#e39a8a", "LangGraph, DeltaChannel"),
}


def draw_curves(curves: dict[str, Any], path: Path) -> None:
    """Write the picture of time against files, and time and bytes against steps."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "bench", "figure.facecolor": "white"})
    figure, (files, saves, stored) = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    counts = [int(count) for count in curves["files"]]
    for name in next(iter(curves["files"].values())):
        times = [found[name] for found in curves["files"].values()]
        _line(files, name, counts, times)
    for name, side in curves["steps"].items():
        steps = [point["steps"] for point in side["points"]]
        _line(saves, name, steps, [point["ms"] for point in side["points"]])
        _line(stored, name, steps, [point["bytes"] / 1e6 for point in side["points"]])
        if side["stopped"]:
            end = (steps[-1], side["points"][-1]["bytes"] / 1e6)
            stored.annotate(side["stopped"], end, ha="right", va="bottom", fontsize=7)
    files.set_title("One file changed: time of a snapshot (ms)")
    files.set_xlabel("files")
    saves.set_title("Time of a save (ms)")
    stored.set_title("Stored (MB)")
    for axes in (saves, stored):
        axes.set_xlabel("steps")
    for axes in (files, saves, stored):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _line(axes: Axes, name: str, along: list[int], values: list[float]) -> None:
    colour, label = CURVES[name]
    axes.plot(along, values, color=colour, marker=".", label=label)


def _work(axes: Axes, size: dict[str, Any]) -> None:
    """Bars from the top: each kind of work, and in it each side that did it."""
    place, ticks = 0.0, {}
    for work in WORK:
        found = size["work"].get(work, {})
        sides = [side for side in WORK_SIDES if side in found]
        if sides:
            ticks[place + (len(sides) - 1) / 2] = TITLES_OF_WORK[work]
        for side in sides:
            median = found[side]["ms"]["p50"]
            axes.barh(place, median, color=WORK_SIDES[side], height=0.85)
            label = f" {PEERS.get(side, side)} {quantity(median, 'ms')}"
            axes.annotate(label, (median, place), va="center", fontsize=7)
            place += 1
        place += 0.7 * bool(sides)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=7.5)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 8)  # room for the labels
    axes.set_title(f"Time (ms), {size['files']:,} files")


def _stored(axes: Axes, run: dict[str, Any]) -> None:
    for name, side in run["sides"].items():
        steps = [step for step, _ in side["bytes_at"]]
        stored = [size / 1e6 for _, size in side["bytes_at"]]
        axes.plot(steps, stored, color=COLOURS[name])
    raw = [run["raw_bytes"] / 1e6 * step / run["steps"] for step in steps]
    axes.plot(steps, raw, color="#555", linestyle=":")
    axes.annotate("raw messages", (steps[-1], raw[-1]), ha="right", va="bottom", fontsize=8)
    axes.set_yscale("log")
    axes.set_title("Stored, a save a step (MB, open store)")
    axes.set_xlabel("step")


def _time_a_save(axes: Axes, run: dict[str, Any]) -> None:
    for name, side in run["sides"].items():
        taken = side["save_ns"]
        starts = range(0, len(taken), BLOCK)
        medians = [statistics.median(taken[start : start + BLOCK]) / 1e6 for start in starts]
        middles = [start + BLOCK / 2 for start in starts]
        axes.plot(middles, medians, color=COLOURS[name], label=TITLES[name])
    axes.set_ylim(bottom=0)
    axes.set_title(f"Time a save (ms, median of {BLOCK} steps), both {run['durability']}")
    axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("step")


def _share(row: dict[str, Any]) -> float | None:
    """How much of its target a figure takes; None where there is no such share."""
    figure = {"ratio": row["ratio"], "ours": row["ours"]}.get(row["target_is_on"])
    return figure / row["target"] if figure and row["target"] else None


def _ratios(axes: Axes, judged: list[dict[str, Any]]) -> None:
    for place, row in enumerate(reversed(judged)):
        share = _share(row) or 1
        colour = HOLDS if row["verdict"] == "holds" else MISSES
        axes.barh(place, share - 1, left=1, color=colour, height=0.65)
        axes.annotate(
            _against(row),
            (share, place),
            xytext=(-3 if share < 1 else 3, 0),
            textcoords="offset points",
            ha="right" if share < 1 else "left",
            va="center",
            fontsize=7,
        )
    names = [f"{row['row']}  {row['what']}, {_mode(row)}".rstrip(", ") for row in judged]
    axes.set_yticks(range(len(judged)), reversed(names), fontsize=7.5)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 3, high * 3)
    axes.set_title("How far below (left) or above (right) its target each figure is")
    axes.margins(y=0.02)


def _against(row: dict[str, Any]) -> str:
    if row["target_is_on"] == "ours":
        return quantity(row["ours"], row["unit"])
    return f"{times(row['ratio'])} {row['peer_name']}"


def _mode(row: dict[str, Any]) -> str:
    mode: str = row["durability"].partition(" ")[0]
    return mode
