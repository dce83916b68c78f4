"""Side-by-side diff of two texts with changes marked. Does not depend on checkpoints.

Lines include their line ends. Two different lines never look equal: a difference in the line end,
or beyond the shown part of a long line, is also marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.web.diff.line_matching import DiffBudget, blocks, common_ends
from agent_checkpoint.web.masking import mask

CONTEXT = 3
_MAX_ROWS, _MIN_ROWS = 2_000, 10
_MAX_LINE = 2_000
_LEAD = 100
"""Characters of a long line shown before the first difference."""

SAME, ADDED, REMOVED, CHANGED, GAP = "same", "added", "removed", "changed", "gap"
NO_END = " (no newline at end)"


class Span(NamedTuple):
    """A part of a line, and whether it changed."""

    text: str
    is_changed: bool


class Row(NamedTuple):
    """One row of the diff, or a gap of unchanged lines."""

    kind: str
    left: int | None
    before: list[Span]
    right: int | None
    after: list[Span]
    skipped: int = 0


class Sides(NamedTuple):
    """The rows, and the numbers of added and removed lines."""

    rows: list[Row]
    added: int
    removed: int
    is_cut: bool
    is_rough: bool = False
    """Whether some lines are paired only by position."""
    note: str = ""


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, secrets masked, with their line ends: newlines only."""
    text = mask(text)  # before it is compared: a difference inside a secret would show its parts
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def side_by_side(
    before: Sequence[str], after: Sequence[str], budget: DiffBudget | None = None
) -> Sides:
    """Return the rows of two texts, with long unchanged runs as gaps."""
    budget = DiffBudget() if budget is None else budget
    equal, is_whole = blocks(before, after, budget)
    added, removed = len(after), len(before)
    steps: list[tuple[bool, int, int, int, int]] = []
    a = c = 0
    for x, y, size in (*equal, (len(before), len(after), 0)):
        if x > a or y > c:
            steps.append((False, a, x, c, y))
            alike = sum(map(str.__eq__, before[a:x], after[c:y]))  # at the same place
            added, removed = added - alike, removed - alike
        if size:
            steps.append((True, x, x + size, y, y + size))
            added, removed = added - size, removed - size
        a, c = x + size, y + size
    most = max(_MIN_ROWS, min(_MAX_ROWS, budget.rows))
    rows = list(islice(_rows(before, after, steps), most + 1))
    budget.rows -= len(rows)
    return Sides(rows[:most], added, removed, len(rows) > most, not is_whole)


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
            old, new = _changed(before[left], after[right])
            yield Row(CHANGED, left + 1, old, right + 1, new)


def _changed(before: str, after: str) -> tuple[list[Span], list[Span]]:
    ends = "\r\n" if before.endswith("\r\n") and after.endswith("\r\n") else "\n"
    sides = [text[: -len(ends)] if text.endswith(ends) else text for text in (before, after)]
    if before.endswith("\n") != after.endswith("\n"):
        sides = [
            text + ("" if whole.endswith("\n") else NO_END)
            for text, whole in zip(sides, (before, after))
        ]
    return _within(*sides)


def _within(before: str, after: str) -> tuple[list[Span], list[Span]]:
    """Return the spans of two lines: common prefix, change, common suffix."""
    start, end = common_ends(before, after)
    is_long = max(len(before), len(after)) > _MAX_LINE
    skipped = start - _LEAD if is_long and start > _LEAD else 0
    sides = []
    for text in (before, after):
        middle = len(text) - end
        changed = text[start:middle]
        if len(changed) > _MAX_LINE:
            changed, middle = changed[:_MAX_LINE] + "…", len(text)
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
    return line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + "…"
