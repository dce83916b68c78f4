"""The layout of a timeline: row and lane of each checkpoint, and the edges between them.

Does not depend on stores or drawing. Rows are numbered from the oldest, so that a new checkpoint
does not change row numbers.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from heapq import merge

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Kind
from agent_checkpoint.web.timeline.agent_steps import PROMPT
from agent_checkpoint.web.timeline.history import CheckpointSummary
from agent_checkpoint.web.timeline.prompt_groups import paired_calls

MAX_LANES = 24
"""Maximum number of lanes; further histories share the last lane."""
_TRACKS = 3
_JUMPS = frozenset({Kind.ROLLBACK, Kind.RESTORE})
_QUIET = frozenset({Kind.SAVE, Kind.OPEN, Kind.CLOSE, Kind.SAFETY, Kind.IN_FLIGHT})


class Row(NamedTuple):
    """A checkpoint and its lane."""

    checkpoint: CheckpointSummary
    lane: int
    is_head: bool
    is_abandoned: bool
    """Whether a rollback abandoned it, that is, the head of its key does not descend from it."""
    before: CheckpointSummary | None = None
    """The checkpoint before the tool call that this one is after; it has no row of its own."""

    @property
    def seconds(self) -> float | None:
        """How long the call took; None if that is not known."""
        step = self.checkpoint.step
        start = None if step is None else step.started
        if start is None and self.before is not None:
            start = self.before.ts_ns / 1e9
        return None if start is None else max(0.0, self.checkpoint.ts_ns / 1e9 - start)


class Edge(NamedTuple):
    """A curve between two checkpoints: a fork, an adoption or a rollback."""

    kind: str
    """`fork`, `adopt` or `back`."""
    low: int
    low_lane: int
    high: int
    high_lane: int
    track: int = 0


class Segment(NamedTuple):
    """The line between two neighbouring checkpoints of a history."""

    low: int
    high: int
    is_broken: bool
    is_abandoned: bool


class TimelineLayout(NamedTuple):
    """The layout of a key and its forks."""

    rows: list[Row]
    lanes: int
    shared: int
    """Histories that share the last lane."""
    edges: list[Edge]
    segments: dict[int, list[Segment]]
    """By lane, lowest row first."""
    shape: str
    """Changes if existing rows or lanes have moved."""


def lay_out(
    key: str, histories: Mapping[str, list[CheckpointSummary]], *, only_events: bool = False
) -> TimelineLayout:
    """Return the layout of a key and its forks.

    Args:
        key: the key that gets the first lane.
        histories: the checkpoints of each key, oldest first.
        only_events: omit ordinary saves.
    """
    order = [key, *(name for name in histories if name != key)]
    kept = {
        name: _events(histories[name], histories) if only_events else histories[name]
        for name in order
    }
    kept = {name: checkpoints for name, checkpoints in kept.items() if checkpoints}
    checkpoints = list(merge(*(_timed(number, kept[name]) for number, name in enumerate(kept))))
    pairs = {name: paired_calls(found) for name, found in kept.items()}
    ordered, places, moved = _folded([item[-1] for item in checkpoints], pairs)
    folded = {(name, one.seq) for name, found in pairs.items() for one in found.values()}
    kept = {
        name: [one for one in found if (name, one.seq) not in folded]
        for name, found in kept.items()
    }
    spans = _spans(kept, places, histories)
    lanes, shared = _lanes(key, spans)
    present = set().union(*(_ancestors(histories[name]) for name in kept)) if kept else set()
    heads = {(name, found[-1].seq) for name, found in histories.items() if found}
    rows = [
        Row(
            checkpoint,
            lanes[checkpoint.key],
            (checkpoint.key, checkpoint.seq) in heads,
            (checkpoint.key, checkpoint.seq) not in present,
            pairs[checkpoint.key].get(checkpoint.seq),
        )
        for checkpoint in ordered
    ]
    edges = _edges(rows, places, spans)
    mark = hashlib.sha256(repr(sorted(lanes.items())).encode()).hexdigest()[:12]
    first = ordered[0].id if ordered else ""
    shape = hashlib.sha256(f"{mark}{first}{only_events}{moved}".encode()).hexdigest()[:12]
    used = max(lanes.values(), default=0) + 1
    return TimelineLayout(rows, used, shared, edges, _segments(rows, kept, places), shape)


def _folded(
    ordered: list[CheckpointSummary], pairs: Mapping[str, Mapping[int, CheckpointSummary]]
) -> tuple[list[CheckpointSummary], dict[tuple[str, int], int], int]:
    """Drop the checkpoints before calls that have one after; return the rest, and all places.

    The number counts those that leave a gap, so that later rows have moved.
    """
    after = {
        (name, before.seq): seq for name, found in pairs.items() for seq, before in found.items()
    }
    rest: list[CheckpointSummary] = []
    moved = 0
    for index, checkpoint in enumerate(ordered):
        end = after.get((checkpoint.key, checkpoint.seq))
        if end is None:
            rest.append(checkpoint)
        else:
            neighbour = ordered[index + 1]  # there is one: the pair's other checkpoint is later
            moved += (neighbour.key, neighbour.seq) != (checkpoint.key, end)
    places = {(checkpoint.key, checkpoint.seq): row for row, checkpoint in enumerate(rest)}
    places.update({(name, seq): places[(name, end)] for (name, seq), end in after.items()})
    return rest, places, moved


def _timed(
    number: int, checkpoints: list[CheckpointSummary]
) -> Iterable[tuple[int, int, int, CheckpointSummary]]:
    """Iterate over checkpoints with a monotonic time, because clocks may be set back."""
    latest = 0
    for checkpoint in checkpoints:
        latest = max(latest, checkpoint.ts_ns)
        yield latest, number, checkpoint.seq, checkpoint


def _events(
    checkpoints: list[CheckpointSummary], histories: Mapping[str, list[CheckpointSummary]]
) -> list[CheckpointSummary]:
    event_parents = {
        parent
        for history in histories.values()
        for checkpoint in history
        if checkpoint.kind not in _QUIET
        for parent in checkpoint.parents
    }
    return [
        checkpoint
        for index, checkpoint in enumerate(checkpoints)
        if checkpoint.kind not in _QUIET
        or checkpoint.is_failure
        or checkpoint.tags
        or (checkpoint.step is not None and checkpoint.step.moment == PROMPT)
        or (checkpoint.key, checkpoint.seq) in event_parents
        or index in (0, len(checkpoints) - 1)
    ]


def _ancestors(checkpoints: list[CheckpointSummary]) -> set[tuple[str, int]]:
    """Return the head and its ancestors within its own history."""
    seqs = [checkpoint.seq for checkpoint in checkpoints]
    ancestors: set[tuple[str, int]] = set()
    index = len(checkpoints) - 1
    while index >= 0:
        checkpoint = checkpoints[index]
        ancestors.add((checkpoint.key, checkpoint.seq))
        own = [seq for name, seq in checkpoint.parents[:1] if name == checkpoint.key]
        if not own:
            break
        # The nearest older checkpoint replaces a pruned parent.
        at = bisect_left(seqs, own[0] + 1) - 1
        index = min(at, index - 1)
    return ancestors


def _spans(
    histories: Mapping[str, list[CheckpointSummary]],
    places: Mapping[tuple[str, int], int],
    every: Mapping[str, list[CheckpointSummary]],
) -> dict[str, list[int]]:
    """Return the row range of each history, including the rows to which it is connected."""
    spans = {}
    for name, checkpoints in histories.items():
        rows = [places[(name, checkpoints[0].seq)], places[(name, checkpoints[-1].seq)]]
        rows += [places[parent] for parent in every[name][0].parents[:1] if parent in places]
        spans[name] = [min(rows), max(rows)]
    for checkpoints in histories.values():
        for checkpoint in checkpoints:
            for parent in checkpoint.parents[1:]:
                if parent[0] in spans and parent[0] != checkpoint.key:
                    span = spans[parent[0]]
                    span[1] = max(span[1], places[(checkpoint.key, checkpoint.seq)])
    return spans


def _lanes(key: str, spans: Mapping[str, list[int]]) -> tuple[dict[str, int], int]:
    """Assign each history the first free lane; count those that share the last lane."""
    lanes, shared = {key: 0}, 0
    taken: list[int] = []  # the last row of each lane except the first
    for name, (low, high) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
        if name == key:
            continue
        free = next((lane for lane, end in enumerate(taken) if end < low), len(taken))
        if free == len(taken) and free < MAX_LANES - 1:
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
        checkpoint = row.checkpoint
        if checkpoint.kind == Kind.UNREADABLE:
            continue
        for number, parent in enumerate(checkpoint.parents[:2]):
            low = places.get(parent)
            if low is None or low == high:
                continue
            lane = rows[low].lane
            if parent[0] != checkpoint.key:
                kind = Kind.ADOPT if number else Kind.FORK
                edges.append(Edge(kind, low, lane, high, row.lane))
            elif checkpoint.kind in _JUMPS and (number or checkpoint.kind == Kind.ROLLBACK):
                ends = tracks.setdefault(lane, [])
                track = next((n for n, end in enumerate(ends) if end <= low), len(ends))
                ends[track : track + 1] = [high]
                edges.append(Edge("back", low, lane, high, row.lane, min(track, _TRACKS - 1)))
    return edges


def _segments(
    rows: list[Row],
    histories: Mapping[str, list[CheckpointSummary]],
    places: Mapping[tuple[str, int], int],
) -> dict[int, list[Segment]]:
    by_lane: dict[int, list[Segment]] = {}
    for name, checkpoints in histories.items():
        at = [places[(name, checkpoint.seq)] for checkpoint in checkpoints]
        for index, (low, high) in enumerate(zip(at, at[1:])):
            above, below = rows[high], rows[low]
            # The line continues through a safety checkpoint, unless a rollback follows it.
            next_one = checkpoints[index + 2 : index + 3]
            leads_back = not next_one or next_one[0].kind == Kind.ROLLBACK
            if above.checkpoint.kind == Kind.SAFETY:
                is_abandoned = leads_back
            else:
                is_abandoned = above.is_abandoned or (
                    below.is_abandoned and below.checkpoint.kind != Kind.SAFETY
                )
            is_broken = above.checkpoint.kind == Kind.ROLLBACK
            by_lane.setdefault(below.lane, []).append(Segment(low, high, is_broken, is_abandoned))
    for segments in by_lane.values():
        segments.sort()
    return by_lane
