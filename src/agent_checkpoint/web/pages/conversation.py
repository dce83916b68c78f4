"""Messages, tool calls and tasks of a checkpoint. Recognizes the usual message formats.

A message can be any value. A message in the format of a model API is shown with its role, texts,
tool calls and tool results; any other value is shown as data.
"""

from __future__ import annotations

from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.web.page_text import prose
from agent_checkpoint.web.state.lazy_state import LIST, MAP, STRING, StateReader
from agent_checkpoint.web.state.outline import render

MESSAGES, CALLS, TASKS = "messages", "calls", "tasks"
"""The names of the parts."""
PAGE = 50
"""Messages or calls on a page."""
_MAX_BLOCKS = 50
_FOLDED_TEXT, _FOLDED_LINES = 1_200, 14


class Block(NamedTuple):
    """A content block of a message."""

    kind: str
    """`text`, `thought`, `data`, `call` or `result`."""
    title: str
    text: str
    is_whole: bool = True

    @property
    def is_long(self) -> bool:
        """Whether it is folded at first."""
        return len(self.text) > _FOLDED_TEXT or self.text.count("\n") > _FOLDED_LINES


class Message(NamedTuple):
    """One item of a conversation."""

    number: int
    role: str
    blocks: list[Block]


class Call(NamedTuple):
    """One tool call."""

    number: int
    tool: str
    task: str
    arguments: Block
    result: Block
    failed: bool
    seconds: float | None
    effect: str
    replayed: bool


class Page(NamedTuple):
    """A page of items, newest last."""

    rows: list[Any]
    start: int
    end: int
    total: int
    size: int = PAGE
    """Items on a page."""


def page_of(part: str, reader: StateReader, tree: Any, end: int | None = None) -> Page:
    """Return a page of messages or calls before an index.

    Raises IntegrityError, ReadLimitExceeded.
    """
    make: Any = _call if part == CALLS else _message
    shape = reader.shape(tree)
    if shape.kind != LIST:
        return Page([make(reader, 0, tree)], 0, 1, 1)
    total = reader.size(shape)
    last = total if end is None else max(0, min(end, total))
    start = max(0, last - PAGE)
    items = reader.items(shape, start, last - start)
    rows = [make(reader, start + index, item) for index, item in enumerate(items)]
    return Page(rows, start, last, total)


def pieces(part: str, reader: StateReader, tree: Any) -> list[tuple[str, str]]:
    """Return the texts of a message or call, each with its role or tool."""
    if part == CALLS:
        call = _call(reader, 0, tree)
        return [(call.tool, call.arguments.text), (call.tool, call.result.text)]
    message = _message(reader, 0, tree)
    return [(message.role, block.text) for block in message.blocks]


def tasks(reader: StateReader, tree: Any) -> list[dict[str, Any]]:
    """Return the tasks of a session. Raises IntegrityError, ReadLimitExceeded."""
    shape = reader.shape(tree)
    rows = reader.members(shape).get("tasks") if shape.kind == MAP else None
    found = []
    if rows is not None and reader.shape(rows).kind == LIST:
        for row in reader.items(reader.shape(rows), 0, 1000):
            fields = _fields(reader, row)
            task: dict[str, Any] = {
                name: _plain(reader, fields.get(name), 300)
                for name in ("id", "status", "attempt", "note")
            }
            has_result = fields.get("result") is not None
            task["result"] = render(reader, fields["result"], 2000)[0] if has_result else ""
            found.append(task)
    return found


def _message(reader: StateReader, number: int, tree: Any) -> Message:
    fields = _fields(reader, tree)
    role = _plain(reader, fields.pop("role", None), 40)
    content = "content" if "content" in fields else "parts"
    if not role or content not in fields:
        # An item of the Responses API that is not a message has a type and no role.
        piece = _piece(reader, tree)
        block = piece if piece.kind in ("call", "result") else _block(reader, "data", "", tree)
        return Message(number, role or "", [block])
    blocks = _content(reader, fields.pop(content))
    calls = fields.pop("tool_calls", None)
    if calls is not None and reader.shape(calls).kind == LIST:
        items = reader.items(reader.shape(calls), 0, _MAX_BLOCKS)
        blocks += [_called(reader, item) for item in items]
    elif calls is not None:
        blocks.append(_block(reader, "call", "tool calls", calls))
    if fields.get("function_call") is not None:
        blocks.append(_called(reader, fields.pop("function_call")))
    rest = {name: item for name, item in fields.items() if item is not None}
    if rest:
        blocks.append(_block(reader, "data", "also", rest))
    return Message(number, role, blocks)


def _content(reader: StateReader, tree: Any) -> list[Block]:
    shape = reader.shape(tree)
    if shape.kind != LIST:
        return [_block(reader, "text" if shape.kind == STRING else "data", "", tree)]
    return [_piece(reader, item) for item in reader.items(shape, 0, _MAX_BLOCKS)]


def _piece(reader: StateReader, tree: Any) -> Block:
    fields = _fields(reader, tree)
    kind = _plain(reader, fields.get("type"), 40)
    if kind == "text" and "text" in fields:
        return _block(reader, "text", "", fields["text"])
    for name in ("functionCall", "function_call"):  # a part of Gemini
        if fields.get(name) is not None:
            return _called(reader, fields[name])
    for name in ("functionResponse", "function_response"):
        if fields.get(name) is not None:
            return _block(reader, "result", "result", fields[name])
    if kind in ("tool_use", "function_call", "custom_tool_call"):
        return _called(reader, tree)
    if kind in ("tool_result", "function_call_output", "custom_tool_call_output"):
        return _block(reader, "result", "result", fields.get("content", fields.get("output")))
    is_text = reader.shape(tree).kind == STRING
    return _block(reader, "text" if is_text else "data", kind, tree)


def _called(reader: StateReader, tree: Any) -> Block:
    """Return a tool call of a message, with the name and the arguments, in any of the formats."""
    fields = _fields(reader, tree)
    inner = fields.get("function") or fields.get("custom")  # OpenAI
    fields = fields if inner is None else _fields(reader, inner)
    title = _plain(reader, fields.get("name"), 80)
    names = [name for name in ("input", "arguments", "args") if name in fields]
    return _block(reader, "call", f"calls {title}", fields[names[0]] if names else tree)


def _call(reader: StateReader, number: int, tree: Any) -> Call:
    fields = _fields(reader, tree)
    failed = fields.get("error") is not None
    seconds = fields.get("seconds")
    outcome = fields.get("error") if failed else fields.get("result")
    return Call(
        number,
        _plain(reader, fields.get("tool"), 80) or "?",
        _plain(reader, fields.get("task"), 80),
        _block(reader, "data", "", fields.get("arguments", tree)),
        _block(reader, "data", "error" if failed else "result", outcome),
        failed,
        seconds if type(seconds) in (int, float) else None,
        _plain(reader, fields.get("effect"), 40),
        fields.get("replayed") is True,
    )


def _fields(reader: StateReader, tree: Any) -> dict[str, Any]:
    shape = reader.shape(tree)
    return dict(reader.members(shape)) if shape.kind == MAP else {}


def _plain(reader: StateReader, tree: Any, most: int) -> str:
    if tree is None:
        return ""
    return prose(render(reader, tree, most)[0], most)


def _block(reader: StateReader, kind: str, title: str, tree: Any) -> Block:
    text, is_whole = render(reader, tree)
    return Block(kind, title, text, is_whole)
