"""Stored values as people read them: a tree to open, or indented text. Owns how much is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.web.page_text import on_one_line
from agent_checkpoint.web.state.lazy_state import (
    CLOSED,
    LIST,
    MAP,
    SCALAR,
    WORDS,
    Peek,
    Shape,
    TooLarge,
)

MOST_TEXT = 20_000
"""Characters of one value on a page."""
CHILDREN = 100
"""How many of a list or map are shown at once."""
_LEAST_TEXT = 200
_OPEN_AT_FIRST = 60
_DEEPEST = 60

_BYTES = ("bytes", "bytearray")
_WHY_CLOSED = {
    "pickle": "a pickle: never loaded here",
    "bytes": "bytes",
    "bytearray": "bytes",
    "object": "stored as separate objects",
}


class Node(NamedTuple):
    """A value on a page, with what is in it if that is open."""

    name: str
    type: str
    text: str
    path: str
    """How to ask for what is in it; empty if there is nothing."""
    children: list[Node] | None
    """None: not open yet."""
    more: int = 0
    """How many are left after the children."""
    start: int = 0


def outline(peek: Peek, name: str, tree: Any, path: str, *, start: int = 0) -> Node:
    """Return a value with what is directly in it, and below that what is small.

    Raises:
        IntegrityError: it is damaged.
        KeyError: there is nothing at that place.
    """
    room = [_OPEN_AT_FIRST]
    return _node(peek, name, tree, path, room, start=start, depth=0)


def _node(
    peek: Peek, name: str, tree: Any, path: str, room: list[int], *, start: int = 0, depth: int
) -> Node:
    try:
        shape = peek.shape(tree)
        number = peek.size(shape)
    except TooLarge:
        return Node(name, "value", "too large to show", "", [])
    if shape.kind not in (LIST, MAP):
        return Node(name, shape.type, _short(peek, shape), "", [])
    words = f"{number:,} {'item' if shape.kind == LIST else 'member'}{'' if number == 1 else 's'}"
    if not number:
        return Node(name, shape.type, "empty", "", [])
    is_open = depth == 0 or (room[0] >= number and depth < 3)
    if not is_open:
        return Node(name, shape.type, words, path, None)
    some = peek.children(shape, start, CHILDREN)
    room[0] -= len(some)
    children = [
        _node(peek, child, item, f"{path}.{start + place}", room, depth=depth + 1)
        for place, (child, item) in enumerate(some)
    ]
    return Node(name, shape.type, words, path, children, number - start - len(some), start)


def _short(peek: Peek, shape: Shape) -> str:
    if shape.kind == WORDS:
        text, length = peek.text(shape, 2000)
        return text if length <= len(text) else f"{text} … about {length:,} characters"
    if shape.kind == CLOSED:
        return _closed(shape)
    return json.dumps(shape.tree)


def _closed(shape: Shape) -> str:
    why = _WHY_CLOSED.get(shape.type, "not shown")
    if shape.type in _BYTES and isinstance(shape.tree, str):
        return f"{len(shape.tree) * 3 // 4:,} {why}"
    return why


def written(peek: Peek, tree: Any, most: int = MOST_TEXT) -> tuple[str, bool]:
    """Return a value as text for people, and whether that is all of it: a text is just itself.

    Raises:
        IntegrityError: it is damaged.
    """
    return _written(peek, tree, most, is_exact=False)


def exactly(peek: Peek, tree: Any, most: int) -> tuple[str, bool]:
    """Return a value as text that no other value has, and whether that is all of it.

    Raises:
        IntegrityError: it is damaged.
    """
    return _written(peek, tree, most, is_exact=True)


class _Hidden(str):
    """Stands for something that is not shown."""


def _written(peek: Peek, tree: Any, most: int, *, is_exact: bool) -> tuple[str, bool]:
    most = max(_LEAST_TEXT, min(most, peek.room))
    pieces: list[str] = []
    left, is_whole = most, True
    try:
        shape = peek.shape(tree)
        if shape.kind == WORDS and not is_exact:
            text, length = peek.text(shape, most)
            pieces, is_whole = [text], length <= len(text)
        else:
            for piece in _Writer(peek, most, is_exact).pieces(shape, "", 0):
                pieces.append(piece)
                left -= len(piece)
                is_whole = is_whole and left >= 0 and not isinstance(piece, _Hidden)
                if left < 0:
                    break
    except TooLarge:
        return "(too large to show)", False
    text = "".join(pieces)[:most]
    peek.room -= len(text)
    return text, is_whole


class _Writer(NamedTuple):
    """How values are written as text."""

    peek: Peek
    most: int
    is_exact: bool
    """Whether texts of several lines stay JSON, and bytes are written out."""

    def pieces(self, shape: Shape, indent: str, depth: int) -> Iterator[str]:
        if shape.kind == SCALAR:
            yield json.dumps(shape.tree)
        elif shape.kind == WORDS:
            yield from self._words(shape, indent)
        elif self.is_exact and shape.type in _BYTES and isinstance(shape.tree, str):
            yield f"{shape.type} in base64 {json.dumps(shape.tree)}"
        elif shape.kind == CLOSED:
            yield _Hidden(f"<{_closed(shape)}>")
        elif depth > _DEEPEST:
            yield _Hidden("…")
        else:
            yield from self._container(shape, indent, depth)

    def _words(self, shape: Shape, indent: str) -> Iterator[str]:
        text, length = self.peek.text(shape, self.most if self.is_exact else MOST_TEXT)
        if not self.is_exact and "\n" in text.rstrip("\n"):  # as it is, not on one line
            yield "|"
            yield from (f"\n{indent}  {line}" for line in text.splitlines())
        else:
            yield json.dumps(text, ensure_ascii=False)
        if length > len(text):
            yield _Hidden(f" … about {length:,} characters")

    def _container(self, shape: Shape, indent: str, depth: int) -> Iterator[str]:
        is_list = shape.kind == LIST
        # It may be any text of a store: a line end in it would look like the next member.
        word = json.dumps(shape.type, ensure_ascii=False)[1:-1]
        begin, end = ("[", "]") if is_list else ("{", "}")
        inner = indent + "  "
        peek = self.peek
        rows = (
            ((None, item) for item in peek.items(shape)) if is_list else peek.members(shape).items()
        )
        yield begin if shape.type in ("list", "dict") else f"{word} {begin}"
        is_first = True
        for name, item in rows:
            yield "\n" + inner if is_first else ",\n" + inner
            is_first = False
            if name is not None:
                yield json.dumps(name, ensure_ascii=False) + ": "
            yield from self.pieces(peek.shape(item), inner, depth + 1)
        yield end if is_first else "\n" + indent + end


def on_a_line(peek: Peek, tree: Any, most: int = 160) -> str:
    """Return a value on one line, cut. Never fails."""
    try:
        text, _ = written(peek, tree, most * 3)
    except (IntegrityError, KeyError):
        return "(damaged)"
    return on_one_line(" ".join(text.split()), most)
