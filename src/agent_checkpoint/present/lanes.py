"""Checkpoints as a drawn tree. Owns the lanes: which line of events stands in which column.

Knows nothing of stores: it is given what comes after what, the newest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import NamedTuple

Place = tuple[str, int]
"""A key and a number."""


class Node(NamedTuple):
    """A checkpoint to be drawn."""

    place: Place
    parent: Place | None
    """What it goes on from; None if that is not drawn."""
    sign: str


class Signs(NamedTuple):
    """What lines are drawn with."""

    line: str
    join: str
    across: str
    end: str
    more: str
    """An end with another one to its right."""


UNICODE = Signs("│", "├", "─", "╯", "┴")
ASCII = Signs("|", "+", "-", "'", "'")


def drawn(
    nodes: Iterable[Node], signs: Signs = UNICODE, *, main: Place | None = None
) -> Iterator[tuple[str, Node | None]]:
    """Iterate over lines: what stands before a node, and the node; None for a line between.

    Args:
        nodes: each before what it goes on from.
        signs: what to draw with.
        main: what begins in the first column, also if others come before it.
    """
    lanes: list[Place | None] = [] if main is None else [main]
    is_begun = main is None
    ended: set[int] = set()
    """Columns in which a line came to its end: what is drawn below would seem to go on with it."""
    for node in nodes:
        is_begun = is_begun or node.place == main
        waiting = [column for column, place in enumerate(lanes) if place == node.place]
        if waiting:
            column = waiting[0]
        else:
            free = (number for number, place in enumerate(lanes) if place is None)
            column = next(
                number for number in chain(free, count(len(lanes))) if number not in ended
            )
            lanes += [None] * (column + 1 - len(lanes))
        if len(waiting) > 1:
            yield _joined(lanes, waiting, signs), None
            for other in waiting[1:]:
                lanes[other] = None
        cells = [" " if place is None else signs.line for place in lanes]
        cells[column] = node.sign
        if not is_begun:
            cells[0] = " "
        yield " ".join(cells).rstrip(), node
        lanes[column] = node.parent
        if node.parent is None:
            ended.add(column)
        while lanes and lanes[-1] is None:
            lanes.pop()


def _joined(lanes: list[Place | None], waiting: list[int], signs: Signs) -> str:
    """Return the line at which lanes come together in the first of them."""
    first, last = waiting[0], waiting[-1]
    text = ""
    for column, place in enumerate(lanes):
        inside = first <= column < last
        if column == first:
            text += signs.join
        elif column in waiting:
            text += signs.more if inside else signs.end
        elif place is not None:
            text += signs.line
        else:
            text += signs.across if inside else " "
        text += signs.across if inside else " "
    return text.rstrip()
