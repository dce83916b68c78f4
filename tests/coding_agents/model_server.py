"""A scripted model on loopback, in the protocols of Anthropic, OpenAI (Responses) and Google.

It answers requests with tools from a script, in order, and records the conversation that each of
them carried. Requests without tools, such as those for a title, get a fixed answer.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, NamedTuple, Union


class Ask(NamedTuple):
    """One tool call of the model."""

    tool: str
    given: "dict[str, Any]"


Reply = tuple[Union[str, Ask], ...]
"""One answer of the model: texts and tool calls."""
Said = tuple[str, ...]
"""One item of a conversation: ("user", text), ("model", text), ("call", tool), ("result", text)."""

SUMMARY = "the summary of all that was said"
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_ADDED = re.compile(r"^\s*<(system-reminder|environment_context|session_context|permissions)")


class ModelServer(ThreadingHTTPServer):
    """The model: its script, and what it heard."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Reply] = []
        self.heard: list[list[Said]] = []
        self.raw: list[dict[str, Any]] = []
        self.others: list[tuple[str, Any]] = []
        self.made = 0
        self.lock = Lock()
        self.before_answer: Callable[[int], object] = lambda number: None
        """Called with the number of each request with tools, from 0 on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, dialect: str, request: "dict[str, Any]") -> "list[dict[str, Any]]":
        """Return the items of the answer, each with an id of its own."""
        with self.lock:
            reply: Reply = (SUMMARY,)
            if request.get("tools") and not _is_beside_the_conversation(request):
                self.before_answer(len(self.heard))
                self.heard.append(HEARD[dialect](request))
                self.raw.append(request)
                reply = self.script.pop(0) if self.script else ("done",)
            else:
                self.others.append((dialect, request))
            found = []
            for item in reply:
                self.made += 1
                found.append({"id": f"{self.made:04}", "item": item})
            return found


def _is_beside_the_conversation(request: "dict[str, Any]") -> bool:
    """Return whether it asks for a summary, for memories, or for what the user may type next."""
    last = json.dumps((request.get("messages") or request.get("input") or [""])[-1])
    asked = (
        *("summary of the conversation", "CONTEXT CHECKPOINT COMPACTION"),
        *("Managed memory has", "[SUGGESTION MODE:"),
    )
    return any(words in last for words in asked)


@contextmanager
def model_server() -> "Iterator[ModelServer]":
    with ModelServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Or the body of an answer waits for the delayed ACK of its head, 40 ms."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(404, b"{}", "application/json")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        try:
            request = json.loads(text or b"{}")
        except ValueError:  # compressed telemetry
            request = {}
        if path.endswith("/messages"):
            self._events(_anthropic(self.server.answer("anthropic", request)))
        elif path.endswith("/responses"):
            self._events(_openai(self.server.answer("openai", request)))
        elif path.endswith(":streamGenerateContent"):
            self._events(_google(self.server.answer("google", request)))
        elif path.endswith(":generateContent"):
            (data,) = _google(self.server.answer("google", request))
            self._send(200, json.dumps(data).encode(), "application/json")
        elif path.endswith(("/count_tokens", ":countTokens")):
            self._send(200, b'{"input_tokens": 9, "totalTokens": 9}', "application/json")
        else:
            self._send(404, b"{}", "application/json")

    def _events(self, events: "list[dict[str, Any]]") -> None:
        lines = []
        for data in events:
            name = f"event: {data['type']}\n" if "type" in data else ""
            lines.append(f"{name}data: {json.dumps(data)}\n\n")
        self._send(200, "".join(lines).encode(), "text/event-stream")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _anthropic(items: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    calls = any(isinstance(one["item"], Ask) for one in items)
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {
        "id": f"msg_{items[0]['id']}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, one in enumerate(items):
        item = one["item"]
        if isinstance(item, Ask):
            use = f"toolu_{one['id']}"
            block = {"type": "tool_use", "id": use, "name": item.tool, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(item.given)}
        else:
            block = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": item}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    why = "tool_use" if calls else "end_turn"
    stop = {"stop_reason": why, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": usage})
    return [*events, {"type": "message_stop"}]


def _openai(items: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    response = {"id": f"resp_{items[0]['id']}"}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    for one in items:
        item = one["item"]
        if isinstance(item, Ask):
            made = {
                "type": "function_call",
                "id": f"fc_{one['id']}",
                "call_id": f"call_{one['id']}",
                "name": item.tool,
                "arguments": json.dumps(item.given),
            }
            if "input" in item.given:  # a custom tool takes a text
                made.update(type="custom_tool_call", input=item.given["input"])
                del made["arguments"]
        else:
            text = {"type": "output_text", "text": item, "annotations": []}
            made = {
                "type": "message",
                "id": f"msg_{one['id']}",
                "role": "assistant",
                "content": [text],
            }
        events.append({"type": "response.output_item.done", "item": made})
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    return [*events, {"type": "response.completed", "response": {**response, "usage": usage}}]


def _google(items: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    parts = []
    for one in items:
        item = one["item"]
        if isinstance(item, Ask):
            call = {"name": item.tool, "args": item.given, "id": f"call_{one['id']}"}
            parts.append({"functionCall": call})
        else:
            parts.append({"text": item})
    content = {"role": "model", "parts": parts}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return [{"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}]


# -- what a request says --------------------------------------------------------------------------


def _heard_anthropic(request: "dict[str, Any]") -> "list[Said]":
    found: list[Said] = []
    for message in request["messages"]:
        content = message["content"]
        if message["role"] == "system":
            continue
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text":
                found += _text("model" if message["role"] == "assistant" else "user", block["text"])
            elif block["type"] == "tool_use":
                found.append(("call", block["id"], block["name"]))
            elif block["type"] == "tool_result":
                told = block.get("content") or ""
                told = told if isinstance(told, str) else "".join(b.get("text", "") for b in told)
                found.append(("result", block["tool_use_id"], _REMINDER.sub("", told).strip()))
    return found


def _heard_openai(request: "dict[str, Any]") -> "list[Said]":
    found: list[Said] = []
    for item in request["input"]:
        kind = item.get("type", "message")
        if kind == "message" and item["role"] != "developer":
            for block in item["content"]:
                found += _text("model" if item["role"] == "assistant" else "user", block["text"])
        elif kind.endswith("_output"):
            told = item["output"]
            told = told if isinstance(told, str) else "".join(b.get("text", "") for b in told)
            found.append(("result", item["call_id"], told))
        elif kind.endswith("_call"):
            found.append(("call", item["call_id"], item["name"]))
    return found


def _heard_google(request: "dict[str, Any]") -> "list[Said]":
    found: list[Said] = []
    for content in request["contents"]:
        who = "model" if content["role"] == "model" else "user"
        for part in content["parts"]:
            if "functionCall" in part:
                found.append(("call", part["functionCall"].get("id"), part["functionCall"]["name"]))
            elif "functionResponse" in part:
                told = part["functionResponse"]
                found.append(("result", told.get("id"), json.dumps(told["response"])))
            elif "text" in part:
                found += _text(who, part["text"])
    return found


def _text(who: str, text: str) -> "list[Said]":
    return [] if _ADDED.match(text) else [(who, text)]


HEARD = {"anthropic": _heard_anthropic, "openai": _heard_openai, "google": _heard_google}
