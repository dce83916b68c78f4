"""Two texts beside each other, with what changed marked. Owns the rows; knows no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

CONTEXT = 3
_MOST_WORK = 4_000_000
"""Pairs of lines that are compared: more take seconds. Then all between is shown as replaced."""
_MOST_ROWS = 2_000
_LONGEST_LINE = 2_000

SAME, ADDED, REMOVED, CHANGED, GAP = "same", "added", "removed", "changed", "gap"


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
    """All rows, and how many lines there were in all."""

    rows: list[Row]
    added: int
    removed: int
    is_cut: bool


def side_by_side(before: Sequence[str], after: Sequence[str], context: int = CONTEXT) -> Sides:
    """Return the rows of two texts, without what is the same and far from any change."""
    rows: list[Row] = []
    added = removed = 0
    for kind, a, b, c, d in _steps(before, after):
        if kind == "equal":
            rows += _equal(before, a, b, c, context, is_first=a == 0, is_last=b == len(before))
            continue
        removed += b - a
        added += d - c
        if len(rows) <= _MOST_ROWS:
            rows += _replaced(before[a:b], after[c:d], a, c)
    return Sides(rows[:_MOST_ROWS], added, removed, len(rows) > _MOST_ROWS)


def _steps(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    start, end = _common(before, after)
    a, b, c, d = start, len(before) - end, start, len(after) - end
    if start:
        yield "equal", 0, start, 0, start
    if (b - a) * (d - c) > _MOST_WORK:
        yield "replace", a, b, c, d
    else:
        matcher = SequenceMatcher(None, before[a:b], after[c:d], autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            yield kind, a + i, a + j, c + k, c + m
    if end:
        yield "equal", b, len(before), d, len(after)


def _common(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def _equal(
    before: Sequence[str], a: int, b: int, c: int, context: int, *, is_first: bool, is_last: bool
) -> Iterator[Row]:
    head = 0 if is_first else context
    tail = 0 if is_last else context
    for place in range(a, b):
        if place < a + head or place >= b - tail:
            text = [Span(_cut(before[place]), False)]
            yield Row(SAME, place + 1, text, c + place - a + 1, text)
        elif place == a + head:
            yield Row(GAP, None, [], None, [], b - tail - place)


def _replaced(before: Sequence[str], after: Sequence[str], a: int, c: int) -> Iterator[Row]:
    for place in range(max(len(before), len(after))):
        if place >= len(after):
            yield Row(REMOVED, a + place + 1, [Span(_cut(before[place]), False)], None, [])
        elif place >= len(before):
            yield Row(ADDED, None, [], c + place + 1, [Span(_cut(after[place]), False)])
        else:
            old, new = _within(_cut(before[place]), _cut(after[place]))
            yield Row(CHANGED, a + place + 1, old, c + place + 1, new)


def _within(before: str, after: str) -> tuple[list[Span], list[Span]]:
    """Return two lines, cut where they begin and end to differ."""
    start, end = _common(before, after)
    sides = []
    for text in (before, after):
        middle = len(text) - end
        cuts = [(text[:start], False), (text[start:middle], True), (text[middle:], False)]
        sides.append([Span(piece, is_changed) for piece, is_changed in cuts if piece])
    return sides[0], sides[1]


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
