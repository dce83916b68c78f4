"""The figures as a picture: bytes and time over the conversation, and every ratio by its target."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.conversation import BLOCK, TITLES
from bench.table import times

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


def draw(results: dict[str, Any], path: Path) -> None:
    """Write the picture; the ending of the path says in which format."""
    runs = [run for run in results["conversations"] if run["kind"] == "varied"]
    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "bench", "axes.spines.top": False}
        | {"axes.spines.right": False, "figure.facecolor": "white"}
    )
    figure = plt.figure(figsize=(11, 9), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1, 1.4])
    stored, saves = above.subplots(1, 2)
    _stored(stored, runs[0])
    _time_a_save(saves, runs[0])
    _ratios(below.subplots(), results["rows"])
    machine = results["machine"]
    figure.suptitle(
        f"agent-checkpoint {machine['versions']['agent-checkpoint']} and LangGraph SqliteSaver "
        f"{machine['versions']['langgraph-checkpoint-sqlite']}, one run, {machine['cores']} cores, "
        f"{machine['filesystem']}"
    )
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=130, metadata=metadata)
    plt.close(figure)


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


def _ratios(axes: Axes, rows: list[dict[str, Any]]) -> None:
    judged = [
        row
        for row in rows
        if row["target"] and row["ratio"] is not None and row["target_is_on"] == "ratio"
    ]
    for place, row in enumerate(reversed(judged)):
        share = row["ratio"] / row["target"]
        colour = HOLDS if row["verdict"] == "holds" else MISSES
        axes.barh(place, share - 1, left=1, color=colour, height=0.65)
        axes.annotate(
            f"{times(row['ratio'])} {row['peer_name']}",
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


def _mode(row: dict[str, Any]) -> str:
    mode: str = row["durability"].partition(" ")[0]
    return mode
