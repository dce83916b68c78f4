"""How much of a request to a model repeats the last one, for prompt caches. Knows no session.

A prompt cache covers the bytes that a request begins with, in the order in which the API reads it:
tools, then the system prompt, then the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple

_SYSTEM = ("system", "system_instruction", "systemInstruction", "instructions")
_CONVERSATION = ("messages", "input", "contents")
_SETTINGS = ("tool_choice", "thinking")
"""A change of these makes Anthropic's cache of the conversation invalid."""
_PATHS = [
    path
    for name in ("tools", *_SYSTEM, *_SETTINGS, *_CONVERSATION)
    for path in (name, f"config.{name}")
]
_MARKER = "cache_control"
"""Says where a cache ends; it is not part of what is cached."""


class Prefix(NamedTuple):
    """How much of a request is unchanged."""

    bytes: int
    """The size of what the API reads: tools, system prompt and conversation, as JSON."""
    unchanged: int
    """How many bytes at the beginning are those of the last request."""
    difference: str | None
    """The path of the first difference; None if the request only adds to the conversation."""


def json_text(value: Any) -> str:
    """Return a value as compact JSON, in the order of its keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def compare(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Prefix:
    """Compare a request with the last one; both are JSON."""
    old, new = {} if before is None else _sections(before), _sections(now)
    texts = {path: list(map(json_text, items)) for path, items in new.items()}
    total = sum(_size(text) for items in texts.values() for text in items)
    if before is None:
        return Prefix(total, 0, None)
    if before.get("model") != now.get("model"):
        return Prefix(total, 0, "model")
    unchanged = 0
    for path in _PATHS:
        known, items = old.get(path, []), new.get(path, [])
        for index, (last, item) in enumerate(zip(known, items)):
            text, last_text = texts[path][index], json_text(last)
            if text != last_text:
                same = _size(text[: _common_length(text, last_text)])
                where = _difference(_place(path, index, now), last, item)
                return Prefix(total, unchanged + same, where)
            unchanged += _size(text)
        if len(known) > len(items) or (len(known) < len(items) and path not in _CONVERSATION):
            index = min(len(known), len(items))
            where = _place(path, index, now if index < len(items) else before)
            return Prefix(total, unchanged, where)
    return Prefix(total, unchanged, None)


def _sections(request: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the items of the sections that the API reads, by path."""
    config = request.get("config")
    fields: dict[str, Any] = dict(request)
    if isinstance(config, Mapping):
        fields.update({f"config.{name}": value for name, value in config.items()})
    found: dict[str, list[Any]] = {}
    for path in _PATHS:
        value = fields.get(path)
        if value is not None:
            items = value if isinstance(value, list) else [value]
            found[path] = [_without_markers(item) for item in items]
    return found


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))  # a reply may end within a character


def _common_length(one: str, other: str) -> int:
    pairs = zip(one, other)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _place(path: str, index: int, request: Mapping[str, Any]) -> str:
    value: Any = request
    for name in path.split("."):
        value = value[name]
    return f"{path}[{index}]" if isinstance(value, list) else path


def _difference(path: str, old: Any, new: Any) -> str:
    """Return the path of the first difference in the JSON of two values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for before, now in zip(old.items(), new.items()):
            if before[0] != now[0]:
                return f"{path}.{now[0]}"
            if json_text(before[1]) != json_text(now[1]):
                return _difference(f"{path}.{now[0]}", before[1], now[1])
        longer = max(old, new, key=len)
        return f"{path}.{list(longer)[min(len(old), len(new))]}"
    if isinstance(old, list) and isinstance(new, list):
        for index, (before, now) in enumerate(zip(old, new)):
            if json_text(before) != json_text(now):
                return _difference(f"{path}[{index}]", before, now)
        return f"{path}[{min(len(old), len(new))}]"
    return path


def _without_markers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_markers(item) for name, item in value.items() if name != _MARKER}
    return [_without_markers(item) for item in value] if isinstance(value, list) else value
