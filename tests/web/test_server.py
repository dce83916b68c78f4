"""The command `agent-checkpoint ui`, and the server behind it."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError
from agent_checkpoint.cli.main import main
from agent_checkpoint.errors import StorageError
from agent_checkpoint.web import app
from agent_checkpoint.web.server import connections
from agent_checkpoint.web.server.server import Server, listen, open_in_browser
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


class Connection(http.client.HTTPConnection):
    """Asks for pages below the path of a run."""

    base = "/"

    def request(self, method: str, url: str, *args: Any, **options: Any) -> None:
        below = url if url.startswith(self.base) else self.base + url.removeprefix("/")
        super().request(method, below, *args, **options)


def connect(server: Server) -> "tuple[http.client.HTTPConnection, str]":
    """Open the address as a browser does; return a connection and the cookie."""
    place = urlsplit(server.address)
    connection = Connection(place.netloc, timeout=20)
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
    connection.base = place.path[: place.path.rindex("/") + 1]
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

    def version(key: str = "key") -> str:
        connection.request("GET", f"/updates?key={key}", headers={"Cookie": cookie})
        return str(json.loads(connection.getresponse().read())["version"])

    seen = [version()]
    assert version() == seen[0]
    manager.save("key", {"n": 2})
    seen.append(version())
    manager.fork("key", "other")
    seen.append(version())
    manager.delete("key", "key@1")
    seen.append(version())
    assert len(set(seen)) == 4
    assert version("") == version("")
    connection.close()


def test_small_answers_are_sent_at_once(served: Any) -> None:
    connection, cookie = connect(served[1])
    seconds = []
    for _ in range(20):
        started = time.monotonic()
        connection.request("GET", "/static/early.js", headers={"Cookie": cookie})
        connection.getresponse().read()
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 0.04  # each takes 40 ms if the kernel waits for more to send
    connection.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %b\r\nOrigin: http://%b\r\nContent-Length: 99\r\n\r\ntoken=",
    ],
)
def test_connections_that_say_nothing_keep_nobody_out(served: Any, said: bytes) -> None:
    connection, cookie = connect(served[1])
    place = urlsplit(served[1].address)
    said = said.replace(b"%b", place.netloc.encode())
    idle = [socket.create_connection((place.hostname, place.port)) for _ in range(230)]
    for one in idle:
        one.sendall(said)
    time.sleep(0.5)
    connection.close()
    connection.request("GET", "/", headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read()
    connection.close()
    for one in idle:
        one.close()


def test_a_request_that_never_ends_is_cut_off(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS", 0.3)
    place = urlsplit(served[1].address)
    connect(served[1])[0].close()
    with socket.create_connection((place.hostname, place.port), timeout=5) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        assert slow.recv(100) == b""
    with socket.create_connection((place.hostname, place.port), timeout=5) as slow:
        slow.sendall(f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert slow.recv(1000).startswith(b"HTTP/1.1 401")
        slow.sendall(b"GET / HT")  # the second one on it never ends
        while slow.recv(1000):
            pass
    with socket.create_connection((place.hostname, place.port), timeout=5) as slow:
        login = "POST / HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Length: 99\r\n\r\n"
        slow.sendall(login.format(place.netloc).encode())
        assert slow.recv(100) == b""


def test_a_server_ends_although_a_page_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        began.set()
        go_on.wait(30)

    monkeypatch.setitem(app.GET_ROUTES, "/approvals", slow)
    server = listen(CheckpointManager(), port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    connection, cookie = connect(server)
    connection.request("GET", "/approvals", headers={"Cookie": cookie})
    assert began.wait(10)
    server.stop()
    thread.join(5)
    assert not thread.is_alive()
    workers = [one for one in threading.enumerate() if one.name == "agent-checkpoint page"]
    assert workers
    assert all(one.daemon for one in workers)  # the process does not wait for them either
    go_on.set()
    connection.close()


def test_a_server_in_front_is_let_through(tmp_path: Path) -> None:
    server = listen(CheckpointManager(), port=0, public_url="https://Timeline.Example.org/")
    place = urlsplit(server.address)
    assert f"{place.scheme}://{place.netloc}" == "https://timeline.example.org"
    thread = threading.Thread(target=server.run)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def ask(method: str, page: str, host: str, **headers: str) -> Any:
        connection.request(method, page, headers={"Host": host, **headers})
        answer = connection.getresponse()
        answer.read()
        return answer

    try:
        for host in ("timeline.example.org", "timeline.example.org:443"):
            page = urlsplit(server.invite())
            answer = ask("GET", f"{page.path}?{page.query}", host)
            assert answer.status == 303
            assert "; Secure" in answer.getheader("Set-Cookie")
        cookie = answer.getheader("Set-Cookie").partition(";")[0]
        assert ask("GET", place.path, "timeline.example.org", Cookie=cookie).status == 200
        assert ask("GET", place.path, f"127.0.0.1:{server.port}", Cookie=cookie).status == 200
        for host in ("other.example.org", "timeline.example.org:80", "timeline.example.org:8443"):
            assert ask("GET", "/", host, Cookie=cookie).status == 421
        form = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        for origin, status in (
            ("https://timeline.example.org", 403),  # let through: it lacks the token of a form
            ("http://timeline.example.org", 403),
            ("https://other.example.org", 403),
        ):
            connection.request(
                "POST",
                f"{place.path}deny",
                headers={"Host": "timeline.example.org", "Origin": origin, **form},
            )
            answer = connection.getresponse()
            assert answer.status == status
            is_through = b"This form is not from this server" in answer.read()
            assert is_through == (origin == "https://timeline.example.org")
    finally:
        connection.close()
        server.stop()
        thread.join(20)


@pytest.mark.parametrize(
    "url",
    ["name", "ftp://name", "https://", "https://name/path", "https://name:x", "https://u@name"],
)
def test_what_is_no_public_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="https://name"):
        listen(CheckpointManager(), port=0, public_url=url)


def test_who_comes_from_a_file_or_a_link_is_let_in(served: Any) -> None:
    connect(served[1])[0].close()
    place = urlsplit(served[1].invite())
    connection = http.client.HTTPConnection(place.netloc, timeout=20)
    headers = {"Sec-Fetch-Site": "cross-site"}
    connection.request("GET", f"{place.path}?{place.query}", headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200
    assert f'content="0; url={place.path}?key=key"' in text
    assert "token" not in text
    assert answer.getheader("Set-Cookie")
    connection.close()


def test_the_token_is_in_no_list_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    address = "http://127.0.0.1:1/?key=a&token=secret"
    with open_in_browser(address):
        (url,) = opened
        assert "secret" not in url
        path = Path(unquote(urlsplit(url).path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert "url=http://127.0.0.1:1/?key=a&amp;token=secret" in path.read_text()
    assert not path.parent.exists()


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidInputError, match="--token"):
        listen(CheckpointManager(), host="0.0.0.0", port=0)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match="--port"):
            listen(CheckpointManager(), host="127.0.0.1", port=port)
    with pytest.raises(StorageError, match=r"on 192\.0\.2\.1: .* Choose another --host\.$"):
        listen(CheckpointManager(), host="192.0.2.1", token="x" * 20)
    with pytest.raises(InvalidInputError, match="65535"):
        listen(CheckpointManager(), port=70_000)
    with pytest.raises(InvalidInputError, match="Cannot resolve"):
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
            r"http://127\.[\d.]+:\d+/[\w-]+/timeline\?key=fix-login-timeout&token=[\w-]{40,}",
            address,
        )
        connection, cookie = connect(Server(address, 0, lambda: None, lambda: None, str))
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
    assert main(["--store", str(shared.store), "ui", "--no-browser"]) == 1
    assert "needs the extra 'web'" in capsys.readouterr().err
