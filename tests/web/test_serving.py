"""The command `agent-checkpoint ui`, and the server behind it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError
from agent_checkpoint.cli.main import main
from agent_checkpoint.errors import StorageError
from agent_checkpoint.web.serving import Server, listen
from tests.web.conftest import Place


@pytest.fixture
def served() -> "Iterator[tuple[CheckpointManager, Server]]":
    manager = CheckpointManager()
    manager.save("key", {"n": 1})
    server = listen(manager, "key", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield manager, server
    server.stop()
    thread.join(20)
    assert not thread.is_alive()


def connect(server: Server) -> "tuple[http.client.HTTPConnection, str]":
    """Open the address as a browser does; return a connection and the cookie."""
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection(place.netloc, timeout=20)
    for _ in range(100):
        try:
            connection.connect()
            break
        except OSError:
            time.sleep(0.05)
    connection.request("GET", f"{place.path}?{place.query}")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 303
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    return connection, cookie


def test_the_address_opens_the_page(served: Any) -> None:
    connection, cookie = connect(served[1])
    connection.request("GET", "/timeline?key=key", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    assert b"1 checkpoint" in answer.read()
    assert answer.getheader("Server") is None
    connection.close()


def test_news_are_told_while_the_page_is_open(served: Any) -> None:
    manager, server = served
    connection, cookie = connect(server)
    connection.request("GET", "/events?key=key", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.getheader("Content-Type", "").startswith("text/event-stream")

    def next_data() -> str:
        while True:
            line = answer.readline().decode()
            if line.startswith("data: "):
                return line

    first = next_data()
    manager.save("key", {"n": 2})
    second = next_data()
    assert second != first
    manager.fork("key", "other")
    assert next_data() != second
    connection.close()


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInputError, match="--token"):
        listen(CheckpointManager(), host="0.0.0.0", port=0)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match="--port"):
            listen(CheckpointManager(), port=port)
    with pytest.raises(InvalidInputError, match="65535"):
        listen(CheckpointManager(), port=70_000)
    with pytest.raises(InvalidInputError, match="no address"):
        listen(CheckpointManager(), host="no.such.host.invalid", token="x" * 20)


def test_the_command_serves_until_it_is_interrupted(shared: Place) -> None:
    command = [sys.executable, "-m", "agent_checkpoint", "--store", str(shared.store), "ui"]
    process = subprocess.Popen(
        [*command, "fix-login-timeout", "--no-browser", "--port", "0", "--read-only"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(
            r"http://127\.0\.0\.1:\d+/timeline\?key=fix-login-timeout&token=[\w-]{40,}", address
        )
        connection, cookie = connect(Server(address, lambda: None, lambda: None))
        connection.request("GET", "/", headers={"Cookie": cookie})
        assert b"read-only" in connection.getresponse().read()
        connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


def test_the_command_refuses_in_a_sentence(
    capsys: pytest.CaptureFixture[str], shared: Place
) -> None:
    store = str(shared.store)
    assert main(["--store", store, "ui", "--host", "0.0.0.0", "--no-browser"]) == 2
    assert "--token" in capsys.readouterr().err
    assert main(["--store", store, "ui", "no-such-key", "--no-browser"]) == 3


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shared: Place
) -> None:
    for name in [name for name in sys.modules if name.startswith("agent_checkpoint.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--store", str(shared.store), "ui", "--no-browser"]) == 2
    assert "pip install 'agent-checkpoint[web]'" in capsys.readouterr().err
