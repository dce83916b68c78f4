"""Renders stored values as an expandable tree or as indented text. Owns the display limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.web.state.lazy_state import (
    LIST,
    MAP,
    OPAQUE,
    SCALAR,
    STRING,
    ReadLimitExceeded,
    Shape,
    StateReader,
)

MAX_TEXT = 20_000
"""Maximum characters of one value on a page."""
CHILDREN = 100
"""Maximum children of a list or map that are shown at once."""
_MIN_TEXT = 200
_OPEN_INITIALLY = 60
_MAX_DEPTH = 60

_BYTES = ("bytes", "bytearray")
_OPAQUE_TEXT = {
    "pickle": "a pickle: never loaded here",
    "bytes": "bytes",
    "bytearray": "bytes",
    "object": "stored as separate objects",
}


class Node(NamedTuple):
    """A value on a page, with its children if it is open."""

    name: str
    type: str
    text: str
    path: str
    """The path for loading its children; empty if it has none."""
    children: list[Node] | None
    """None if not open yet."""
    more: int = 0
    """Number of further children."""
    start: int = 0


def outline(reader: StateReader, name: str, tree: Any, path: str, *, start: int = 0) -> Node:
    """Return a value with its children; small descendants are expanded.

    Raises:
        IntegrityError: the state is damaged.
        KeyError: there is no child at `start`.
    """
    room = [_OPEN_INITIALLY]
    return _node(reader, name, tree, path, room, start=start, depth=0)


def _node(
    reader: StateReader,
    name: str,
    tree: Any,
    path: str,
    room: list[int],
    *,
    start: int = 0,
    depth: int,
) -> Node:
    try:
        shape = reader.shape(tree)
        number = reader.size(shape)
    except ReadLimitExceeded:
        return Node(name, "value", "too large to show", "", [])
    if shape.kind not in (LIST, MAP):
        return Node(name, shape.type, _short(reader, shape), "", [])
    words = f"{number:,} {'item' if shape.kind == LIST else 'member'}{'' if number == 1 else 's'}"
    if not number:
        return Node(name, shape.type, "empty", "", [])
    is_open = depth == 0 or (room[0] >= number and depth < 3)
    if not is_open:
        return Node(name, shape.type, words, path, None)
    some = reader.children(shape, start, CHILDREN)
    room[0] -= len(some)
    children = [
        _node(reader, child, item, f"{path}.{start + place}", room, depth=depth + 1)
        for place, (child, item) in enumerate(some)
    ]
    return Node(name, shape.type, words, path, children, number - start - len(some), start)


def _short(reader: StateReader, shape: Shape) -> str:
    if shape.kind == STRING:
        text, length = reader.text(shape, 2000)
        return text if length <= len(text) else f"{text} … about {length:,} characters"
    if shape.kind == OPAQUE:
        return _opaque(shape)
    return json.dumps(shape.tree)


def _opaque(shape: Shape) -> str:
    why = _OPAQUE_TEXT.get(shape.type, "not shown")
    if shape.type in _BYTES and isinstance(shape.tree, str):
        return f"{len(shape.tree) * 3 // 4:,} {why}"
    return why


def render_exact(reader: StateReader, tree: Any, most: int) -> tuple[str, bool]:
    """Return an unambiguous text for a value, and whether it is complete.

    Raises:
        IntegrityError: the state is damaged.
    """
    return render(reader, tree, most, is_exact=True)


class _Omitted(str):
    """A placeholder for omitted text."""


def render(
    reader: StateReader, tree: Any, most: int = MAX_TEXT, *, is_exact: bool = False
) -> tuple[str, bool]:
    """Return a value as readable text, and whether it is complete. A string is not quoted.

    Raises:
        IntegrityError: the state is damaged.
    """
    most = max(_MIN_TEXT, min(most, reader.chars_left))
    pieces: list[str] = []
    left, is_whole = most, True
    try:
        shape = reader.shape(tree)
        if shape.kind == STRING and not is_exact:
            text, length = reader.text(shape, most)
            pieces, is_whole = [text], length <= len(text)
        else:
            for piece in _Renderer(reader, most, is_exact).pieces(shape, "", 0):
                pieces.append(piece)
                left -= len(piece)
                is_whole = is_whole and left >= 0 and not isinstance(piece, _Omitted)
                if left < 0:
                    break
    except ReadLimitExceeded:
        return "(too large to show)", False
    text = "".join(pieces)[:most]
    reader.chars_left -= len(text)
    return text, is_whole


class _Renderer(NamedTuple):
    """Renders values as text."""

    reader: StateReader
    most: int
    is_exact: bool
    """Whether multi-line strings stay JSON strings, and bytes are shown as base64."""

    def pieces(self, shape: Shape, indent: str, depth: int) -> Iterator[str]:
        if shape.kind == SCALAR:
            yield json.dumps(shape.tree)
        elif shape.kind == STRING:
            yield from self._string(shape, indent)
        elif self.is_exact and shape.type in _BYTES and isinstance(shape.tree, str):
            yield f"{shape.type} in base64 {json.dumps(shape.tree)}"
        elif shape.kind == OPAQUE:
            yield _Omitted(f"<{_opaque(shape)}>")
        elif depth > _MAX_DEPTH:
            yield _Omitted("…")
        else:
            yield from self._container(shape, indent, depth)

    def _string(self, shape: Shape, indent: str) -> Iterator[str]:
        text, length = self.reader.text(shape, self.most if self.is_exact else MAX_TEXT)
        if not self.is_exact and "\n" in text.rstrip("\n"):  # as a block, not as one JSON string
            yield "|"
            yield from (f"\n{indent}  {line}" for line in text.splitlines())
        else:
            yield json.dumps(text, ensure_ascii=False)
        if length > len(text):
            yield _Omitted(f" … about {length:,} characters")

    def _container(self, shape: Shape, indent: str, depth: int) -> Iterator[str]:
        is_list = shape.kind == LIST
        # The type name may be any stored string; a line end in it would look like the next member.
        word = json.dumps(shape.type, ensure_ascii=False)[1:-1]
        begin, end = ("[", "]") if is_list else ("{", "}")
        inner = indent + "  "
        reader = self.reader
        rows = (
            ((None, item) for item in reader.items(shape))
            if is_list
            else reader.members(shape).items()
        )
        yield begin if shape.type in ("list", "dict") else f"{word} {begin}"
        is_first = True
        for name, item in rows:
            yield "\n" + inner if is_first else ",\n" + inner
            is_first = False
            if name is not None:
                yield json.dumps(name, ensure_ascii=False) + ": "
            yield from self.pieces(reader.shape(item), inner, depth + 1)
        yield end if is_first else "\n" + indent + end
