"""A scripted model behind HTTP, as Anthropic's and OpenAI's clients talk to one.

It answers by what the conversation holds, with new call ids each time. It refuses what the real API
would refuse, as `transcripts.check` says, with status 400.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

from agent_checkpoint import transcripts

STEPS: "list[list[tuple[str, dict[str, str]]]]" = [
    [
        ("append_line", {"file": "a.txt", "line": "one"}),
        ("append_line", {"file": "b.txt", "line": "two"}),
        ("announce", {"text": "two files"}),
    ],
    [("append_line", {"file": "a.txt"}), ("announce", {"text": "more"})],
    [
        ("announce", {"text": "more"}),
        ("append_line", {"file": "a.txt", "line": "three"}),
        ("no_such_tool", {}),
    ],
]
"""The tool calls of each turn; one lacks an argument, one is of a tool that does not exist."""
RESULTS = [
    ["appended to a.txt", "appended to b.txt", "announced"],
    ["Invalid arguments", "announced"],
    ["announced", "appended to a.txt", "There is no tool"],
]
FILES = {"a.txt": "one\nthree\n", "b.txt": "two\n"}
OUTBOX = ["two files", "more", "more"]
LAST = "All done."


class ScriptedModel(ThreadingHTTPServer):
    """The server. `requests` are the bodies that it got, `problems` what was wrong with them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = Lock()
        self.requests: list[dict[str, Any]] = []
        self.problems: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """What the clients need to find the server."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
        }

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request, or an error."""
        is_anthropic = path.endswith("/messages")
        provider: Any = "anthropic" if is_anthropic else "openai"
        messages = body["messages"]
        found = [str(problem) for problem in transcripts.check(messages, provider=provider)]
        told = list(_results(messages))
        expected = [text for row in RESULTS for text in row][: len(told)]
        if [not text.startswith(start) for text, start in zip(told, expected)].count(True):
            found.append(f"wrong results: {told}")
        turn = next((n for n, _ in enumerate(STEPS) if _before(n) == len(told)), len(STEPS))
        if _before(turn) != len(told):
            found.append(f"{len(told)} results are no whole turn")
        with self.lock:
            self.requests.append(body)
            self.problems += found
        if found:
            return {"type": "error", "error": {"type": "invalid_request_error", "message": found}}
        steps = STEPS[turn] if turn < len(STEPS) else []
        return _anthropic(steps) if is_anthropic else _openai(steps)


@contextmanager
def scripted_model() -> "Iterator[ScriptedModel]":
    """Start the server."""
    with ScriptedModel() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.server.answer(self.path, body)
        text = json.dumps(reply).encode()
        self.send_response(400 if "error" in reply else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass


def _before(turn: int) -> int:
    return sum(map(len, STEPS[:turn]))


def _results(messages: list[dict[str, Any]]) -> "Iterator[str]":
    for message in messages:
        if message["role"] == "tool":
            yield message["content"]
        elif message["role"] == "user" and isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result":
                    yield block["content"]


def _anthropic(steps: "list[tuple[str, dict[str, str]]]") -> dict[str, Any]:
    calls = [
        {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": name, "input": arguments}
        for name, arguments in steps
    ]
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": calls or [{"type": "text", "text": LAST}],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 11},
    }


def _openai(steps: "list[tuple[str, dict[str, str]]]") -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{uuid4().hex}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in steps
    ]
    message = {"role": "assistant", "content": None if calls else LAST, "refusal": None}
    choice = {
        "index": 0,
        "message": {**message, "tool_calls": calls} if calls else message,
        "finish_reason": "tool_calls" if calls else "stop",
        "logprobs": None,
    }
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-6",
        "choices": [choice],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }
