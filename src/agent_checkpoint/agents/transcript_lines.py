"""Reads the lines of transcripts of coding agents: who said what. Owns their line formats.

A line that is not understood says nothing. Lines are read, never written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.agents.agent_events import (
    CLAUDE,
    CODEX,
    COPILOT,
    GEMINI,
    QWEN,
    call_words,
    time_in,
)
from agent_checkpoint.named_tuple import NamedTuple

PROMPT, REPLY, CALL, RESULT, RESET = "prompt", "reply", "call", "result", "reset"
"""Kinds of items: a user's prompt, a part of a reply of the model, a tool call in it, the result of
a call, and a point from which on the agent continues with another conversation, such as a
compaction."""


class Item(NamedTuple):
    """What one line says."""

    kind: str
    call: str = ""
    """The id of the tool call."""
    message: str = ""
    """The id of the model's message, if the agent names it."""
    words: str = ""
    """The tool call in words, as in the label of its checkpoint."""
    tool: str = ""
    """The name of the tool."""
    content: Any = None
    """The text, the arguments of the call or its result, as JSON in the form of the agent."""
    is_thought: bool = False
    """Whether a part of a reply is reasoning."""


@dataclass
class Step:
    """One reply of the model with its tool calls, and their results."""

    start: int
    """The first line of the reply."""
    message: str
    calls: dict[str, str] = field(default_factory=dict)
    """The words of each call, by id."""
    results: dict[str, int] = field(default_factory=dict)
    """The line of each result, by the id of the call."""
    end: int = 0
    """The line after the last one that belongs to the step."""

    @property
    def is_complete(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self.calls)


class Conversation(NamedTuple):
    """The structure of a transcript."""

    steps: list[Step]
    prompts: list[int]
    """The lines of prompts."""
    resets: list[int]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return not (self.steps or self.prompts)


def read_conversation(agent: str, lines: Sequence[str], cwd: str) -> Conversation:
    """Return the structure of the lines of a transcript.

    Args:
        agent: the name of the agent.
        lines: the lines.
        cwd: the directory of the session, which words of calls leave out.
    """
    found = Conversation([], [], [])
    read = _READERS.get(agent)
    step: Step | None = None
    for number, line in enumerate(lines if read is not None else ()):
        for item in _items(read, line, cwd):
            if item.kind in (PROMPT, RESET):
                (found.prompts if item.kind == PROMPT else found.resets).append(number)
                step = None
            elif item.kind == RESULT:
                of = next((one for one in reversed(found.steps) if item.call in one.calls), None)
                if of is not None and item.call not in of.results:
                    of.results[item.call] = number
                    of.end = max(of.end, number + 1)
            else:
                if step is None or not _is_same_reply(step, item):
                    step = Step(number, item.message)
                    found.steps.append(step)
                step.end = number + 1
                if item.kind == CALL:
                    step.calls.setdefault(item.call, item.words)
    return found


def items_in(agent: str, line: str, cwd: str = "") -> list[Item]:
    """Return what one line of a transcript says; nothing if it is not understood.

    The arguments are as for `read_conversation`.
    """
    return list(_items(_READERS.get(agent), line, cwd))


def said_at(line: str) -> str | None:
    """Return when an agent said a line of its transcript, which it may write later.

    None if the line does not say that.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return time_in(record) if isinstance(record, dict) else None


def _is_same_reply(step: Step, item: Item) -> bool:
    return item.message == step.message if item.message else not step.results


def _items(read: _Reader | None, line: str, cwd: str) -> Iterator[Item]:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and read is not None:
            yield from read(record, cwd)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return  # of another version


# -- one function per agent ------------------------------------------------------------------------

_Reader = Callable[[dict[str, Any], str], Iterator[Item]]


def _read_claude(record: dict[str, Any], cwd: str) -> Iterator[Item]:
    kind = record.get("type")
    if kind == "system" and record.get("subtype") == "compact_boundary":
        yield Item(RESET)
    if kind not in ("user", "assistant") or record.get("isSidechain") or record.get("isMeta"):
        return
    message = record["message"]
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if kind == "user":
            if block["type"] == "tool_result":
                yield Item(RESULT, block["tool_use_id"], content=block.get("content"))
            else:
                yield Item(PROMPT, content=block.get("text"))
        elif block["type"] == "tool_use":
            words = call_words(block["name"], block["input"], cwd)
            yield Item(CALL, block["id"], message["id"], words, block["name"], block["input"])
        else:
            is_thought = block["type"] == "thinking"
            said = block.get("thinking" if is_thought else "text")
            yield Item(REPLY, message=message["id"], content=said, is_thought=is_thought)


def _read_codex(record: dict[str, Any], cwd: str) -> Iterator[Item]:
    payload = record.get("payload") or {}
    kind = payload.get("type") or ""
    if record["type"] == "compacted":
        yield Item(RESET)
    elif record["type"] == "event_msg":
        # Written before the reply itself, or after the result; the screen shows them.
        item = payload["item"]["type"] if kind == "item_completed" else kind
        if item in ("AgentMessage", "agent_message", "Reasoning", "agent_reasoning"):
            yield Item(REPLY)
    elif record["type"] != "response_item":
        return
    elif kind == "message":
        if payload["role"] == "assistant":
            yield Item(REPLY, content=payload.get("content"))
        elif payload["role"] == "user" and not _is_context(payload["content"]):
            yield Item(PROMPT, content=payload["content"])
    elif kind == "reasoning":
        yield Item(REPLY, content=payload.get("summary"), is_thought=True)
    elif kind.endswith("_output"):
        yield Item(RESULT, payload["call_id"], content=payload.get("output"))
    elif kind.endswith("_call") and payload.get("call_id"):  # a search of the server has no result
        tool = str(payload.get("name") or kind)
        given = payload.get("arguments", payload.get("input", payload.get("action")))
        yield Item(CALL, payload["call_id"], words=tool, tool=tool, content=given)


def _read_gemini(record: dict[str, Any], cwd: str) -> Iterator[Item]:
    changed = record.get("$set")
    if "$rewindTo" in record or (isinstance(changed, dict) and "messages" in changed):
        yield Item(RESET)
    kind, message = record.get("type"), record.get("id") or ""
    if kind == "user":
        content = record["content"]
        parts: list[dict[str, Any]] = [{"text": content}] if isinstance(content, str) else content
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        for answer in answers:
            yield Item(RESULT, answer["id"], content=answer.get("response"))
        if not answers and not _is_context(parts):
            yield Item(PROMPT, content=parts)
    elif kind == "gemini":
        yield Item(REPLY, message=message, content=record.get("content"))
        for call in record.get("toolCalls") or ():
            words = call_words(call["name"], call["args"], cwd)
            yield Item(CALL, call["id"], message, words, call["name"], call["args"])
            if call.get("result"):  # repeated in a line of its own, which says nothing new
                yield Item(RESULT, call["id"], content=call["result"])


def _read_qwen(record: dict[str, Any], cwd: str) -> Iterator[Item]:
    kind = record.get("type")
    if kind == "system" and record.get("subtype") == "chat_compression":
        yield Item(RESET)
    elif kind == "user":
        yield Item(PROMPT, content=record.get("message"))
    elif kind == "tool_result":
        for part in record["message"]["parts"]:
            if "functionResponse" in part:
                answer = part["functionResponse"]
                yield Item(RESULT, answer["id"], content=answer.get("response"))
    elif kind == "assistant":
        parts = record["message"]["parts"]
        yield Item(REPLY, message=record["uuid"], content=parts)
        for part in parts:
            call = part.get("functionCall")
            if call is not None:
                words = call_words(call["name"], call["args"], cwd)
                yield Item(CALL, call["id"], record["uuid"], words, call["name"], call["args"])


def _read_copilot(record: dict[str, Any], cwd: str) -> Iterator[Item]:
    kind, data = record.get("type"), record.get("data") or {}
    if record.get("agentId") or data.get("agentId") or data.get("parentToolCallId"):
        return  # of a sub-agent
    if kind == "session.compaction_complete":
        yield Item(RESET)
    elif kind == "user.message":
        yield Item(PROMPT, content=data.get("content"))
    elif kind == "tool.execution_complete":
        result = data.get("result") or {}
        yield Item(RESULT, data["toolCallId"], content=result.get("content"))
    elif kind == "assistant.message":
        message = data["messageId"]
        yield Item(REPLY, message=message, content=data.get("content"))
        for call in data.get("toolRequests") or ():
            name, given = call["name"], call["arguments"]
            words = call_words(name, given, cwd)
            yield Item(CALL, call["toolCallId"], message, words, name, given)


_READERS: dict[str, _Reader] = {
    CLAUDE: _read_claude,
    CODEX: _read_codex,
    GEMINI: _read_gemini,
    QWEN: _read_qwen,
    COPILOT: _read_copilot,
}


def _is_context(parts: list[dict[str, Any]]) -> bool:
    """Return whether a message was added by the agent itself."""
    text = "".join(part.get("text") or "" for part in parts).strip()
    return text.startswith(("<environment_context>", "<user_instructions>", "<session_context>"))
