"""SVG geometry: converts rows and lanes to marks and paths. Owns all sizes.

The output contains only numbers and CSS classes, never text of a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Kind
from agent_checkpoint.web.timeline.layout import Edge, Row, Segment, TimelineLayout

ROW = 36
"""Height of a row; must match the style sheet."""
LANE, NARROWEST = 22, 8
LEFT = 26
_ROOM = 88
"""Preferred width of all lanes, which fits on a phone."""
BLOCK = 100
"""Rows that are loaded at once."""
_MAX_EDGES = 400
_BEND = 0.8 * ROW
BINS = 160


class Mark(NamedTuple):
    """The circle of one checkpoint."""

    x: float
    y: float
    r: float
    style: str


class Drawing(NamedTuple):
    """The graph beside some rows."""

    width: int
    height: int
    lines: list[tuple[str, str]]
    """Path data and CSS class."""
    marks: list[Mark]


class Bin(NamedTuple):
    """One bar of the overview histogram."""

    x: float
    width: float
    height: float
    style: str
    row: int
    words: str


def block_rows(total: int, block: int) -> tuple[int, int]:
    """Return the first row of a block and the row after its last."""
    return block * BLOCK, min(total, (block + 1) * BLOCK)


def width_of(layout: TimelineLayout) -> int:
    """Return the width of the graph."""
    return round(LEFT + _lane(layout) * (layout.lanes - 1) + 16)


def _lane(layout: TimelineLayout) -> float:
    return max(NARROWEST, min(LANE, _ROOM / max(1, layout.lanes - 1)))


def drawing(
    layout: TimelineLayout, low: int, end: int, in_doubt: Container[str] = frozenset()
) -> Drawing:
    """Return the graph beside some rows, newest on top.

    Args:
        layout: the whole timeline.
        low: the first row.
        end: the row after the last.
        in_doubt: ids of checkpoints after a call with unknown outcome, drawn as failures.
    """
    plot = _Plot(end - 1, _lane(layout), in_doubt)
    lines: list[tuple[str, str]] = []
    for lane, segments in layout.segments.items():
        start = max(0, bisect_left(segments, (low,)) - 1)
        while start and segments[start - 1].high >= low:
            start -= 1
        for segment in segments[start:]:
            if segment.low >= end:
                break
            if segment.high >= low:
                lines.append(plot.segment(lane, segment))
    near = [edge for edge in layout.edges if edge.low < end and edge.high >= low]
    lines += [plot.edge(edge) for edge in near[-_MAX_EDGES:]]
    marks = [plot.mark(row, layout.rows[row]) for row in range(low, end)]
    return Drawing(width_of(layout), (end - low) * ROW, lines, marks)


def overview(layout: TimelineLayout, in_doubt: Container[str] = frozenset()) -> list[Bin]:
    """Return the overview: the timeline in a few bars, colored by their most notable event."""
    total = len(layout.rows)
    if not total:
        return []
    number = min(BINS, total)
    bins = []
    for index in range(number):
        low, end = index * total // number, (index + 1) * total // number
        rows = layout.rows[low:end]
        kinds = {row.checkpoint.kind for row in rows}
        style = next((name for name in _SPECIAL if name in kinds), "save")
        if any(row.checkpoint.is_failure or row.checkpoint.id in in_doubt for row in rows):
            style = "failure"
        lanes = len({row.checkpoint.key for row in rows})
        height = min(30.0, 10 + 5 * lanes)
        words = f"{low + 1:,} to {end:,}"
        bins.append(Bin(index * 1000 / number, 1000 / number, height, style, end - 1, words))
    return bins


class _Plot:
    """Coordinates of a drawing with a given top row."""

    def __init__(self, top: int, lane: float, in_doubt: Container[str]) -> None:
        self._top = top
        self._lane = lane
        self._in_doubt = in_doubt

    def x(self, lane: int) -> float:
        return LEFT + self._lane * lane

    def y(self, row: int) -> float:
        return (self._top - row + 0.5) * ROW

    def mark(self, row: int, of: Row) -> Mark:
        kind = of.checkpoint.kind
        style = ["mark", _STYLES.get(kind, "save")]
        if of.checkpoint.is_failure or of.checkpoint.id in self._in_doubt:
            style.append("failure")
        if of.is_head:
            style.append("head" if of.lane == 0 else "tip")
        if of.is_abandoned and kind != Kind.SAFETY:
            style.append("abandoned")
        r = 3.0 if kind == Kind.SAFETY else 4.0 if kind in (Kind.OPEN, Kind.CLOSE) else 6.0
        return Mark(self.x(of.lane), self.y(row), r, " ".join(style))

    def segment(self, lane: int, of: Segment) -> tuple[str, str]:
        x = self.x(lane)
        style = f"line lane-{lane % 6}"
        style += " broken" if of.is_broken else ""
        style += " abandoned" if of.is_abandoned else ""
        return f"M{x:g} {self.y(of.low):g}V{self.y(of.high):g}", style

    def edge(self, of: Edge) -> tuple[str, str]:
        low, high = self.y(of.low), self.y(of.high)
        a, b = self.x(of.low_lane), self.x(of.high_lane)
        if of.kind == "back":
            reach = 11 + 4 * of.track
            side = a - (min(reach, self._lane - 2) if of.low_lane else reach)
            bend = min(_BEND, abs(low - high) / 2)
            path = (
                f"M{a - 5:g} {low:g}Q{side:g} {low:g} {side:g} {low - bend:g}"
                f"V{high + bend:g}Q{side:g} {high:g} {b - 7:g} {high:g}"
            )
            return path, "edge back"
        if of.kind == Kind.FORK:
            turn = low - min(_BEND, abs(low - high))
            path = f"M{a:g} {low:g}C{a:g} {turn:g} {b:g} {low:g} {b:g} {turn:g}V{high:g}"
            return path, f"edge fork lane-{of.high_lane % 6}"
        turn = high + min(_BEND, abs(low - high))
        path = f"M{a:g} {low:g}V{turn:g}C{a:g} {high:g} {b:g} {turn:g} {b:g} {high:g}"
        return path, f"edge adopt lane-{of.low_lane % 6}"


_STYLES: dict[str, Any] = {
    Kind.SAVE: "save",
    Kind.OPEN: "small",
    Kind.CLOSE: "small",
    Kind.FORK: "fork",
    Kind.ADOPT: "adopt",
    Kind.ROLLBACK: "rollback",
    Kind.RESTORE: "rollback",
    Kind.SAFETY: "safety",
    Kind.DRIFT: "drift",
    Kind.OUTSIDE: "drift",
    Kind.IN_FLIGHT: "flight",
    Kind.UNREADABLE: "failure",
}
_SPECIAL = (
    Kind.UNREADABLE,
    Kind.ADOPT,
    Kind.FORK,
    Kind.ROLLBACK,
    Kind.RESTORE,
    Kind.DRIFT,
    Kind.OUTSIDE,
)
