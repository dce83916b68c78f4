"""Lines of checkpoints as the timeline needs them: all that is short of each. Owns reading on.

A line is read once; after that only what is new. Entries can also go, by pruning or because a
safety checkpoint is old: so a line is read anew when it is looked at after a while.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import NamedTuple

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Entry, parse_checkpoint_id
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.maintenance.safety_checkpoints import ROLLBACK_KINDS, SAFETY
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.page_text import on_one_line

UNREADABLE = "unreadable"
_MOST_BYTES = 512 << 20
"""What is read of a line at most. A store of readable files has the whole state in each entry."""
_AT_ONCE = 16 << 20
_LARGEST_PAGE = 500
_MOST_POINTS = 200_000
_STALE = 30.0
_MOST_LINES = 64


class Point(NamedTuple):
    """A checkpoint, without its state."""

    key: str
    seq: int
    ts_ns: int
    kind: str
    label: str
    parents: tuple[tuple[str, int], ...]
    tags: tuple[str, ...]
    id: str
    is_failure: bool
    source: str = ""
    """The id of what it was forked from, if it was."""


class Line(NamedTuple):
    """The checkpoints of a key, oldest first, as far as they were read."""

    points: list[Point]
    is_whole: bool
    read_at: float


class Origin(NamedTuple):
    """Where a key begins: its first checkpoint, and what that was forked from."""

    first: int
    ts_ns: int
    parent: tuple[str, int] | None
    id: str
    source: str
    """The id of the parent."""


class Histories:
    """The lines of one store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[str, Line] = {}
        self._lock = Lock()

    def line(self, key: str) -> Line:
        """Return a line, with what is new. Raises StorageError, FormatError."""
        with self._lock:
            known = self._lines.get(key)
            if known is None or time.monotonic() - known.read_at > _STALE:
                return self._keep(key, self._read(key, 0))
            newest = known.points[-1].seq if known.points else 0
            if known.points and self.oldest(key) != known.points[0].seq and known.is_whole:
                return self._keep(key, self._read(key, 0))  # the oldest were pruned
            if self._store.newest(key) == newest:
                return known
            fresh = self._read(key, newest)
            moves = any(
                point.kind in ROLLBACK_KINDS or point.kind == SAFETY for point in fresh.points
            )
            if moves or (fresh.points and fresh.points[0].seq <= newest):
                return self._keep(key, self._read(key, 0))
            return self._keep(key, known._replace(points=known.points + fresh.points))

    def oldest(self, key: str) -> int:
        """Return the number of the oldest entry of a key; 0 if there is none."""
        entry = next(self._store.oldest_first(key, page=1), None)
        return 0 if entry is None else entry.seq

    def _keep(self, key: str, line: Line) -> Line:
        if len(self._lines) >= _MOST_LINES and key not in self._lines:
            self._lines.clear()
        self._lines[key] = line
        return line

    def _read(self, key: str, after: int) -> Line:
        points: list[Point] = []
        left, page, before = _MOST_BYTES, 16, None
        while left > 0 and len(points) < _MOST_POINTS:
            got: list[Entry] = []
            for entry in self._store.entries(key, before=before, page=page):
                got.append(entry)
                if len(got) == page or entry.seq <= after + 1:
                    break
            points += [point_of(key, entry) for entry in got if entry.seq > after]
            if len(got) < page or got[-1].seq <= after + 1:
                return Line(points[::-1], True, time.monotonic())
            before, size = got[-1].seq, sum(len(entry.data) for entry in got)
            left -= size
            page = max(1, min(_LARGEST_PAGE, page * _AT_ONCE // max(size, 1)))
        return Line(points[::-1], False, time.monotonic())


def point_of(key: str, entry: Entry) -> Point:
    """Return a checkpoint without its state; one that cannot be read says why."""
    try:
        found = read_checkpoint(key, entry.seq, entry.data)
    except UNUSABLE as error:
        text = on_one_line(error)
        return Point(key, entry.seq, 0, UNREADABLE, text, (), (), f"{key}@{entry.seq}", True)
    places = [parse_checkpoint_id(parent) for parent in found.parents[:8]]
    label = on_one_line(found.label or "", 160)
    return Point(
        key,
        found.seq,
        found.ts_ns,
        on_one_line(found.kind, 20),
        label,
        tuple((place.key, place.seq) for place in places if place is not None),
        tuple(on_one_line(tag, 40) for tag in found.tags[:8]),
        found.id,
        _is_failure(found.kind, label),
        found.parents[0] if found.kind == "fork" and found.parents else "",
    )


def _is_failure(kind: str, label: str) -> bool:
    """Tell whether a checkpoint says that something went wrong, in the words of a session."""
    if kind == "close":
        return label.startswith("stopped by ") and label != "stopped by Suspended"
    return label.startswith("task ") and label.endswith(" failed")


def origin_of(point: Point) -> Origin:
    """Return where a key begins, from its first checkpoint."""
    parent = point.parents[0] if point.kind == "fork" and point.parents else None
    if parent is not None and parent[0] == point.key:
        parent = None
    return Origin(point.seq, point.ts_ns, parent, point.id, point.source)


def forks_of(origins: dict[str, Origin], key: str, most: int) -> tuple[list[str], int]:
    """Return the keys that come from one, also by way of others; and how many were left out."""
    below: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin.parent is not None:
            below.setdefault(origin.parent[0], []).append(name)
    found: dict[str, None] = {}
    queue = [key]
    while queue:
        for name in below.get(queue.pop(), []):
            if name not in found and name != key:
                found[name] = None
                queue.append(name)
    newest = sorted(found, key=lambda name: origins[name].ts_ns, reverse=True)
    return newest[:most], max(0, len(newest) - most)
