"""Edits JSON with comments (JSONC) as text. Owns a parser that records source positions.

Edits preserve the user's formatting: order, comments and whitespace.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_PLAIN = re.compile(r"[-+.0-9A-Za-z]+")
_DEEPEST = 100


class JsonNode(NamedTuple):
    """A value and its position in the text."""

    value: Any
    start: int
    end: int
    members: dict[str, JsonNode] | None = None
    """The members of an object, by name."""
    items: list[JsonNode] | None = None
    """The items of an array."""
    key: int | None = None
    """The start of the property name, for a member of an object."""


def parse(text: str, *, comments: bool) -> JsonNode:
    """Parse JSON, with comments if allowed. Raises ValueError."""
    if not comments:
        json.loads(text)
    at = _skip(text, 0)
    node = _value(text, at, 0)
    if _skip(text, node.end) != len(text):
        raise ValueError(f"extra data at position {node.end}")
    return node


def append_member(text: str, node: JsonNode, name: str, value: str) -> str:
    """Return the text with a member appended to an object."""
    return _insert(text, node, f"{json.dumps(name)}: {value}", list((node.members or {}).values()))


def append_item(text: str, node: JsonNode, value: str) -> str:
    """Return the text with an item appended to an array."""
    return _insert(text, node, value, node.items or [])


def remove_node(text: str, outer: JsonNode, inner: JsonNode) -> str:
    """Return the text without a member or item, and without its comma.

    Adjacent comments are kept.
    """
    siblings = outer.items if outer.items is not None else list((outer.members or {}).values())
    place = siblings.index(inner)
    start = inner.start if inner.key is None else inner.key
    if place:
        before = siblings[place - 1].end
        kept = _without_comma(text, before, start)
        return text[:before] + (kept.rstrip(" \t") if kept.strip() else "") + text[inner.end :]
    if len(siblings) > 1:
        after = siblings[1].start if siblings[1].key is None else siblings[1].key
        kept = _without_comma(text, inner.end, after)
        return text[:start] + (kept.lstrip() if kept.strip() else "") + text[after:]
    if is_only_child(text, outer, inner):
        return text[: outer.start + 1] + text[outer.end - 1 :]
    return text[:start] + text[inner.end :]


def is_only_child(text: str, outer: JsonNode, inner: JsonNode) -> bool:
    """Return whether an object or array contains only this value and no comments."""
    start = inner.start if inner.key is None else inner.key
    return not (text[outer.start + 1 : start] + text[inner.end : outer.end - 1]).strip()


def _without_comma(text: str, start: int, end: int) -> str:
    """Return the text between two values without the comma."""
    comma = _skip(text, start)
    return text[start:comma] + text[comma + 1 : end]


def format_json(value: Any, depth: int, unit: str) -> str:
    """Return the JSON of a value, indented for a depth."""
    text = json.dumps(value, indent=unit, ensure_ascii=False)
    return text.replace("\n", "\n" + unit * depth)


def indent_unit(text: str) -> str:
    """Return the indentation unit of a text; two spaces if it has none."""
    found = re.search(r"\{[ \t]*\r?\n([ \t]+)", text)
    return found[1] if found else "  "


def _insert(text: str, node: JsonNode, piece: str, siblings: list[JsonNode]) -> str:
    unit = indent_unit(text)
    line = text.rfind("\n", 0, node.start) + 1
    own = re.match(r"[ \t]*", text[line:])
    outer = own[0] if own else ""
    if siblings:
        last = siblings[-1].end
        return f"{text[:last]},\n{outer}{unit}{piece}{text[last:]}"
    inside = text[node.start + 1 : node.end - 1].rstrip()
    return f"{text[: node.start + 1]}{inside}\n{outer}{unit}{piece}\n{outer}{text[node.end - 1 :]}"


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _value(text: str, at: int, depth: int) -> JsonNode:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    sign = text[at : at + 1]
    if sign in ("{", "["):
        return _container(text, at, depth, is_object=sign == "{")
    found = (_STRING if sign == '"' else _PLAIN).match(text, at)
    if found is None:
        raise ValueError(f"expected a value at position {at}")
    return JsonNode(json.loads(found[0]), at, found.end())


def _container(text: str, start: int, depth: int, *, is_object: bool) -> JsonNode:
    nodes: list[JsonNode] = []
    members: dict[str, JsonNode] = {}
    at = _skip(text, start + 1)
    while text[at : at + 1] != ("}" if is_object else "]"):
        if nodes:
            if text[at : at + 1] != ",":
                raise ValueError(f"expected a comma at position {at}")
            at = _skip(text, at + 1)
        if is_object:
            node = _add_member(members, text, at, depth + 1)
        else:
            node = _value(text, at, depth + 1)
        nodes.append(node)
        at = _skip(text, node.end)
    if is_object:
        values = {name: node.value for name, node in members.items()}
        return JsonNode(values, start, at + 1, members=members)
    return JsonNode([node.value for node in nodes], start, at + 1, items=nodes)


def _add_member(members: dict[str, JsonNode], text: str, at: int, depth: int) -> JsonNode:
    name = _STRING.match(text, at)
    if name is None:
        raise ValueError(f"expected a quoted property name at position {at}")
    colon = _skip(text, name.end())
    if text[colon : colon + 1] != ":":
        raise ValueError(f"expected a colon at position {colon}")
    node = _value(text, _skip(text, colon + 1), depth)
    word = json.loads(name[0])
    if word in members:
        raise ValueError(f"duplicate property name {name[0]} at position {at}")
    members[word] = node._replace(key=at)
    return node
