"""Who may ask for what. Owns the token, the cookie, the check of every request, and the headers.

Other pages in the same browser can send requests here, and other programs on this machine can
reach the port: neither knows the token. A name that somebody points at this address is no host of
ours. What changes something needs a form that this page has made.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import show

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SHORTEST_TOKEN = 16
LARGEST_BODY = 2_000_000
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
        host: str = "127.0.0.1",
        port: int,
        public_url: str | None = None,
    ) -> None:
        """Take a token, or make one.

        Args:
            token: what a person has to show once; made if not given.
            host: the address that is listened at.
            port: the port there.
            public_url: where a server in front of this one is reached, such as `https://name`.

        Raises:
            InvalidInputError: the token is too short, an address that others reach has none, or the
                public one is no address.
        """
        if token is None and not is_loopback(host):
            raise InvalidInputError(
                f"{host} can be reached from other machines: choose a token of {SHORTEST_TOKEN} "
                "characters or more, in AGENT_CHECKPOINT_TOKEN or by --token, or listen at "
                "127.0.0.1."
            )
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise InvalidInputError(f"A token has {SHORTEST_TOKEN} characters or more.")
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.host, self.port = host, port
        self.public = None if public_url is None else _origin(public_url)
        """The origin of the page as others see it, if there is a server in front."""
        self.cookie = f"agent_checkpoint_{port}"
        self._session = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        """What every form has in it."""

    def middleware(self, app: App) -> App:
        """Return an application that is asked only what may be asked."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await self._http(app, scope, receive, _with_headers(send))
            # Nothing else is served: a web socket is closed by the server.

        return guarded

    async def _http(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            await _answer(send, 405, "There is no such thing to do here.")
        elif not self._is_public(headers) and not self._is_our_host(headers.get("host", "")):
            await _answer(send, 421, "This is not the host that this page is served by.")
        elif not self._is_our_origin(scope, headers, needed=method == "POST"):
            await _answer(send, 403, "This was asked by another page.")
        elif method != "POST" and (place := self._entrance(scope)) is not None:
            fresh = f"{self.cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
            if self._is_public(headers) and str(self.public).startswith("https:"):
                fresh += "; Secure"
            await _entered(send, headers, place, fresh)
        elif not self._knows_us(headers):
            await _answer(
                send,
                401,
                "Open the address that `agent-checkpoint ui` has printed: it has the token in it.",
            )
        else:
            await _watched(app, scope, receive, send)

    def _is_public(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request came by way of the server in front."""
        return self.public is not None and self.public in (
            f"https://{_without_usual_port(headers.get('host', ''), '443')}",
            f"http://{_without_usual_port(headers.get('host', ''), '80')}",
        )

    def _is_our_host(self, said: str) -> bool:
        name, colon, port = said.rpartition(":")
        if not colon or port != str(self.port):
            # The usual port is left out by browsers.
            name = said
            if self.port not in (80, 443):
                return False
        name = name.strip("[]").lower()
        if name == "localhost":
            return True
        if is_loopback(self.host):
            return is_loopback(name) and _is_address(name)
        # An address cannot be pointed elsewhere by somebody; a name can, but for our own.
        return _is_address(name) or name in (self.host.lower(), socket.gethostname().lower())

    def _is_our_origin(self, scope: Scope, headers: Mapping[str, str], *, needed: bool) -> bool:
        origin = headers.get("origin")
        if origin is None:
            return not needed
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        if self._is_public(headers):
            return origin == self.public
        return origin == f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"

    def _entrance(self, scope: Scope) -> str | None:
        """Return where to go on, if somebody shows the token."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        said = [value for name, value in pairs if name == "token"]
        if len(said) != 1 or not same(said[0], self.token):
            return None
        rest = [(name, value) for name, value in pairs if name != "token"]
        path = "/" + quote(scope["path"]).lstrip("/")
        return f"{path}?{urlencode(rest)}" if rest else path

    def _knows_us(self, headers: Mapping[str, str]) -> bool:
        for piece in headers.get("cookie", "").split(";"):
            name, _, value = piece.strip().partition("=")
            if name == self.cookie and same(value, self._session):
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
            f"{show(url)} is no address such as https://name or https://name:8443."
        )
    name = f"[{name}]" if ":" in name else name
    usual = {"http": 80, "https": 443}[found.scheme]
    return (
        f"{found.scheme}://{name}" if port in (None, usual) else f"{found.scheme}://{name}:{port}"
    )


def _without_usual_port(host: str, port: str) -> str:
    name, colon, said = host.lower().rpartition(":")
    return name if colon and said == port else host.lower()


async def _entered(send: Send, headers: Mapping[str, str], place: str, cookie: str) -> None:
    """Send who has shown the token on, with the cookie and without the token."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        await _answer(send, 303, "", location=place, **{"set-cookie": cookie})
        return
    # Who comes from a link elsewhere shows no cookie on the way: it is to be asked for from here.
    page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(place)}">'
    page += "<title>agent-checkpoint</title>"
    kind = "text/html; charset=utf-8"
    await _answer(send, 200, page, **{"content-type": kind, "set-cookie": cookie})


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


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            said = [(name, value) for name, value in message.get("headers", [])]
            there = {name.lower() for name, _ in said}
            said += [
                (name.lower().encode(), value.encode())
                for name, value in HEADERS.items()
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
