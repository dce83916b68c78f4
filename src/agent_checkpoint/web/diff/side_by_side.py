"""Two texts beside each other, with what changed marked. Owns the rows; knows no checkpoint.

Lines come with their ends. Two that differ never look the same: where only an end of a line
differs, or what is far behind, that is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from agent_checkpoint.web.diff.line_matching import Effort, blocks, common_ends

CONTEXT = 3
_MOST_ROWS, _LEAST_ROWS = 2_000, 10
_LONGEST_LINE = 2_000
_LEAD = 100
"""What is shown of a long line before it begins to differ."""

SAME, ADDED, REMOVED, CHANGED, GAP = "same", "added", "removed", "changed", "gap"
NO_END = " (no newline at end)"


class Span(NamedTuple):
    """A piece of a line, and whether it is what changed."""

    text: str
    is_changed: bool


class Row(NamedTuple):
    """One row: the same place in both texts."""

    kind: str
    left: int | None
    before: list[Span]
    right: int | None
    after: list[Span]
    skipped: int = 0


class Sides(NamedTuple):
    """The rows, and how many lines there were in all."""

    rows: list[Row]
    added: int
    removed: int
    is_cut: bool
    is_rough: bool = False
    """Whether some lines stand beside each other only because they have the same place."""
    note: str = ""


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends. Nothing but a newline ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def side_by_side(
    before: Sequence[str], after: Sequence[str], effort: Effort | None = None
) -> Sides:
    """Return the rows of two texts, without what is the same and far from any change."""
    effort = Effort() if effort is None else effort
    same, is_whole = blocks(before, after, effort)
    added, removed = len(after), len(before)
    steps: list[tuple[bool, int, int, int, int]] = []
    a = c = 0
    for x, y, size in (*same, (len(before), len(after), 0)):
        if x > a or y > c:
            steps.append((False, a, x, c, y))
            alike = _at_same_place(before[a:x], after[c:y])
            added, removed = added - alike, removed - alike
        if size:
            steps.append((True, x, x + size, y, y + size))
            added, removed = added - size, removed - size
        a, c = x + size, y + size
    most = max(_LEAST_ROWS, min(_MOST_ROWS, effort.rows))
    rows = list(islice(_rows(before, after, steps), most + 1))
    effort.rows -= len(rows)
    return Sides(rows[:most], added, removed, len(rows) > most, not is_whole)


def _at_same_place(before: Sequence[str], after: Sequence[str]) -> int:
    return sum(map(str.__eq__, before, after))


def _rows(
    before: Sequence[str], after: Sequence[str], steps: Sequence[tuple[bool, int, int, int, int]]
) -> Iterator[Row]:
    for number, (is_same, a, b, c, d) in enumerate(steps):
        if is_same:
            head = 0 if number == 0 else CONTEXT
            tail = 0 if number == len(steps) - 1 else CONTEXT
            yield from _equal(before, a, b, c, head, tail)
        else:
            yield from _replaced(before, after, a, b, c, d)


def _equal(before: Sequence[str], a: int, b: int, c: int, head: int, tail: int) -> Iterator[Row]:
    is_short = b - a <= head + tail
    for place in range(a, b if is_short else a + head):
        yield _same(before[place], place, c + place - a)
    if not is_short:
        yield Row(GAP, None, [], None, [], b - a - head - tail)
        for place in range(b - tail, b):
            yield _same(before[place], place, c + place - a)


def _same(line: str, left: int, right: int) -> Row:
    text = [Span(_cut(_without_end(line)), False)]
    return Row(SAME, left + 1, text, right + 1, text)


def _replaced(
    before: Sequence[str], after: Sequence[str], a: int, b: int, c: int, d: int
) -> Iterator[Row]:
    for place in range(max(b - a, d - c)):
        left, right = a + place, c + place
        if right >= d:
            text = [Span(_cut(_without_end(before[left])), False)]
            yield Row(REMOVED, left + 1, text, None, [])
        elif left >= b:
            text = [Span(_cut(_without_end(after[right])), False)]
            yield Row(ADDED, None, [], right + 1, text)
        elif before[left] == after[right]:
            yield _same(before[left], left, right)
        else:
            yield Row(CHANGED, left + 1, *_changed(before[left], right + 1, after[right]))


def _changed(before: str, right: int, after: str) -> tuple[list[Span], int, list[Span]]:
    ends = "\r\n" if before.endswith("\r\n") and after.endswith("\r\n") else "\n"
    sides = [text[: -len(ends)] if text.endswith(ends) else text for text in (before, after)]
    if before.endswith("\n") != after.endswith("\n"):
        sides = [
            text + ("" if whole.endswith("\n") else NO_END)
            for text, whole in zip(sides, (before, after))
        ]
    old, new = _within(*sides)
    return old, right, new


def _within(before: str, after: str) -> tuple[list[Span], list[Span]]:
    """Return two lines, cut where they begin and end to differ."""
    start, end = common_ends(before, after)
    is_long = max(len(before), len(after)) > _LONGEST_LINE
    skipped = start - _LEAD if is_long and start > _LEAD else 0
    sides = []
    for text in (before, after):
        middle = len(text) - end
        changed = text[start:middle]
        if len(changed) > _LONGEST_LINE:
            changed, middle = changed[:_LONGEST_LINE] + "…", len(text)
        cuts = [
            (("…" if skipped else "") + text[skipped:start], False),
            (changed, True),
            (_cut(text[middle:]), False),
        ]
        sides.append([Span(piece, is_changed) for piece, is_changed in cuts if piece])
    return sides[0], sides[1]


def _without_end(line: str) -> str:
    return line[:-2] if line.endswith("\r\n") else line[:-1] if line.endswith("\n") else line


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
