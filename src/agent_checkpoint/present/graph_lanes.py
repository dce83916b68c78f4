"""Draws a text graph of checkpoints. Owns the lanes: the columns in which branches are drawn.

Does not depend on stores: its input is nodes with parents, newest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count

from agent_checkpoint.named_tuple import NamedTuple

NodeId = tuple[str, int]
"""The key and the number of a checkpoint."""


class LaneNode(NamedTuple):
    """A checkpoint to draw."""

    place: NodeId
    parent: NodeId | None
    """The parent; None if it is not drawn."""
    sign: str


class LineChars(NamedTuple):
    """The characters that draw the lines between nodes."""

    line: str
    join: str
    across: str
    end: str
    more: str
    """An end with another end to its right."""


UNICODE = LineChars("│", "├", "─", "╯", "┴")
ASCII = LineChars("|", "+", "-", "'", "'")


def draw_lanes(
    nodes: Iterable[LaneNode], signs: LineChars = UNICODE, *, main: NodeId | None = None
) -> Iterator[tuple[str, LaneNode | None]]:
    """Iterate over rows: the graph prefix and its node; None for a row between nodes.

    Args:
        nodes: each before its parent.
        signs: the characters that draw the lines.
        main: the node that starts in the first column, even if other nodes precede it.
    """
    lanes: list[NodeId | None] = [] if main is None else [main]
    is_begun = main is None
    ended: set[int] = set()
    """Columns whose lane has ended. Not reused: a node below would appear to continue the lane."""
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


def _joined(lanes: list[NodeId | None], waiting: list[int], signs: LineChars) -> str:
    """Return the row where lanes join the first of them."""
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
