"""Messages, calls and tasks of a checkpoint. Owns how their usual forms are told from others.

A message can be anything. What looks like one of a model's interface is shown as such: a role,
texts, calls of tools and their results. All else is shown as the value that it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agent_checkpoint.web.page_text import on_one_line
from agent_checkpoint.web.state.lazy_state import LIST, MAP, WORDS, Peek
from agent_checkpoint.web.state.outline import written

PAGE = 50
"""Messages or calls on a page."""
_MOST_BLOCKS = 50


class Block(NamedTuple):
    """A piece of a message."""

    kind: str
    """`text`, `data`, `call` or `result`."""
    title: str
    text: str
    is_whole: bool = True


class Message(NamedTuple):
    """One item of a conversation."""

    number: int
    role: str
    blocks: list[Block]


class Call(NamedTuple):
    """One call of a tool."""

    number: int
    tool: str
    task: str
    arguments: Block
    result: Block
    failed: bool
    seconds: float | None
    effect: str
    replayed: bool


class Some(NamedTuple):
    """A page of items, the newest at its end."""

    rows: list[Any]
    start: int
    total: int


def messages(peek: Peek, tree: Any, end: int | None = None) -> Some:
    """Return a page of messages that ends before a number. Raises IntegrityError, TooLarge."""
    return _some(peek, tree, end, _message)


def calls(peek: Peek, tree: Any, end: int | None = None) -> Some:
    """Return a page of calls that ends before a number. Raises IntegrityError, TooLarge."""
    return _some(peek, tree, end, _call)


def pieces(peek: Peek, tree: Any, *, is_call: bool) -> list[tuple[str, str]]:
    """Return what is read of a message or call, each with who or what it is from."""
    if is_call:
        call = _call(peek, 0, tree)
        return [(call.tool, call.arguments.text), (call.tool, call.result.text)]
    message = _message(peek, 0, tree)
    return [(message.role, block.text) for block in message.blocks]


def tasks(peek: Peek, tree: Any) -> list[dict[str, Any]]:
    """Return the tasks of a session. Raises IntegrityError, TooLarge."""
    shape = peek.shape(tree)
    rows = peek.members(shape).get("tasks") if shape.kind == MAP else None
    found = []
    if rows is not None and peek.shape(rows).kind == LIST:
        for row in peek.items(peek.shape(rows), 0, 1000):
            fields = _fields(peek, row)
            task: dict[str, Any] = {
                name: _plain(peek, fields.get(name), 300)
                for name in ("id", "status", "attempt", "note")
            }
            has_result = fields.get("result") is not None
            task["result"] = written(peek, fields["result"], 2000)[0] if has_result else ""
            found.append(task)
    return found


def is_log(peek: Peek, tree: Any) -> bool:
    """Tell whether a part is a list of messages or the like."""
    return peek.shape(tree).kind == LIST


def _some(peek: Peek, tree: Any, end: int | None, make: Any) -> Some:
    shape = peek.shape(tree)
    if shape.kind != LIST:
        return Some([make(peek, 0, tree)], 0, 1)
    total = peek.size(shape)
    last = total if end is None else max(0, min(end, total))
    start = max(0, last - PAGE)
    items = peek.items(shape, start, last - start)
    rows = [make(peek, start + place, item) for place, item in enumerate(items)]
    return Some(rows, start, total)


def _message(peek: Peek, number: int, tree: Any) -> Message:
    fields = _fields(peek, tree)
    role = _plain(peek, fields.pop("role", None), 40)
    if not role or "content" not in fields:
        return Message(number, role or "", [_block(peek, "data", "", tree)])
    blocks = _content(peek, fields.pop("content"))
    for name in ("tool_calls", "function_call"):
        if fields.get(name) is not None:
            blocks.append(_block(peek, "call", name.replace("_", " "), fields.pop(name)))
    rest = {name: item for name, item in fields.items() if item is not None}
    if rest:
        blocks.append(_block(peek, "data", "also", rest))
    return Message(number, role, blocks)


def _content(peek: Peek, tree: Any) -> list[Block]:
    shape = peek.shape(tree)
    if shape.kind != LIST:
        return [_block(peek, "text" if shape.kind == WORDS else "data", "", tree)]
    return [_piece(peek, item) for item in peek.items(shape, 0, _MOST_BLOCKS)]


def _piece(peek: Peek, tree: Any) -> Block:
    fields = _fields(peek, tree)
    kind = _plain(peek, fields.get("type"), 40)
    if kind == "text" and "text" in fields:
        return _block(peek, "text", "", fields["text"])
    if kind == "tool_use":
        title = _plain(peek, fields.get("name"), 80)
        return _block(peek, "call", f"calls {title}", fields.get("input"))
    if kind == "tool_result":
        return _block(peek, "result", "result", fields.get("content"))
    is_text = peek.shape(tree).kind == WORDS
    return _block(peek, "text" if is_text else "data", kind, tree)


def _call(peek: Peek, number: int, tree: Any) -> Call:
    fields = _fields(peek, tree)
    failed = fields.get("error") is not None
    seconds = fields.get("seconds")
    outcome = fields.get("error") if failed else fields.get("result")
    return Call(
        number,
        _plain(peek, fields.get("tool"), 80) or "?",
        _plain(peek, fields.get("task"), 80),
        _block(peek, "data", "", fields.get("arguments", tree)),
        _block(peek, "data", "error" if failed else "result", outcome),
        failed,
        seconds if type(seconds) in (int, float) else None,
        _plain(peek, fields.get("effect"), 40),
        fields.get("replayed") is True,
    )


def _fields(peek: Peek, tree: Any) -> dict[str, Any]:
    shape = peek.shape(tree)
    return dict(peek.members(shape)) if shape.kind == MAP else {}


def _plain(peek: Peek, tree: Any, most: int) -> str:
    if tree is None:
        return ""
    return on_one_line(written(peek, tree, most)[0], most)


def _block(peek: Peek, kind: str, title: str, tree: Any) -> Block:
    text, is_whole = written(peek, tree)
    return Block(kind, title, text, is_whole)
