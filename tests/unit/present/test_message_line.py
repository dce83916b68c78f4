"""Messages of each model API as one line: texts, tool calls with arguments, tool results."""

from typing import Any

import pytest

from agent_checkpoint.present.message_line import message_line

_OPENAI = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
_CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ({"role": "user", "content": "go"}, "user: go"),
        ({"role": "user", "content": None}, "user: null"),
        ({"role": "user", "content": {"a": 1}}, 'user: {"a": 1}'),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"n": 1}},
                ],
            },
            'assistant: I look. look({"n": 1})',
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}],
            },
            "user: -> found",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "content": "no", "is_error": True}],
            },
            "user: -> error no",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [_OPENAI, _CUSTOM]},
            'assistant: look({"n": 1}) sql(SELECT 1)',
        ),
        (
            {"role": "assistant", "content": "Now.", "function_call": {"name": "f"}},
            "assistant: Now. f(null)",
        ),
        ({"type": "function_call", "name": "look", "arguments": '{"n": 1}'}, 'look({"n": 1})'),
        ({"type": "function_call_output", "call_id": "c1", "output": "found"}, "-> found"),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "x"}],
            },
            "assistant: x",
        ),
        (
            {
                "role": "model",
                "parts": [{"text": "I look."}, {"functionCall": {"name": "look", "args": {}}}],
            },
            "model: I look. look({})",
        ),
        (
            {"role": "user", "parts": [{"function_response": {"name": "f", "response": {"a": 1}}}]},
            'user: -> {"a": 1}',
        ),
        ({"type": "reasoning", "summary": []}, '{"type": "reasoning", "summary": []}'),
        ({"role": "user", "content": [{"type": "image"}]}, 'user: {"type": "image"}'),
        ({"role": "assistant", "content": None, "tool_calls": [3]}, "assistant: None(null)"),
        (7, "7"),
    ],
)
def test_a_message_as_one_line(message: Any, line: str) -> None:
    assert message_line(message, 1000, lambda number: number) == line


def test_a_long_message_is_truncated() -> None:
    long = {"role": "assistant", "content": None, "tool_calls": [_OPENAI] * 1000}
    assert len(message_line(long, 40, lambda number: number)) <= len("assistant: ") + 41


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"type": "user", "message": {"role": "user", "content": "go"}}, "user: go"),
        (
            {"type": "mark", "item": {"type": "function_call", "name": "f", "arguments": "{}"}},
            "f({})",
        ),
        (
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "go"}]},
            "user: go",
        ),
        (
            {
                "kind": "response",
                "parts": [
                    {"part_kind": "text", "content": "so"},
                    {"part_kind": "tool-call", "tool_name": "f", "args": "{}"},
                ],
            },
            "assistant: so f({})",
        ),
        (
            {"kind": "request", "parts": [{"part_kind": "tool-return", "content": "ok"}]},
            "user: -> ok",
        ),
    ],
)
def test_messages_of_the_frameworks_are_shown(item: Any, shown: str) -> None:
    assert message_line(item, 80, lambda length: length) == shown
