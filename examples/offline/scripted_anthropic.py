"""A scripted model behind the streaming API of Anthropic, on this computer, without a network.

`serve(turns)` starts it. A turn is a list of tool calls, `(name, input)`; the model makes the calls
of the first turn whose results are not in the conversation, and then says `LAST`.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from uuid import uuid4

LAST = "All done."


class ScriptedAnthropic(ThreadingHTTPServer):
    """The server. `requests` are the bodies of the requests that it got, in order."""

    daemon_threads = True

    def __init__(self, turns):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turns = turns
        self.requests = []

    @property
    def environment(self):
        """The environment of a CLI that talks to this server, and to nothing else."""
        return {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.server_address[1]}",
            "ANTHROPIC_API_KEY": "none",
            "NO_PROXY": "127.0.0.1",
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def reply(self, body):
        """Return the content blocks of the reply to a request."""
        if not body.get("tools"):  # a question of the CLI itself, such as for a title
            return [{"type": "text", "text": "ok"}]
        self.requests.append(body)
        done = results(body["messages"])
        for turn in self.turns:
            if len(done) < len(turn):
                return [_call(name, given) for name, given in turn]
            done = done[len(turn) :]
        return [{"type": "text", "text": LAST}]


def results(messages):
    """Return the tool results of a conversation, in order."""
    contents = [message["content"] for message in messages]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block for block in blocks if block["type"] == "tool_result"]


def serve(turns, kind=ScriptedAnthropic):
    """Start the server in a thread, and return it."""
    server = kind(turns)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def _call(name, given):
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex}", "name": name, "input": given}


def _events(body, blocks):
    """Yield the events of a streamed reply."""
    message = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 1},
    }
    yield "message_start", {"message": message}
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        yield "content_block_start", {"index": index, "content_block": empty}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    why = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    end = {"stop_reason": why, "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": {"output_tokens": 7}}
    yield "message_stop", {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        events = _events(body, self.server.reply(body))
        lines = [f"event: {n}\ndata: {json.dumps({'type': n, **data})}\n\n" for n, data in events]
        self._send("".join(lines).encode())

    def do_HEAD(self):
        self._send(b"")

    def _send(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass
