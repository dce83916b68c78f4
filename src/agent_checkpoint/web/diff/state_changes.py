"""What differs between two stored states. Owns the walk over both; opens only what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agent_checkpoint.web.diff.line_matching import Effort
from agent_checkpoint.web.diff.side_by_side import Sides, lines_of, side_by_side
from agent_checkpoint.web.state.lazy_state import LIST, MAP, WORDS, Peek, Shape, TooLarge
from agent_checkpoint.web.state.outline import written

MOST = 200
"""How many differences are shown."""
_DEEPEST = 60
ABSENT = object()


class StateChange(NamedTuple):
    """A value that is not the same in both."""

    path: str
    kind: str
    """`added`, `removed` or `changed`."""
    sides: Sides


def state_changes(
    peek: Peek,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    parts: list[str],
    effort: Effort,
) -> tuple[list[StateChange], bool]:
    """Return what differs in some parts, and whether that is all.

    Raises:
        IntegrityError: something is damaged.
    """
    found: list[StateChange] = []
    try:
        for name in parts:
            for path, old, new in _walk(
                peek, name, before.get(name, ABSENT), after.get(name, ABSENT), 0
            ):
                if len(found) == MOST or effort.is_over:
                    return found, False
                found.append(_change(peek, path, old, new, effort))
    except TooLarge:
        return found, False
    return found, True


def _change(peek: Peek, path: str, old: Any, new: Any, effort: Effort) -> StateChange:
    kind = "added" if old is ABSENT else "removed" if new is ABSENT else "changed"
    trees = [tree for tree in (old, new) if tree is not ABSENT]
    shapes = [peek.shape(tree) for tree in trees]
    # Two texts are shown as they are; else it must be seen that something is one, and of what type.
    are_texts = len(trees) == 2 and all(shape[:2] == (WORDS, "text") for shape in shapes)
    texts = [
        written(peek, tree)[0] if are_texts else _exactly(peek, tree, shape)
        for tree, shape in zip(trees, shapes)
    ]
    lines = [lines_of(text) for text in texts]
    if old is ABSENT:
        lines.insert(0, [])
    sides = side_by_side(lines[0], lines[1] if len(lines) == 2 else [], effort)
    if len(set(texts)) < len(texts):
        sides = sides._replace(rows=[], note="The difference is in a part that is not shown.")
    return StateChange(path, kind, sides)


def _exactly(peek: Peek, tree: Any, shape: Shape) -> str:
    """Return a value as text by which it cannot be taken for one of another type."""
    text, is_whole = written(peek, tree)
    if shape.kind != WORDS:
        return text
    word = "" if shape.type == "text" else f"{shape.type} "
    if "\n" in text or not is_whole:
        return f"{word}{text}" if word else text
    return word + json.dumps(text, ensure_ascii=False)


def _walk(peek: Peek, path: str, old: Any, new: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if old is not ABSENT and new is not ABSENT and _same(old, new):
        return
    if old is ABSENT or new is ABSENT or depth > _DEEPEST:
        yield path, old, new
        return
    shapes = peek.shape(old), peek.shape(new)
    kinds = shapes[0].kind, shapes[1].kind
    if shapes[0].type != shapes[1].type:
        yield path, old, new
    elif kinds == (MAP, MAP):
        mine, theirs = peek.members(shapes[0]), peek.members(shapes[1])
        for name in dict.fromkeys([*mine, *theirs]):
            pair = mine.get(name, ABSENT), theirs.get(name, ABSENT)
            yield from _walk(peek, f"{path}.{name}", *pair, depth + 1)
    elif kinds == (LIST, LIST):
        yield from _walk_items(peek, path, peek.items(shapes[0]), peek.items(shapes[1]), depth)
    else:
        yield path, old, new


def _walk_items(
    peek: Peek, path: str, old: list[Any], new: list[Any], depth: int
) -> Iterator[tuple[str, Any, Any]]:
    # What is alike at both ends is left out, so that an append or a trim shows as just that.
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and _same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    for place in range(max(len(before), len(after))):
        pair = (
            before[place] if place < len(before) else ABSENT,
            after[place] if place < len(after) else ABSENT,
        )
        yield from _walk(peek, f"{path}[{start + place}]", *pair, depth + 1)


def _same(old: Any, new: Any) -> bool:
    # Equal names of objects stand for equal content. True is not 1, and 1 is not 1.0.
    return type(old) is type(new) and bool(old == new) and repr(old) == repr(new)
