"""A conversation is sent straight from a Log by the client libraries of model APIs."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from agent_checkpoint import Log

ANTHROPIC = [
    {"role": "user", "content": "What is in a.txt?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": ["a.txt"]}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [{"type": "text", "text": "tea"}],
                "cache_control": {"type": "ephemeral"},
            }
        ],
    },
]
OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is in a.txt?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "tea"},
]
ANSWERS: "dict[str, dict[str, Any]]" = {
    "/v1/messages": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "test",
        "content": [{"type": "text", "text": "Tea."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "/v1/chat/completions": {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "test",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Tea."},
            }
        ],
    },
}


class Server:
    """Answers each request with the scripted reply for its path, and records its body."""

    def __init__(self) -> None:
        requests: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = json.dumps(ANSWERS[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.requests = requests
        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server() -> "Iterator[Server]":
    server = Server()
    yield server
    server.close()


def test_anthropic_sends_a_log(server: Server) -> None:
    anthropic = pytest.importorskip("anthropic")
    log: Log[Any] = Log(ANTHROPIC)
    with anthropic.Anthropic(api_key="test", base_url=server.url, max_retries=0) as client:
        for messages in (log, list(log), log[:], log[-3:]):
            reply = client.messages.create(model="test", max_tokens=9, messages=messages)
            assert reply.content[0].text == "Tea."
    assert [request["messages"] for request in server.requests] == [ANTHROPIC] * 4
    assert log == ANTHROPIC
    log.append({"role": "assistant", "content": reply.content})
    assert log[-1]["content"][0].text == "Tea."


def test_openai_sends_a_log(server: Server) -> None:
    openai = pytest.importorskip("openai")
    log: Log[Any] = Log(OPENAI)
    with openai.OpenAI(api_key="test", base_url=server.url + "/v1", max_retries=0) as client:
        for messages in (log, list(log), log[:], log[-4:]):
            reply = client.chat.completions.create(model="test", messages=messages)
            assert reply.choices[0].message.content == "Tea."
    assert [request["messages"] for request in server.requests] == [OPENAI] * 4
    log.append(reply.choices[0].message)
    assert log[-1].content == "Tea."
