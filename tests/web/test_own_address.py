"""The token and the cookie reach nobody else: old tabs, a second listener, the browser history."""

import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.errors import StorageError
from agent_checkpoint.web.server import server as module
from agent_checkpoint.web.server.server import Server, listen
from tests.web.browsing import chromium
from tests.web.test_what_is_seen import asked

HAS_IPV6 = socket.has_ipv6


class Foreign:
    """A listener of somebody else: it notes what it is told, and answers what it likes."""

    def __init__(self, host: str, port: int, body: bytes = b"{}", kind: str = "text/html") -> None:
        self._socket = socket.create_server((host, port))
        self.port = self._socket.getsockname()[1]
        self.heard: list[str] = []
        self.was_asked = threading.Event()
        self._answer = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode() + body
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                said = b""
                while b"\r\n\r\n" not in said and (piece := connection.recv(65536)):
                    said += piece
                if said:
                    self.heard.append(said.decode("latin-1"))
                    connection.sendall(self._answer)
                    self.was_asked.set()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


class Runs:
    """Servers, each begun and ended by a test."""

    def __init__(self) -> None:
        self.manager = CheckpointManager()
        self.manager.save("key", {"n": 1})
        self._running: list[tuple[Server, threading.Thread]] = []

    def begin(self, **options: Any) -> Server:
        server = listen(self.manager, **options)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        self._running.append((server, thread))
        return server

    def end(self) -> None:
        while self._running:
            server, thread = self._running.pop()
            server.stop()
            thread.join(20)


@pytest.fixture
def runs() -> "Iterator[Runs]":
    found = Runs()
    yield found
    found.end()


def ask(address: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    connection.request(method, f"{place.path}?{place.query}", headers=headers)
    answer = connection.getresponse()
    answer.body = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def secrets_of(server: Server) -> "tuple[str, str]":
    """Enter, and return the cookie and its path."""
    pieces = (ask(server.address).getheader("Set-Cookie") or "").split("; ")
    (path,) = [piece[5:] for piece in pieces if piece.startswith("Path=")]
    return pieces[0].partition("=")[2], path


@pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")
@pytest.mark.parametrize("options", [{}, {"host": "127.0.0.1"}])
@pytest.mark.slow
def test_a_tab_of_an_ended_run_gives_nobody_the_cookie_of_the_next(
    browser: Any, runs: Runs, options: "dict[str, str]"
) -> None:
    first = runs.begin(port=0, **options)
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(first.address)
    tab.wait_for_selector(".live.on")
    runs.end()
    foreign = Foreign(urlsplit(first.address).hostname or "", first.port)
    second = runs.begin(port=0, **options)
    page = context.new_page()
    page.goto(second.address)
    page.get_by_role("heading", name="Keys and sessions").wait_for()
    tab.bring_to_front()
    assert foreign.was_asked.wait(30)
    tab.wait_for_selector("#live.ended")  # it has seen that this is another server
    heard = len(foreign.heard)
    fresh = [cookie["value"] for cookie in context.cookies(page.url)]
    assert fresh
    page.goto(f"http://{urlsplit(first.address).netloc}/")  # even a visit tells nothing
    assert len(foreign.heard) > heard
    assert not [text for text in foreign.heard for value in fresh if value in text]
    foreign.close()
    context.close()


@pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")
@pytest.mark.slow
def test_nothing_of_another_server_is_put_into_a_page_of_an_ended_run(
    browser: Any, runs: Runs
) -> None:
    runs.manager.save("tree", {"a": {"b": {"c": {"d": {"e": 1}}}}})
    server = runs.begin(port=0)
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    page.get_by_role("link", name="tree").click()
    page.locator("a.go").first.click()
    closed = page.locator("details[data-at]").first
    closed.wait_for()
    runs.end()
    foreign = Foreign(urlsplit(server.address).hostname or "", server.port, b"<p>forged</p>")
    closed.locator("summary").click()
    page.get_by_text("This value could not be loaded.").wait_for()
    assert foreign.was_asked.wait(10)
    assert "forged" not in page.content()
    foreign.close()
    context.close()


@pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")
@pytest.mark.slow
def test_no_form_is_sent_to_whoever_follows_an_ended_run(browser: Any, runs: Runs) -> None:
    asked(runs.manager, to="a secret")
    server = runs.begin(port=0)
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    page.get_by_role("link", name="Approvals").click()
    page.wait_for_selector(".live.on")
    runs.end()
    foreign = Foreign(urlsplit(server.address).hostname or "", server.port)
    page.wait_for_selector("#live.ended")
    buttons = page.locator("form[method=post] button")
    assert [button.is_enabled() for button in buttons.all()] == [False, False]
    foreign.close()
    context.close()


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="there is no chromium on this machine")
def test_a_page_at_another_port_of_the_same_host_is_not_sent_the_cookie(
    browser: Any, runs: Runs
) -> None:
    server = runs.begin(port=0)
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.address)
    page.get_by_role("heading", name="Keys and sessions").wait_for()
    foreign = Foreign(urlsplit(server.address).hostname or "", 0, b"<a href='/next'>next</a>")
    page.goto(f"http://{urlsplit(server.address).hostname}:{foreign.port}/")
    page.get_by_text("next").click()  # from a page of the same site
    page.wait_for_url("**/next")
    assert len(foreign.heard) >= 2
    assert not [text for text in foreign.heard if "cookie:" in text.lower()]
    foreign.close()
    context.close()


def test_each_run_has_an_address_of_its_own(runs: Runs) -> None:
    hosts = {urlsplit(runs.begin(port=0).address).hostname for _ in range(5)}
    if module.fresh_loopback_host() != "127.0.0.1":  # where all of 127.0.0.0/8 is this machine
        assert len(hosts) == 5
        assert "127.0.0.1" not in hosts


def test_where_there_is_only_one_loopback_address_the_path_and_port_differ(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fresh_loopback_host", lambda: "127.0.0.1")
    servers = [runs.begin(), runs.begin()]
    assert {urlsplit(one.address).hostname for one in servers} == {"127.0.0.1"}
    assert all(one.port != module.PORT for one in servers)
    found = [secrets_of(one) for one in servers]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]
    assert all(len(path) > 20 for _, path in found)


def test_a_cookie_counts_only_on_the_path_of_its_run(runs: Runs) -> None:
    server = runs.begin(port=0)
    value, path = secrets_of(server)
    base = f"http://{urlsplit(server.address).netloc}"
    cookie = f"agent_checkpoint={value}"
    assert ask(base + path, Cookie=cookie).status == 200
    for other in ("/", "/timeline?key=key", "/x" + path, path.upper(), "/static/page.js"):
        answer = ask(base + other, Cookie=cookie)
        assert answer.status == 401
        assert path not in answer.body  # type: ignore[attr-defined]


# -- what is printed is bound ----------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "127.0.0.1", None])
def test_the_printed_address_is_one_that_is_bound(runs: Runs, host: "str | None") -> None:
    options = {} if host is None else {"host": host}
    server = runs.begin(port=0, token="a token of the tests", **options)
    name = urlsplit(server.address).hostname
    assert name is not None
    socket.inet_pton(socket.AF_INET6 if ":" in name else socket.AF_INET, name)
    assert ask(server.address).status == 303


def both(host: str, port: Any, *args: Any, **options: Any) -> "list[Any]":
    kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    return [
        (socket.AF_INET6, *kind, ("::1", port or 0, 0, 0)),
        (socket.AF_INET, *kind, ("127.0.0.1", port or 0)),
    ]


def can_bind_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not can_bind_ipv6(), reason="this machine has no IPv6 loopback")
def test_every_address_of_a_name_is_bound_or_none(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.socket, "getaddrinfo", both)
    server = runs.begin(host="localhost", port=0)
    for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")):
        with pytest.raises(OSError, match="in use"):
            socket.create_server((address, server.port), family=family)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match="--port"):
            listen(runs.manager, host="localhost", port=port)
        socket.create_server(("127.0.0.1", port)).close()  # nothing is left bound


def test_an_address_that_this_machine_lacks_is_passed_over(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(host: str, port: Any, *args: Any, **options: Any) -> "list[Any]":
        kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(socket.AF_INET, *kind, (one, 0)) for one in ("203.0.113.7", "127.0.0.1")]

    monkeypatch.setattr(module.socket, "getaddrinfo", found)
    server = runs.begin(host="localhost", port=0, token="a token of the tests")
    assert urlsplit(server.address).hostname == "127.0.0.1"


# -- the token works once --------------------------------------------------------------------------


def test_the_address_of_the_history_is_worth_nothing(runs: Runs) -> None:
    server = runs.begin(key="key", port=0)
    cookie = (ask(server.address).getheader("Set-Cookie") or "").partition(";")[0]
    again = ask(server.address)
    assert again.status == 401
    assert again.getheader("Set-Cookie") is None
    assert "agent-checkpoint ui" in again.body  # type: ignore[attr-defined]
    same_browser = ask(server.address, Cookie=cookie)  # who is in already goes on
    assert same_browser.status == 303
    assert "token" not in (same_browser.getheader("Location") or "")
    assert ask(server.invite()).status == 303


def test_to_ask_for_the_head_uses_nothing_up(runs: Runs) -> None:
    server = runs.begin(port=0)
    assert ask(server.address, "HEAD").status == 401
    assert ask(server.address).status == 303


def test_a_chosen_token_is_in_no_address_and_can_be_entered_again(runs: Runs) -> None:
    token = "a token of the tests"
    server = runs.begin(port=0, token=token)
    place = urlsplit(server.address)
    base = f"http://{place.netloc}"
    assert "token%20of" not in server.address
    assert ask(f"{base}/?token={token.replace(' ', '+')}").status == 401
    assert 'name="token"' in ask(base + "/").body  # type: ignore[attr-defined]
    for _ in range(2):
        for said, status in ((token, 303), (token + "x", 401)):
            connection = http.client.HTTPConnection(place.netloc, timeout=20)
            kind = "application/x-www-form-urlencoded"
            headers = {"Origin": base, "Content-Type": kind}
            connection.request("POST", "/", f"token={said.replace(' ', '+')}", headers)
            answer = connection.getresponse()
            assert answer.status == status
            assert bool(answer.getheader("Set-Cookie")) == (status == 303)
            connection.close()
    no_token = runs.begin(port=0)
    assert "<form" not in ask(f"http://{urlsplit(no_token.address).netloc}/").body  # type: ignore[attr-defined]
