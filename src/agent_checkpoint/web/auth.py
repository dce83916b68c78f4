"""Who may ask for what. Owns the tokens, the cookie, the check of every request, and the headers.

Other pages in the same browser can send requests here, and other programs on this machine can
reach the port: neither knows a token. A name that somebody points at this address is no host of
ours. What changes something needs a form that this page has made.

Browsers send cookies to every port of a host. So all pages of a run are below a path that nobody
can guess, and the cookie is for that path: another server on the host is never sent it.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SHORTEST_TOKEN = 16
LARGEST_BODY = 2_000_000
LARGEST_LOGIN = 10_000
COOKIE = "agent_checkpoint"
RUN = "Agent-Checkpoint-Run"
"""The header by which an open page knows who answers."""
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to know them, not to listen there
_STRANGER = """<!DOCTYPE html><meta charset="utf-8"><title>agent-checkpoint</title>
<h1>agent-checkpoint</h1>
<p>{why}</p>
<p>Each address works once, in one browser. To get a new one, run <code>agent-checkpoint ui</code>
again.</p>{form}
"""
_LOGIN = """
<form method="post" action="/"><p><label>Token
<input type="password" name="token" autocomplete="current-password"></label>
<button>Open</button></p></form>"""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: by that a browser would hide the origin of our own forms, too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guard:
    """The secrets of one server, and what it lets through."""

    def __init__(
        self,
        token: str | None = None,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        port: int,
        public_url: str | None = None,
    ) -> None:
        """Take a token that people choose to enter, if there is one.

        Args:
            token: what lets a person in any number of times, entered in a form.
            hosts: the addresses that are listened at, and the name that they were asked for by.
            port: the port there.
            public_url: where a server in front of this one is reached, such as `https://name`.

        Raises:
            InvalidInputError: the token is too short, an address that others reach has none, or the
                public one is no address.
        """
        open_to_others = [host for host in hosts if not is_loopback(host)]
        if token is None and open_to_others:
            raise InvalidInputError(
                f"{open_to_others[0]} can be reached from other machines: set a token of at least "
                f"{SHORTEST_TOKEN} characters with AGENT_CHECKPOINT_TOKEN or --token, or listen on "
                "127.0.0.1."
            )
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise InvalidInputError(
                f"The token is too short: use at least {SHORTEST_TOKEN} characters."
            )
        self._chosen = token
        self._hosts = frozenset(host.strip("[]").lower() for host in hosts)
        self._port = port
        self.public = None if public_url is None else _origin(public_url)
        """The origin of the page as others see it, if there is a server in front."""
        self.base = f"/{secrets.token_urlsafe(24)}/"
        """The path of all pages of this run."""
        self.run = secrets.token_urlsafe(16)
        """By what an open page knows this run; it is in answers and never in a request."""
        self._invitations: set[str] = set()
        self._session = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        """What every form has in it."""

    def invite(self) -> str:
        """Return a new token, which lets one browser in, once."""
        token = secrets.token_urlsafe(32)
        self._invitations.add(token)
        return token

    def middleware(self, app: App) -> App:
        """Return an application that is asked only what may be asked."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await self._http(app, scope, receive, _with_headers(send, HEADERS))
            # Nothing else is served: a web socket is closed by the server.

        return guarded

    async def _http(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            await _answer(send, 405, "Method not allowed.")
        elif not self._is_public(headers) and not self._is_our_host(headers.get("host", "")):
            await _answer(send, 421, "Unknown host name: this page is served under another one.")
        elif not self._is_our_origin(scope, headers, needed=method == "POST"):
            await _answer(send, 403, "Cross-origin request refused.")
        elif method == "POST" and scope["path"] == "/":
            await self._log_in(receive, send, headers)
        elif method == "GET" and (token := _token_in(scope)) is not None:
            await self._enter(send, scope, headers, token)
        elif not self._knows_us(headers) or not scope["path"].startswith(self.base):
            await self._stranger(send, "Open the address that `agent-checkpoint ui` printed.")
        else:
            path = scope["path"][len(self.base) - 1 :]
            below = {**scope, "path": path, "raw_path": quote(path).encode()}
            await _watched(app, below, receive, _with_headers(send, {RUN: self.run}))

    async def _enter(
        self, send: Send, scope: Scope, headers: Mapping[str, str], token: str
    ) -> None:
        """Exchange a token of an address for the cookie, once. Who has that needs no other."""
        place = _without_token(scope)
        if self._knows_us(headers):
            await _answer(send, 303, "", location=place)
        elif token in self._invitations and scope["path"].startswith(self.base):
            self._invitations.remove(token)
            await _entered(send, headers, place, self._cookie(headers))
        else:
            await self._stranger(send, "This address was already used, or belongs to another run.")

    async def _log_in(self, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        """Exchange the chosen token, entered in the form of a stranger's page, for the cookie."""
        body, is_more = b"", True
        while is_more and len(body) < LARGEST_LOGIN:
            message = await receive()
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
        said = dict(parse_qsl(body.decode("latin-1"))).get("token", "")
        if self._chosen is not None and same(said, self._chosen):
            cookie = {"set-cookie": self._cookie(headers)}
            await _answer(send, 303, "", location=self.base, **cookie)
        else:
            await self._stranger(send, "Wrong token.")

    async def _stranger(self, send: Send, why: str) -> None:
        page = _STRANGER.format(why=escape(why), form="" if self._chosen is None else _LOGIN)
        await _answer(send, 401, page, **{"content-type": "text/html; charset=utf-8"})

    def _cookie(self, headers: Mapping[str, str]) -> str:
        found = f"{COOKIE}={self._session}; Path={self.base}; HttpOnly; SameSite=Strict"
        is_secure = self._is_public(headers) and str(self.public).startswith("https:")
        return found + ("; Secure" if is_secure else "")

    def _is_public(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request came by way of the server in front."""
        return self.public is not None and self.public in (
            f"https://{_without_usual_port(headers.get('host', ''), '443')}",
            f"http://{_without_usual_port(headers.get('host', ''), '80')}",
        )

    def _is_our_host(self, said: str) -> bool:
        name, colon, port = said.rpartition(":")
        if not colon or port != str(self._port):
            # The usual port is left out by browsers.
            name = said
            if self._port not in (80, 443):
                return False
        name = name.strip("[]").lower()
        if self._hosts & ANY_ADDRESS:
            # An address cannot be pointed elsewhere by somebody; a name can, but for our own.
            return _is_address(name) or name == socket.gethostname().lower()
        return name in self._hosts

    def _is_our_origin(self, scope: Scope, headers: Mapping[str, str], *, needed: bool) -> bool:
        origin = headers.get("origin")
        if origin is None:
            return not needed
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        if self._is_public(headers):
            return origin == self.public
        return origin == f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"

    def _knows_us(self, headers: Mapping[str, str]) -> bool:
        for piece in headers.get("cookie", "").split(";"):
            name, _, value = piece.strip().partition("=")
            if name == COOKIE and same(value, self._session):
                return True
        return False


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def same(said: str, right: str) -> bool:
    """Tell whether a secret is the right one, in the same time for all wrong ones."""
    return hmac.compare_digest(said.encode("utf-8", "replace"), right.encode())


def _origin(url: str) -> str:
    """Return the origin of an address, as browsers write it. Raises InvalidInputError."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        found, port = urlsplit(""), None
    name = (found.hostname or "").lower()
    is_more = found.path not in ("", "/") or found.query or found.fragment or found.username
    if found.scheme not in ("http", "https") or not name or is_more or not name.isascii():
        raise InvalidInputError(
            f"{short_repr(url)} is not an origin such as https://name or https://name:8443."
        )
    name = f"[{name}]" if ":" in name else name
    usual = {"http": 80, "https": 443}[found.scheme]
    return (
        f"{found.scheme}://{name}" if port in (None, usual) else f"{found.scheme}://{name}:{port}"
    )


def _without_usual_port(host: str, port: str) -> str:
    name, colon, said = host.lower().rpartition(":")
    return name if colon and said == port else host.lower()


def _token_in(scope: Scope) -> str | None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    return next((value for name, value in pairs if name == "token"), None)


def _without_token(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    rest = [(name, value) for name, value in pairs if name != "token"]
    path = "/" + quote(scope["path"]).lstrip("/")
    return f"{path}?{urlencode(rest)}" if rest else path


async def _entered(send: Send, headers: Mapping[str, str], place: str, cookie: str) -> None:
    """Send who has shown a token on, with the cookie and without the token."""
    said = {"set-cookie": cookie, "referrer-policy": "no-referrer"}
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        await _answer(send, 303, "", location=place, **said)
        return
    # Who comes from a link elsewhere shows no cookie on the way: it is to be asked for from here.
    page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(place)}">'
    page += "<title>agent-checkpoint</title>"
    await _answer(send, 200, page, **{"content-type": "text/html; charset=utf-8", **said})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        # Twice is not once: whatever is checked must be all that there is.
        found[key] = (
            f"{found[key]}, {value.decode('latin-1')}" if key in found else value.decode("latin-1")
        )
    return found


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            said = [(name, value) for name, value in message.get("headers", [])]
            there = {name.lower() for name, _ in said}
            said += [
                (name.lower().encode(), value.encode())
                for name, value in headers.items()
                if name.lower().encode() not in there
            ]
            message = {**message, "headers": said}
        await send(message)

    return sending


async def _answer(send: Send, status: int, words: str, **headers: str) -> None:
    said = {"content-type": "text/plain; charset=utf-8", **headers}
    rows = [(name.encode(), value.encode("latin-1", "replace")) for name, value in said.items()]
    await send({"type": "http.response.start", "status": status, "headers": rows})
    await send({"type": "http.response.body", "body": words.encode()})


async def _watched(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the application answer. What fails while it answers is told to who runs the server."""
    try:
        await app(scope, receive, send)
    except Exception as error:
        sys.stderr.write(f"agent-checkpoint: {fault(error)}\n")
        raise ConnectionAbortedError from None  # nothing more can be said to who asked


def fault(error: BaseException) -> str:
    """Return what failed and where, without any value."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "?" if place is None else f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    return f"{type(error).__name__} at {where}"
