"""Messages, tool calls and model calls as one line of text each.

Recognizes the formats of the model APIs: Anthropic, OpenAI Chat Completions and Responses, Gemini;
and those of the Claude Agent SDK and of Pydantic AI.
Any other value is shown as data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agent_checkpoint.formatting import one_line, value_summary

_TEXTS = ("text", "input_text", "output_text", None)
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call")
_ARGUMENTS = ("input", "arguments", "args")
_RESULTS = ("content", "output", "response")
_MAX_PIECES = 50


def message_line(item: Any, limit: int, cut: Callable[[int], int]) -> str:
    """Return a message or a tool call as one line.

    Args:
        item: the message or tool call.
        limit: the maximum length of its contents.
        cut: maps the maximum length of other strings on a terminal to the actual maximum.
    """
    if not isinstance(item, dict):
        return value_summary(item, limit)
    for name in ("message", "item"):  # an entry of a coding agent, or of a turn that is not over
        if isinstance(item.get(name), dict) and {"role", "type"} & set(item[name]):
            item = item[name]
    if item.get("kind") in ("request", "response") and isinstance(item.get("parts"), list):
        item = _pydantic_message(item)
    pieces = list(_pieces(item, limit))[:_MAX_PIECES]
    if isinstance(item.get("role"), str) and ("content" in item or "parts" in item):
        whole = pieces == [item.get("content")]
        words = one_line(pieces[0], limit) if whole else _shortened(" ".join(pieces), limit)
        return f"{one_line(item['role'], cut(40))}: {words}"
    if isinstance(item.get("tool"), str):
        what = "error" if "error" in item else "result"
        call = f"{one_line(item['tool'], cut(60))}({value_summary(item.get('arguments'), limit)})"
        return f"{call} -> {what} {value_summary(item.get(what), cut(80))}"
    if isinstance(item.get("prefix"), dict):
        what = "error" if "error" in item else "tokens"
        model = one_line(str(item.get("model")), cut(60))
        return f"{model} -> {what} {value_summary(item.get(what), cut(80))}"
    # An item of the Responses API that is not a message has a type and no role.
    return _shortened(pieces[0], limit) if pieces else value_summary(item, limit)


def _pydantic_message(item: dict[str, Any]) -> dict[str, Any]:
    """Return a message of Pydantic AI in the format of Anthropic."""
    parts = [part for part in item["parts"] if isinstance(part, dict)]
    return {
        "role": "assistant" if item["kind"] == "response" else "user",
        "content": [_PYDANTIC.get(str(part.get("part_kind")), _as_text)(part) for part in parts],
    }


def _as_text(part: dict[str, Any]) -> dict[str, Any]:
    content = part.get("content")
    return {"type": "text", "text": content} if isinstance(content, str) else part


_PYDANTIC: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "tool-call": lambda part: {
        "type": "tool_use",
        "name": str(part.get("tool_name")),
        "input": part.get("args"),
    },
    "tool-return": lambda part: {"type": "tool_result", "content": part.get("content")},
}


def _shortened(text: str, limit: int) -> str:
    return one_line(text if len(text) <= limit else f"{text[:limit]}…")


def _pieces(item: dict[str, Any], limit: int) -> Iterator[str]:
    """Iterate over the texts, tool calls and tool results of a message."""
    if "role" not in item:
        piece = _piece(item, limit)
        yield from [] if piece is None else [piece]
        return
    content = item.get("content", item.get("parts"))
    calls = item.get("tool_calls")
    legacy = item.get("function_call")
    extra = [*(calls if isinstance(calls, list) else ()), *([legacy] if legacy else ())]
    if isinstance(content, list) and content:
        for block in content:
            piece = _piece(block, limit) if isinstance(block, dict) else None
            yield value_summary(block, limit) if piece is None else piece
    elif isinstance(content, str):
        yield content
    elif content is not None or not extra:
        yield value_summary(content, limit)
    for call in extra:
        named = call if isinstance(call, dict) else {}
        inner = named.get("function") or named.get("custom") or named
        yield _call(inner if isinstance(inner, dict) else named, limit)


def _piece(block: dict[str, Any], limit: int) -> str | None:
    """Return a content block or an item without a role as text; None for any other value."""
    kind = block.get("type")
    for name in ("functionCall", "function_call"):  # a part of Gemini
        if isinstance(block.get(name), dict):
            return _call(block[name], limit)
    for name in ("functionResponse", "function_response"):
        if isinstance(block.get(name), dict):
            return _result(block[name], limit)
    if kind in _TEXTS and isinstance(block.get("text"), str):
        return str(block["text"])[: limit + 1]
    if kind in _CALLS and isinstance(block.get("name"), str):
        return _call(block, limit)
    if isinstance(kind, str) and kind.endswith(("tool_result", "call_output")):
        return _result(block, limit)
    return None


def _call(call: dict[str, Any], limit: int) -> str:
    arguments = next((call[name] for name in _ARGUMENTS if name in call), None)
    # The arguments of OpenAI are JSON in a string.
    shown = arguments if isinstance(arguments, str) else value_summary(arguments, limit)
    return f"{one_line(str(call.get('name')), 80)}({shown[: limit + 1]})"


def _result(block: dict[str, Any], limit: int) -> str:
    result = next((block[name] for name in _RESULTS if name in block), None)
    shown = result if isinstance(result, str) else value_summary(result, limit)
    return f"-> {'error ' if block.get('is_error') else ''}{shown[: limit + 1]}"
