"""Differences between two stored states. Reads only objects that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.diff.side_by_side import Sides, lines_of, side_by_side
from agent_checkpoint.web.state.lazy_state import (
    LIST,
    MAP,
    STRING,
    ReadLimitExceeded,
    Shape,
    StateReader,
)
from agent_checkpoint.web.state.outline import render

MAX_CHANGES = 200
"""The maximum number of differences shown."""
_MAX_DEPTH = 60
ABSENT = object()


class StateChange(NamedTuple):
    """One difference between two states: its path, its kind, and the old and new value."""

    path: str
    kind: str
    """`added`, `removed` or `changed`."""
    sides: Sides


def state_changes(
    reader: StateReader,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    parts: list[str],
    budget: DiffBudget,
) -> tuple[list[StateChange], bool]:
    """Return the differences in the given parts, and whether the list is complete.

    Raises:
        IntegrityError: a state is damaged.
    """
    found: list[StateChange] = []
    try:
        for name in parts:
            for path, old, new in _walk(
                reader, name, before.get(name, ABSENT), after.get(name, ABSENT), 0
            ):
                if len(found) == MAX_CHANGES or budget.is_over:
                    return found, False
                found.append(_change(reader, path, old, new, budget))
    except ReadLimitExceeded:
        return found, False
    return found, True


def _change(reader: StateReader, path: str, old: Any, new: Any, budget: DiffBudget) -> StateChange:
    kind = "added" if old is ABSENT else "removed" if new is ABSENT else "changed"
    trees = [tree for tree in (old, new) if tree is not ABSENT]
    shapes = [reader.shape(tree) for tree in trees]
    # Two strings are shown raw. Otherwise the rendering must show the type: strings get quotes.
    are_texts = len(trees) == 2 and all(shape[:2] == (STRING, "text") for shape in shapes)
    texts = [
        render(reader, tree)[0] if are_texts else _render_typed(reader, tree, shape)
        for tree, shape in zip(trees, shapes)
    ]
    lines = [lines_of(text) for text in texts]
    if old is ABSENT:
        lines.insert(0, [])
    sides = side_by_side(lines[0], lines[1] if len(lines) == 2 else [], budget)
    if len(set(texts)) < len(texts):
        sides = sides._replace(rows=[], note="The difference is in a part that is not shown.")
    return StateChange(path, kind, sides)


def _render_typed(reader: StateReader, tree: Any, shape: Shape) -> str:
    """Return a text that is unambiguous about the type of a value."""
    text, is_whole = render(reader, tree)
    if shape.kind != STRING:
        return text
    word = "" if shape.type == "text" else f"{shape.type} "
    if "\n" in text or not is_whole:
        return f"{word}{text}" if word else text
    return word + json.dumps(text, ensure_ascii=False)


def _walk(
    reader: StateReader, path: str, old: Any, new: Any, depth: int
) -> Iterator[tuple[str, Any, Any]]:
    if old is not ABSENT and new is not ABSENT and _same(old, new):
        return
    if old is ABSENT or new is ABSENT or depth > _MAX_DEPTH:
        yield path, old, new
        return
    shapes = reader.shape(old), reader.shape(new)
    kinds = shapes[0].kind, shapes[1].kind
    if shapes[0].type != shapes[1].type:
        yield path, old, new
    elif kinds == (MAP, MAP):
        mine, theirs = reader.members(shapes[0]), reader.members(shapes[1])
        for name in dict.fromkeys([*mine, *theirs]):
            pair = mine.get(name, ABSENT), theirs.get(name, ABSENT)
            yield from _walk(reader, f"{path}.{name}", *pair, depth + 1)
    elif kinds == (LIST, LIST):
        yield from _walk_items(
            reader, path, reader.items(shapes[0]), reader.items(shapes[1]), depth
        )
    else:
        yield path, old, new


def _walk_items(
    reader: StateReader, path: str, old: list[Any], new: list[Any], depth: int
) -> Iterator[tuple[str, Any, Any]]:
    # Skip the common ends, so that an append is shown as added items only.
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and _same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    for place, pair in enumerate(zip_longest(before, after, fillvalue=ABSENT), start):
        yield from _walk(reader, f"{path}[{place}]", *pair, depth + 1)


def _same(old: Any, new: Any) -> bool:
    # Equal object ids mean equal content. True is not 1, and 1 is not 1.0.
    return type(old) is type(new) and bool(old == new) and repr(old) == repr(new)
