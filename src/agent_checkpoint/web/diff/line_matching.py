"""Matches the lines of two texts in bounded time.

Common lines at both ends are matched first. Lines that are unique in each text anchor the rest
(patience diff), and short sections between anchors are compared in full (longest common
subsequence). The full comparison is quadratic, so sections that exceed the budget stay unmatched.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

from agent_checkpoint.named_tuple import NamedTuple

SECONDS = 2.5
"""Time limit in seconds, for the states of one page and again for its files."""
_STEPS = 6_000_000
_ROWS = 6_000
_LARGEST = 1_000_000
"""The maximum number of line pairs in a section that is compared in full."""


class DiffBudget:
    """The remaining time, steps and rows for one page."""

    def __init__(self) -> None:
        self.rows = _ROWS
        """Rows that the page may still show."""
        self.timed_out = False
        """Whether comparisons were omitted because of the time limit."""
        self._left = _STEPS
        self.begin()

    def begin(self) -> None:
        """Restart the clock."""
        self._ends = time.monotonic() + SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        is_over = time.monotonic() > self._ends
        self.timed_out |= is_over
        return is_over

    def spend(self, steps: int) -> bool:
        """Spend steps of the budget; return False if too few are left."""
        if steps > self._left or self.is_over:
            return False
        self._left -= steps
        return True


class Block(NamedTuple):
    """A run of equal lines in both texts."""

    before: int
    after: int
    size: int


def blocks(
    before: Sequence[str], after: Sequence[str], budget: DiffBudget
) -> tuple[list[Block], bool]:
    """Return the runs of equal lines in order, and whether all lines were compared."""
    found: list[Block] = []
    is_whole = True
    sections = [(0, len(before), 0, len(after))]  # `before[a:b]` and `after[c:d]` to match
    while sections:
        a, b, c, d = sections.pop()
        start, end = common_ends(before[a:b], after[c:d])
        found += [Block(a, c, start), Block(b - end, d - end, end)]
        a, b, c, d = a + start, b - end, c + start, d - end
        if a == b or c == d:
            continue
        anchors: list[tuple[int, int]] = []
        if budget.spend(b - a + d - c):
            anchors = _anchors(before[a:b], after[c:d])
        if anchors:
            found += [Block(a + x, c + y, 1) for x, y in anchors]
            ends = [*anchors, (b - a, d - c)]
            begins = [(0, 0), *((x + 1, y + 1) for x, y in anchors)]
            for (i, j), (x, y) in zip(begins, ends):
                if x > i and y > j:
                    sections.append((a + i, a + x, c + j, c + y))
        elif (b - a) * (d - c) <= _LARGEST and budget.spend((b - a) * (d - c)):
            found += [Block(a + x, c + y, 1) for x, y in _longest_common(before[a:b], after[c:d])]
        else:
            is_whole = False
    return _joined(found), is_whole


def common_ends(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return the lengths of the common prefix and suffix."""
    shorter = min(len(before), len(after))
    start = _common_length(shorter, lambda low, high: before[low:high] == after[low:high])
    left = shorter - start
    mine, theirs = len(before), len(after)
    end = _common_length(
        left,
        lambda low, high: before[mine - high : mine - low] == after[theirs - high : theirs - low],
    )
    return start, end


def _common_length(most: int, is_same: Callable[[int, int], bool]) -> int:
    """Return the length of the common prefix, found by comparing slices instead of items."""
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
    """Return the anchors of a patience diff: positions in both texts of lines unique in each.

    They are reduced to a longest increasing subsequence.
    """
    mine, theirs = Counter(before), Counter(after)
    places = {line: place for place, line in enumerate(after) if theirs[line] == 1}
    pairs = [
        (place, places[line])
        for place, line in enumerate(before)
        if mine[line] == 1 and line in places
    ]
    ends: list[int] = []  # the last position of the best run of each length
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


def _longest_common(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of the longest common subsequence."""
    width = len(after)
    rows = [[0] * (width + 1)]  # lengths of the longest common subsequence of the suffixes
    for line in reversed(before):
        last = rows[-1]
        row = [0] * (width + 1)
        for index in range(width - 1, -1, -1):
            if after[index] == line:
                row[index] = last[index + 1] + 1
            else:
                row[index] = max(last[index], row[index + 1])
        rows.append(row)
    rows.reverse()
    pairs = []
    x = y = 0
    while x < len(before) and y < width:
        if before[x] == after[y]:
            pairs.append((x, y))
            x, y = x + 1, y + 1
        elif rows[x + 1][y] >= rows[x][y + 1]:
            x += 1
        else:
            y += 1
    return pairs


def _joined(found: list[Block]) -> list[Block]:
    joined: list[Block] = []
    for block in sorted(one for one in found if one.size):
        last = joined[-1] if joined else Block(0, 0, 0)
        ends = last.before + last.size, last.after + last.size
        if joined and ends == (block.before, block.after):
            joined[-1] = last._replace(size=last.size + block.size)
        else:
            joined.append(block)
    return joined
