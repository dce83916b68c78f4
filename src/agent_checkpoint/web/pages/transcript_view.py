"""The transcript of a coding agent as a conversation. Owns the display of its texts and calls."""

from __future__ import annotations

import json
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.transcript_lines import (
    CALL,
    PROMPT,
    REPLY,
    RESET,
    RESULT,
    Item,
    items_in,
)
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.steps.step import hook_note
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.page_text import single_line
from agent_checkpoint.web.pages.conversation import Block, Message, Page
from agent_checkpoint.web.state.lazy_state import LIST, STRING, StateReader, masked_start
from agent_checkpoint.web.state.outline import MAX_TEXT

LINES = 120
"""Lines of a transcript on a page; most messages have several."""
_MAX_LINE = 2_000_000
_MAX_JSON_LINE = 100
_ROLES = {PROMPT: "user", RESULT: "tool", RESET: "system"}


def agent_of(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return the coding agent that a checkpoint is of; None if its transcript is not understood."""
    note = hook_note(store, checkpoint) or {}
    return note["agent"] if note.get("agent") in AGENTS else None


def transcript_page(reader: StateReader, agent: str, tree: Any, end: int | None = None) -> Page:
    """Return the messages in the lines before an index.

    Raises:
        IntegrityError: the transcript is damaged.
        ReadLimitExceeded: it is too large.
    """
    shape = reader.shape(tree)
    total = reader.size(shape) if shape.kind == LIST else 0
    last = total if end is None else max(0, min(end, total))
    start = max(0, last - LINES)
    lines = read_lines(reader, tree, start, last - start)
    return Page(messages_in(reader, agent, lines, start), start, last, total, LINES)


def read_lines(reader: StateReader, tree: Any, start: int, number: int) -> list[str]:
    """Return lines of a transcript; a line beyond the display limit is cut.

    Raises the same errors as `transcript_page`.
    """
    found = []
    shape = reader.shape(tree)
    for item in reader.items(shape, start, number) if shape.kind == LIST else ():
        line = reader.shape(item)
        found.append(reader.unmasked_text(line, _MAX_LINE)[0] if line.kind == STRING else "")
    return found


def messages_in(reader: StateReader, agent: str, lines: list[str], start: int) -> list[Message]:
    """Return the messages in some lines; a result stands below its call.

    Args:
        reader: limits the text on the page.
        agent: the name of the agent.
        lines: the lines.
        start: the number of the first line.
    """
    messages: list[Message] = []
    calls: dict[str, tuple[Message, Block]] = {}
    answered: set[str] = set()
    reply = ""
    for number, line in enumerate(lines, start):
        for item in items_in(agent, line):
            if item.kind == RESULT and item.call in answered:
                continue  # repeated in a line of its own
            if item.kind == RESULT and item.call in calls:
                answered.add(item.call)
                message, call = calls.pop(item.call)
                place = next(at for at, block in enumerate(message.blocks) if block is call)
                message.blocks.insert(place + 1, block_of(reader, item))
                continue
            block = block_of(reader, item)
            role = _ROLES.get(item.kind, "assistant")
            if not block.text and item.kind not in (CALL, RESULT, RESET):
                continue
            is_same = role == "assistant" and (item.message or reply) == reply
            if not (messages and messages[-1].role == role and (is_same or role != "assistant")):
                messages.append(Message(number, role, []))
            reply = item.message if role == "assistant" else ""
            if item.message and item.kind == REPLY and block in messages[-1].blocks:
                continue  # written again, with its calls
            messages[-1].blocks.append(block)
            if item.kind == CALL and item.call:
                calls[item.call] = messages[-1], block
    return messages


def text_of(content: Any) -> str:
    """Return the text in a content of any agent: a string, blocks, parts or a result."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(text_of, content)))
    if isinstance(content, dict):
        if "functionCall" in content:  # a part of its own
            return ""
        for name in ("text", "output", "parts", "functionResponse", "response", "error"):
            if content.get(name):
                return text_of(content[name])
        return "" if content.get("type") == "text" or not content else _json(content)
    return "" if content is None else _json(content)


def arguments_of(given: Any) -> str:
    """Return the arguments of a call, one on a line; a text of several lines is indented."""
    if isinstance(given, str):
        try:
            parsed = json.loads(given)
        except (ValueError, RecursionError):
            return given
        return arguments_of(parsed) if isinstance(parsed, dict) else given
    if not isinstance(given, dict):
        return "" if given is None else _json(given)
    rows = []
    for name, value in given.items():
        text = value if isinstance(value, str) else _json(value)
        if "\n" in text.rstrip("\n"):
            text = "\n" + "\n".join(f"    {line}" for line in text.splitlines())
        rows.append(f"{name}: {text}")
    return "\n".join(rows)


def block_of(reader: StateReader, item: Item) -> Block:
    """Return the display of one item."""
    if item.kind == RESET:
        return Block("data", "", "The conversation was compacted or rewound here.")
    is_call = item.kind == CALL
    try:
        text = arguments_of(item.content) if is_call else text_of(item.content)
    except RecursionError:
        text = "(nested too deeply to show)"
    most = max(200, min(MAX_TEXT, reader.chars_left))
    cut = masked_start(text, most)
    reader.chars_left -= len(cut)
    is_whole = len(text) <= most
    if is_call:
        return Block("call", f"calls {single_line(item.tool, 80)}", cut, is_whole)
    if item.kind == RESULT:
        return Block("result", "result", cut, is_whole)
    kind, title = ("thought", "thinking") if item.is_thought else ("text", "")
    return Block(kind, title, cut, is_whole)


def _json(value: Any) -> str:
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= _MAX_JSON_LINE else json.dumps(value, ensure_ascii=False, indent=2)
