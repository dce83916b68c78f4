"""Authentication. Owns tokens, the session cookie, request checks and security headers.

Other sites in the same browser can send requests to the server, and other programs on this machine
can reach the port; neither has a token. The Host check prevents DNS rebinding, and the CSRF token
prevents forged forms.

Browsers send cookies to every port of a host. So all pages of a run are below an unguessable path,
and the cookie is limited to that path: another server on the host never receives it.
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

MIN_TOKEN = 16
MAX_BODY = 2_000_000
MAX_LOGIN = 10_000
COOKIE = "agent_checkpoint"
RUN = "Agent-Checkpoint-Run"
"""Response header with the run id, by which an open page recognizes its server."""
ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - to recognize them, not to listen there
_LOGIN_PAGE = """<!DOCTYPE html><meta charset="utf-8"><title>agent-checkpoint</title>
<h1>agent-checkpoint</h1>
<p>{why}</p>
<p>Each address works once, in one browser. To get a new one, run <code>agent-checkpoint ui</code>
again.</p>{form}
"""
_LOGIN_FORM = """
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
    # Not `no-referrer`, which would also hide the origin of this server's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Auth:
    """The secrets of one server run; checks every request."""

    def __init__(
        self,
        token: str | None = None,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        port: int,
        public_url: str | None = None,
    ) -> None:
        """Create the secrets of a run.

        Args:
            token: reusable token for the login form.
            hosts: the addresses on which the server listens, and the configured name.
            port: the port of these addresses.
            public_url: origin of a reverse proxy in front of the server, such as `https://name`.

        Raises:
            InvalidInputError: the token is too short, there is no token although other machines can
                connect, or the public URL is not an origin.
        """
        open_to_others = [host for host in hosts if not is_loopback(host)]
        if token is None and open_to_others:
            raise InvalidInputError(
                f"{open_to_others[0]} is reachable from other machines. Set a token of at "
                f"least {MIN_TOKEN} characters with AGENT_CHECKPOINT_TOKEN or --token, or "
                "listen on 127.0.0.1."
            )
        if token is not None and len(token) < MIN_TOKEN:
            raise InvalidInputError(f"The token is too short: use at least {MIN_TOKEN} characters.")
        self._token = token
        self._hosts = frozenset(host.strip("[]").lower() for host in hosts)
        self._port = port
        self.public = None if public_url is None else _origin(public_url)
        """The public origin, if there is a reverse proxy."""
        self.base = f"/{secrets.token_urlsafe(24)}/"
        """The unguessable path prefix of all pages of this run."""
        self.run = secrets.token_urlsafe(16)
        """The run id: sent in responses, never in requests."""
        self._invitations: set[str] = set()
        self._session = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        """The CSRF token in every form."""

    def invite(self) -> str:
        """Return a new single-use token."""
        token = secrets.token_urlsafe(32)
        self._invitations.add(token)
        return token

    def middleware(self, app: App) -> App:
        """Return an application that receives only authenticated requests."""

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await self._http(app, scope, receive, _with_headers(send, HEADERS))
            # Nothing else is served; the server closes web sockets.

        return authenticated

    async def _http(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        method = scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            await _answer(send, 405, "Method not allowed.")
        elif not self._is_public(headers) and not self._is_our_host(headers.get("host", "")):
            await _answer(send, 421, "Unknown host name: this server has another name.")
        elif not self._is_our_origin(scope, headers, needed=method == "POST"):
            await _answer(send, 403, "Cross-origin request refused.")
        elif method == "POST" and scope["path"] == "/":
            await self._log_in(receive, send, headers)
        elif method == "GET" and (token := _token_in(scope)) is not None:
            await self._redeem(send, scope, headers, token)
        elif not self._has_cookie(headers) or not scope["path"].startswith(self.base):
            await self._unauthorized(send, "Open the address that `agent-checkpoint ui` printed.")
        else:
            path = scope["path"][len(self.base) - 1 :]
            below = {**scope, "path": path, "raw_path": quote(path).encode()}
            await _run_app(app, below, receive, _with_headers(send, {RUN: self.run}))

    async def _redeem(
        self, send: Send, scope: Scope, headers: Mapping[str, str], token: str
    ) -> None:
        """Exchange the single-use token of an address for the cookie. A valid cookie is kept."""
        location = _without_token(scope)
        if self._has_cookie(headers):
            await _answer(send, 303, "", location=location)
        elif token in self._invitations and scope["path"].startswith(self.base):
            self._invitations.remove(token)
            await _send_cookie(send, headers, location, self._cookie(headers))
        else:
            await self._unauthorized(
                send, "This address was already used, or belongs to another run."
            )

    async def _log_in(self, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        """Exchange the configured token, entered in the login form, for the cookie."""
        body, is_more = b"", True
        while is_more and len(body) < MAX_LOGIN:
            message = await receive()
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
        token = dict(parse_qsl(body.decode("latin-1"))).get("token", "")
        if self._token is not None and secrets_equal(token, self._token):
            cookie = {"set-cookie": self._cookie(headers)}
            await _answer(send, 303, "", location=self.base, **cookie)
        else:
            await self._unauthorized(send, "Wrong token.")

    async def _unauthorized(self, send: Send, why: str) -> None:
        page = _LOGIN_PAGE.format(why=escape(why), form="" if self._token is None else _LOGIN_FORM)
        await _answer(send, 401, page, **{"content-type": "text/html; charset=utf-8"})

    def _cookie(self, headers: Mapping[str, str]) -> str:
        cookie = f"{COOKIE}={self._session}; Path={self.base}; HttpOnly; SameSite=Strict"
        is_secure = self._is_public(headers) and str(self.public).startswith("https:")
        return cookie + ("; Secure" if is_secure else "")

    def _is_public(self, headers: Mapping[str, str]) -> bool:
        """Whether a request came through the reverse proxy."""
        return self.public is not None and self.public in (
            f"https://{_without_default_port(headers.get('host', ''), '443')}",
            f"http://{_without_default_port(headers.get('host', ''), '80')}",
        )

    def _is_our_host(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or port != str(self._port):
            # Browsers omit the default port.
            name = host
            if self._port not in (80, 443):
                return False
        name = name.strip("[]").lower()
        if self._hosts & ANY_ADDRESS:
            # DNS rebinding needs a name, so accept any literal address, but only our own host name.
            return _address(name) is not None or name == socket.gethostname().lower()
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

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        for piece in headers.get("cookie", "").split(";"):
            name, _, value = piece.strip().partition("=")
            if name == COOKIE and secrets_equal(value, self._session):
                return True
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    address = _address(host.strip("[]"))
    return address is not None and address.is_loopback


def secrets_equal(given: str, expected: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _origin(url: str) -> str:
    """Return the origin of a URL, as browsers write it. Raises InvalidInputError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    name = (parts.hostname or "").lower()
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("http", "https") or not name or has_more or not name.isascii():
        raise InvalidInputError(
            f"{short_repr(url)} is not an origin such as https://name or https://name:8443."
        )
    name = f"[{name}]" if ":" in name else name
    default = {"http": 80, "https": 443}[parts.scheme]
    return (
        f"{parts.scheme}://{name}" if port in (None, default) else f"{parts.scheme}://{name}:{port}"
    )


def _without_default_port(host: str, port: str) -> str:
    name, colon, given = host.lower().rpartition(":")
    return name if colon and given == port else host.lower()


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _token_in(scope: Scope) -> str | None:
    return next((value for name, value in _query(scope) if name == "token"), None)


def _without_token(scope: Scope) -> str:
    rest = [(name, value) for name, value in _query(scope) if name != "token"]
    path = "/" + quote(scope["path"]).lstrip("/")
    return f"{path}?{urlencode(rest)}" if rest else path


async def _send_cookie(send: Send, headers: Mapping[str, str], location: str, cookie: str) -> None:
    """Set the cookie and redirect to the address without the token."""
    response_headers = {"set-cookie": cookie, "referrer-policy": "no-referrer"}
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        await _answer(send, 303, "", location=location, **response_headers)
        return
    # After a cross-site link, a redirect would not send a SameSite cookie; this page reloads
    # instead.
    page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(location)}">'
    page += "<title>agent-checkpoint</title>"
    await _answer(
        send, 200, page, **{"content-type": "text/html; charset=utf-8", **response_headers}
    )


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _headers(scope: Scope) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        # Join repeated headers, so that a check sees all of them.
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = list(message.get("headers", []))
            names = {name.lower() for name, _ in present}
            encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            present += [(name, value) for name, value in encoded if name not in names]
            message = {**message, "headers": present}
        await send(message)

    return sending


async def _answer(send: Send, status: int, body: str, **headers: str) -> None:
    all_headers = {"content-type": "text/plain; charset=utf-8", **headers}
    rows = [
        (name.encode(), value.encode("latin-1", "replace")) for name, value in all_headers.items()
    ]
    await send({"type": "http.response.start", "status": status, "headers": rows})
    await send({"type": "http.response.body", "body": body.encode()})


async def _run_app(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application. Report a failure during the response on stderr."""
    try:
        await app(scope, receive, send)
    except Exception as error:
        sys.stderr.write(f"agent-checkpoint: {describe_fault(error)}\n")
        raise ConnectionAbortedError from None  # the response has begun: too late for an error page


def describe_fault(error: BaseException) -> str:
    """Return the type and location of an exception, without any values."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "?" if frame is None else f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
    return f"{type(error).__name__} at {where}"
