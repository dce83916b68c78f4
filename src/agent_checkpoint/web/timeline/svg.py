"""Geometry of the picture: from rows and lanes to points and paths. Owns the measures.

Only numbers and names of classes leave this file: no text of a checkpoint is ever in a path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from typing import Any, NamedTuple

from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY
from agent_checkpoint.web.timeline.layout import Edge, Picture, Row, Segment

ROW = 36
"""The height of a row; the style sheet says the same."""
LANE, NARROWEST = 22, 8
LEFT = 26
_ROOM = 88
"""What the lanes take if they can: a phone has no more."""
BLOCK = 100
"""How many rows are asked for at once."""
_MOST_EDGES = 400
_BEND = 0.8 * ROW
BINS = 160


class Mark(NamedTuple):
    """What stands for one checkpoint."""

    x: float
    y: float
    r: float
    style: str


class Drawing(NamedTuple):
    """All that is drawn beside some rows."""

    width: int
    height: int
    lines: list[tuple[str, str]]
    """A path and its class."""
    marks: list[Mark]


class Bin(NamedTuple):
    """A piece of the overview."""

    x: float
    width: float
    height: float
    style: str
    row: int
    words: str


def block_rows(total: int, block: int) -> tuple[int, int]:
    """Return the first row of a block and the one after its last."""
    return block * BLOCK, min(total, (block + 1) * BLOCK)


def width_of(picture: Picture) -> int:
    """Return how wide the picture is."""
    return round(LEFT + _lane(picture) * (picture.lanes - 1) + 16)


def _lane(picture: Picture) -> float:
    return max(NARROWEST, min(LANE, _ROOM / max(1, picture.lanes - 1)))


def drawing(
    picture: Picture, low: int, end: int, troubled: Container[str] = frozenset()
) -> Drawing:
    """Return the part of a picture that stands beside some rows, the newest on top.

    Args:
        picture: the whole of it.
        low: the first of the rows.
        end: the one after the last.
        troubled: ids of checkpoints that are marked as failures, too.
    """
    plot = _Plot(end - 1, _lane(picture), troubled)
    lines: list[tuple[str, str]] = []
    for lane, segments in picture.segments.items():
        start = max(0, bisect_left(segments, (low,)) - 1)
        while start and segments[start - 1].high >= low:
            start -= 1
        for segment in segments[start:]:
            if segment.low >= end:
                break
            if segment.high >= low:
                lines.append(plot.segment(lane, segment))
    near = [edge for edge in picture.edges if edge.low < end and edge.high >= low]
    lines += [plot.edge(edge) for edge in near[-_MOST_EDGES:]]
    marks = [plot.mark(row, picture.rows[row]) for row in range(low, end)]
    return Drawing(width_of(picture), (end - low) * ROW, lines, marks)


def overview(picture: Picture, troubled: Container[str] = frozenset()) -> list[Bin]:
    """Return the whole timeline in few pieces: how much happened, and where something special."""
    total = len(picture.rows)
    if not total:
        return []
    number = min(BINS, total)
    found = []
    for place in range(number):
        low, end = place * total // number, (place + 1) * total // number
        rows = picture.rows[low:end]
        kinds = {row.point.kind for row in rows}
        style = next((name for name in _SPECIAL if name in kinds), "save")
        if any(row.point.is_failure or row.point.id in troubled for row in rows):
            style = "failure"
        lanes = len({row.point.key for row in rows})
        height = min(30.0, 10 + 5 * lanes)
        words = f"{low + 1:,} to {end:,}"
        found.append(Bin(place * 1000 / number, 1000 / number, height, style, end - 1, words))
    return found


class _Plot:
    """Places on a drawing whose top row is known."""

    def __init__(self, top: int, lane: float, troubled: Container[str]) -> None:
        self._top = top
        self._lane = lane
        self._troubled = troubled

    def x(self, lane: int) -> float:
        return LEFT + self._lane * lane

    def y(self, row: int) -> float:
        return (self._top - row + 0.5) * ROW

    def mark(self, row: int, of: Row) -> Mark:
        kind = of.point.kind
        style = ["mark", _STYLES.get(kind, "save")]
        if of.point.is_failure or of.point.id in self._troubled:
            style.append("failure")
        if of.is_head:
            style.append("head" if of.lane == 0 else "tip")
        if of.is_aside and kind != SAFETY:
            style.append("aside")
        r = 3.0 if kind == SAFETY else 4.0 if kind in ("open", "close") else 6.0
        return Mark(self.x(of.lane), self.y(row), r, " ".join(style))

    def segment(self, lane: int, of: Segment) -> tuple[str, str]:
        x = self.x(lane)
        style = f"line lane-{lane % 6}"
        style += " broken" if of.is_broken else ""
        style += " aside" if of.is_aside else ""
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
        if of.kind == "fork":
            turn = low - min(_BEND, abs(low - high))
            path = f"M{a:g} {low:g}C{a:g} {turn:g} {b:g} {low:g} {b:g} {turn:g}V{high:g}"
            return path, f"edge fork lane-{of.high_lane % 6}"
        turn = high + min(_BEND, abs(low - high))
        path = f"M{a:g} {low:g}V{turn:g}C{a:g} {high:g} {b:g} {turn:g} {b:g} {high:g}"
        return path, f"edge adopt lane-{of.low_lane % 6}"


_STYLES: dict[str, Any] = {
    "save": "save",
    "open": "small",
    "close": "small",
    "fork": "fork",
    "adopt": "adopt",
    "rollback": "rollback",
    "restore": "rollback",
    "safety": "safety",
    "drift": "drift",
    "in_flight": "flight",
    "unreadable": "failure",
}
_SPECIAL = ("unreadable", "adopt", "fork", "rollback", "restore", "drift")
