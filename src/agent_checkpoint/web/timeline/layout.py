"""The timeline as a picture: which row and lane each checkpoint has, and what joins them.

Owns the order and the layout; knows neither a store nor how it is drawn. Rows are numbered from the
oldest, so that a new checkpoint moves none of them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from heapq import merge
from typing import NamedTuple

from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY
from agent_checkpoint.web.timeline.history import UNREADABLE, Point

MOST_LANES = 24
"""How many lines stand beside each other; what is more shares the last lane."""
_TRACKS = 3
_JUMPS = frozenset({"rollback", "restore"})
_QUIET = frozenset({"save", "open", "close", SAFETY, "in_flight"})


class Row(NamedTuple):
    """A checkpoint and its place."""

    point: Point
    lane: int
    is_head: bool
    is_aside: bool
    """Whether the present of its line does not come from it: a rollback has passed over it."""


class Edge(NamedTuple):
    """What joins two checkpoints that do not follow each other in one line."""

    kind: str
    """`fork`, `adopt` or `back`."""
    low: int
    low_lane: int
    high: int
    high_lane: int
    track: int = 0


class Segment(NamedTuple):
    """A piece of a line between two checkpoints of it that follow each other."""

    low: int
    high: int
    is_broken: bool
    is_aside: bool


class Picture(NamedTuple):
    """The whole timeline of a key and its forks."""

    rows: list[Row]
    lanes: int
    shared: int
    """How many lines share the last lane with others."""
    edges: list[Edge]
    segments: dict[int, list[Segment]]
    """By lane, the lowest first."""
    shape: str
    """Another one means that rows or lanes are not where they were."""


def draw(key: str, lines: Mapping[str, list[Point]], *, only_events: bool = False) -> Picture:
    """Return the picture of some lines, of which one is the main one.

    Args:
        key: the main one, which gets the first lane.
        lines: the checkpoints of each, oldest first.
        only_events: leave out the ordinary ones.
    """
    order = [key, *(name for name in lines if name != key)]
    kept = {name: _events(lines[name], lines) if only_events else lines[name] for name in order}
    kept = {name: points for name, points in kept.items() if points}
    points = list(merge(*(_timed(number, kept[name]) for number, name in enumerate(kept))))
    ordered = [item[-1] for item in points]
    places = {(point.key, point.seq): row for row, point in enumerate(ordered)}
    spans = _spans(kept, places, lines)
    lanes, shared = _lanes(key, spans)
    present = set().union(*(_present(lines[name]) for name in kept)) if kept else set()
    heads = {(name, found[-1].seq) for name, found in lines.items() if found}
    rows = [
        Row(
            point,
            lanes[point.key],
            (point.key, point.seq) in heads,
            (point.key, point.seq) not in present,
        )
        for point in ordered
    ]
    edges = _edges(rows, places, spans)
    mark = hashlib.sha256(repr(sorted(lanes.items())).encode()).hexdigest()[:12]
    first = ordered[0].id if ordered else ""
    shape = hashlib.sha256(f"{mark}{first}{only_events}".encode()).hexdigest()[:12]
    used = max(lanes.values(), default=0) + 1
    return Picture(rows, used, shared, edges, _segments(rows, kept, places), shape)


def _timed(number: int, points: list[Point]) -> Iterable[tuple[int, int, int, Point]]:
    """Iterate over points with a time that never goes back: clocks may."""
    latest = 0
    for point in points:
        latest = max(latest, point.ts_ns)
        yield latest, number, point.seq, point


def _events(points: list[Point], lines: Mapping[str, list[Point]]) -> list[Point]:
    wanted = {
        parent
        for line in lines.values()
        for point in line
        if point.kind not in _QUIET
        for parent in point.parents
    }
    return [
        point
        for place, point in enumerate(points)
        if point.kind not in _QUIET
        or point.is_failure
        or point.tags
        or (point.key, point.seq) in wanted
        or place in (0, len(points) - 1)
    ]


def _present(points: list[Point]) -> set[tuple[str, int]]:
    """Return what the head of a line comes from, within the line."""
    seqs = [point.seq for point in points]
    found: set[tuple[str, int]] = set()
    place = len(points) - 1
    while place >= 0:
        point = points[place]
        found.add((point.key, point.seq))
        own = [seq for name, seq in point.parents[:1] if name == point.key]
        if not own:
            break
        # One that was pruned is stood in for by the one before it.
        at = bisect_left(seqs, own[0] + 1) - 1
        place = min(at, place - 1)
    return found


def _spans(
    lines: Mapping[str, list[Point]],
    places: Mapping[tuple[str, int], int],
    every: Mapping[str, list[Point]],
) -> dict[str, list[int]]:
    """Return from which row to which each line reaches, with what it is joined to."""
    spans = {}
    for name, points in lines.items():
        rows = [places[(name, points[0].seq)], places[(name, points[-1].seq)]]
        rows += [places[parent] for parent in every[name][0].parents[:1] if parent in places]
        spans[name] = [min(rows), max(rows)]
    for points in lines.values():
        for point in points:
            for parent in point.parents[1:]:
                if parent[0] in spans and parent[0] != point.key:
                    span = spans[parent[0]]
                    span[1] = max(span[1], places[(point.key, point.seq)])
    return spans


def _lanes(key: str, spans: Mapping[str, list[int]]) -> tuple[dict[str, int], int]:
    """Give each line the first lane that is free where it stands; count those that had none."""
    lanes, shared = {key: 0}, 0
    taken: list[int] = []  # the last row of each lane but the first
    for name, (low, high) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
        if name == key:
            continue
        free = next((lane for lane, end in enumerate(taken) if end < low), len(taken))
        if free == len(taken) and free < MOST_LANES - 1:
            taken.append(high)
        shared += free == len(taken)
        free = min(free, len(taken) - 1)
        taken[free] = max(taken[free], high)
        lanes[name] = free + 1
    return lanes, shared


def _edges(
    rows: list[Row],
    places: Mapping[tuple[str, int], int],
    spans: Mapping[str, list[int]],
) -> list[Edge]:
    edges: list[Edge] = []
    tracks: dict[int, list[int]] = {}
    for high, row in enumerate(rows):
        point = row.point
        if point.kind == UNREADABLE:
            continue
        for number, parent in enumerate(point.parents[:2]):
            low = places.get(parent)
            if low is None or low == high:
                continue
            lane = rows[low].lane
            if parent[0] != point.key:
                kind = "adopt" if number else "fork"
                edges.append(Edge(kind, low, lane, high, row.lane))
            elif point.kind in _JUMPS and (number or point.kind == "rollback"):
                ends = tracks.setdefault(lane, [])
                track = next((n for n, end in enumerate(ends) if end <= low), len(ends))
                ends[track : track + 1] = [high]
                edges.append(Edge("back", low, lane, high, row.lane, min(track, _TRACKS - 1)))
    return edges


def _segments(
    rows: list[Row],
    lines: Mapping[str, list[Point]],
    places: Mapping[tuple[str, int], int],
) -> dict[int, list[Segment]]:
    found: dict[int, list[Segment]] = {}
    for name, points in lines.items():
        at = [places[(name, point.seq)] for point in points]
        for place, (low, high) in enumerate(zip(at, at[1:])):
            above, below = rows[high], rows[low]
            # What a safety checkpoint holds goes on with it, unless a rollback leads elsewhere.
            next_one = points[place + 2 : place + 3]
            leads_back = not next_one or next_one[0].kind == "rollback"
            if above.point.kind == SAFETY:
                is_aside = leads_back
            else:
                is_aside = above.is_aside or (below.is_aside and below.point.kind != SAFETY)
            is_broken = above.point.kind == "rollback"
            found.setdefault(below.lane, []).append(Segment(low, high, is_broken, is_aside))
    for segments in found.values():
        segments.sort()
    return found
