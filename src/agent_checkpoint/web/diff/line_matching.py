"""Which lines of two texts are the same ones. Owns that this takes a bounded time, always.

What is alike at both ends is taken off, lines that are in each text once hold the rest together,
and what lies between them is compared in full if it is short. To compare repeated lines with each
other takes time that grows without bound: if there is too much of that, it is left as it is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

SECONDS = 2.5
"""For the states, and for the files, of one page."""
_STEPS = 6_000_000
_ROWS = 6_000
_LARGEST = 1_000_000
"""Pairs of lines of one piece that is compared in full."""


class Effort:
    """What may still be done for one page."""

    def __init__(self) -> None:
        self.rows = _ROWS
        """How many rows of lines the page still takes."""
        self.was_late = False
        """Whether something was left out because it took too long."""
        self._left = _STEPS
        self.begin()

    def begin(self) -> None:
        """Count the time from now on."""
        self._ends = time.monotonic() + SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the page has to be finished as it is."""
        is_over = time.monotonic() > self._ends
        self.was_late |= is_over
        return is_over

    def take(self, steps: int) -> bool:
        """Tell whether there is still time for some steps, which then count as made."""
        if steps > self._left or self.is_over:
            return False
        self._left -= steps
        return True


class Block(NamedTuple):
    """Lines that are the same in both texts."""

    before: int
    after: int
    size: int


class Piece(NamedTuple):
    """A piece of each text."""

    a: int
    b: int
    c: int
    d: int


def blocks(before: Sequence[str], after: Sequence[str], effort: Effort) -> tuple[list[Block], bool]:
    """Return what is the same in two texts, in order, and whether all was compared."""
    found: list[Block] = []
    is_whole = True
    pieces = [Piece(0, len(before), 0, len(after))]
    while pieces:
        a, b, c, d = pieces.pop()
        start, end = common_ends(before[a:b], after[c:d])
        found += [Block(a, c, start), Block(b - end, d - end, end)]
        a, b, c, d = a + start, b - end, c + start, d - end
        if a == b or c == d:
            continue
        anchors: list[tuple[int, int]] = []
        if effort.take(b - a + d - c):
            anchors = _anchors(before[a:b], after[c:d])
        if anchors:
            found += [Block(a + x, c + y, 1) for x, y in anchors]
            ends = [*anchors, (b - a, d - c)]
            begins = [(0, 0), *((x + 1, y + 1) for x, y in anchors)]
            for (i, j), (x, y) in zip(begins, ends):
                if x > i and y > j:
                    pieces.append(Piece(a + i, a + x, c + j, c + y))
        elif (b - a) * (d - c) <= _LARGEST and effort.take((b - a) * (d - c)):
            found += [Block(a + x, c + y, 1) for x, y in _longest(before[a:b], after[c:d])]
        else:
            is_whole = False
    return _joined(found), is_whole


def common_ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return how much is the same at the beginning of both, and at their end."""
    shorter = min(len(before), len(after))
    start = _alike(shorter, lambda low, high: before[low:high] == after[low:high])
    left = shorter - start
    mine, theirs = len(before), len(after)
    end = _alike(
        left,
        lambda low, high: before[mine - high : mine - low] == after[theirs - high : theirs - low],
    )
    return start, end


def _alike(most: int, is_same: Callable[[int, int], bool]) -> int:
    """Return how far two sequences are the same; pieces of them are compared, not items."""
    known, step = 0, 64
    while known < most and is_same(known, min(most, known + step)):
        known, step = min(most, known + step), step * 2
    end = min(most, known + step)
    while known < end:
        middle = (known + end + 1) // 2
        if is_same(known, middle):
            known = middle
        else:
            end = middle - 1
    return known


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of lines that are in both texts once, as many as are in the same order."""
    mine, theirs = Counter(before), Counter(after)
    places = {line: place for place, line in enumerate(after) if theirs[line] == 1}
    pairs = [
        (place, places[line])
        for place, line in enumerate(before)
        if mine[line] == 1 and line in places
    ]
    ends: list[int] = []  # the last place of the best run of each length
    runs: list[int] = []
    before_it: list[int | None] = []
    for number, (_, place) in enumerate(pairs):
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
        runs[at : at + 1] = [number]
        before_it.append(runs[at - 1] if at else None)
    found: list[tuple[int, int]] = []
    last: int | None = runs[-1] if runs else None
    while last is not None:
        found.append(pairs[last])
        last = before_it[last]
    return found[::-1]


def _longest(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of the longest run of lines that are in both texts in the same order."""
    width = len(after)
    rows = [[0] * (width + 1)]  # from the end: how many lines are the same from there on
    for line in reversed(before):
        last = rows[-1]
        row = [0] * (width + 1)
        for place in range(width - 1, -1, -1):
            if after[place] == line:
                row[place] = last[place + 1] + 1
            else:
                row[place] = max(last[place], row[place + 1])
        rows.append(row)
    rows.reverse()
    found = []
    x = y = 0
    while x < len(before) and y < width:
        if before[x] == after[y]:
            found.append((x, y))
            x, y = x + 1, y + 1
        elif rows[x + 1][y] >= rows[x][y + 1]:
            x += 1
        else:
            y += 1
    return found


def _joined(found: list[Block]) -> list[Block]:
    joined: list[Block] = []
    for block in sorted(found):
        last = joined[-1] if joined else Block(0, 0, 0)
        if not block.size:
            continue
        if (
            joined
            and last.before + last.size == block.before
            and last.after + last.size == block.after
        ):
            joined[-1] = last._replace(size=last.size + block.size)
        else:
            joined.append(block)
    return joined
