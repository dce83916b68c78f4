"""The HTTP server. Owns the listening sockets and the address with its token."""

from __future__ import annotations

import errno
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from threading import Timer
from typing import Any

import uvicorn

from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.web.app import make_app
from agent_checkpoint.web.auth import ANY_ADDRESS, Auth
from agent_checkpoint.web.page_text import link
from agent_checkpoint.web.server.connections import Connection

PORT = 8421
"""The default port, if it is free."""
_LOOPBACK = "127.0.0.1"
_BROWSER_SECONDS = 60.0
"""Seconds until the file that opens the page is deleted; the browser has read it by then."""
_TRIES = 5
"""Attempts to find a port that is free on all addresses of a host name."""


class Server(NamedTuple):
    """A server that listens but does not accept connections yet."""

    address: str
    """The address to open. Its token works once, in one browser."""
    port: int
    run: Callable[[], None]
    """Serves until interrupted or stopped."""
    stop: Callable[[], None]
    invite: Callable[[], str]
    """Returns an address with a new token, for another browser."""


def listen(
    manager: CheckpointManager,
    key: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    read_only: bool = False,
    masked: bool = True,
    public_url: str | None = None,
) -> Server:
    """Open the listening sockets and return the server.

    Args:
        manager: manager of the store to show.
        key: key whose timeline the address shows; the list of keys if None.
        host: address to listen on, or a name with one or more addresses. If None, a random loopback
            address.
        port: port to listen on. If None, the default port, or a free one.
        token: reusable token for the login form.
        read_only: reject all changes.
        masked: mask keys, tokens and passwords.
        public_url: origin of a reverse proxy with TLS in front of this server.

    Raises:
        InvalidInputError: there is no token although other machines can connect, or the host, port
            or URL is invalid.
        StorageError: the address is in use or not available.
    """
    if host is None:
        host = fresh_loopback_host() if public_url is None else _LOOPBACK
        if port is None and host == _LOOPBACK and public_url is None:
            port = 0  # only one loopback address: use a different port in each run
    Auth(token, hosts=[host], port=0, public_url=public_url)  # validate before opening a socket
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInputError(f"The port must be between 0 and 65535, not {short_repr(port)}.")
    sockets = _bound(host, port)
    number = sockets[0].getsockname()[1]
    addresses = [sock.getsockname()[0] for sock in sockets]
    try:
        auth = Auth(token, hosts=[host, *addresses], port=number, public_url=public_url)
    except InvalidInputError:  # the name resolves to an address that is not loopback
        for sock in sockets:
            sock.close()
        raise
    app = make_app(manager, auth, read_only=read_only, masked=masked)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="critical",  # `auth` reports failures, without values
        access_log=False,  # URLs contain keys, and once the token
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    server = uvicorn.Server(config)
    origin = auth.public or f"http://{_name(addresses[0])}:{number}"

    def invite() -> str:
        page = link("timeline" if key else "", key=key)
        return f"{origin}{auth.base}{page}{'&' if key else '?'}token={auth.invite()}"

    def stop() -> None:
        server.should_exit = True

    def run() -> None:
        try:
            server.run(sockets=sockets)
        finally:
            for sock in sockets:
                sock.close()

    return Server(invite(), number, run, stop, invite)


@contextmanager
def open_in_browser(address: str) -> Iterator[None]:
    """Open a URL in the browser, through a private redirect file that hides its token.

    Every user of a machine can read the command lines of processes, so the browser is started with
    the path of that file.

    The file is deleted after 60 seconds, or at the end of the block.
    """
    with tempfile.TemporaryDirectory(prefix="agent-checkpoint-") as folder:  # mode 0700
        path = Path(folder, "open.html")
        page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={escape(address)}">'
        path.touch(0o600)
        path.write_text(f"{page}<title>agent-checkpoint</title>")
        timer = Timer(_BROWSER_SECONDS, path.unlink, kwargs={"missing_ok": True})
        timer.daemon = True
        timer.start()
        try:
            webbrowser.open(path.as_uri())
            yield
        finally:
            timer.cancel()


def fresh_loopback_host() -> str:
    """Return a random loopback address, if this machine has more than one.

    Browsers keep pages and workers per origin. With a new address in each run, other programs that
    use the old address later, or used it before, do not share an origin with this run.
    """
    host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:  # macOS has only 127.0.0.1
            return _LOOPBACK
    return host


def _bound(host: str, port: int | None) -> list[socket.socket]:
    """Return sockets that listen on one port of all addresses of a host.

    Raises:
        InvalidInputError: the host cannot be resolved.
        StorageError: an address or the port cannot be used.
    """
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidInputError(f"Cannot resolve the host {short_repr(host)}.") from None
    addresses = list(dict.fromkeys((info[0], info[4]) for info in infos))
    free = [0] * _TRIES
    for number in [PORT, *free] if port is None else [port] if port else free:
        try:
            return _listening(addresses, number)
        except OSError as error:
            failure = error
    where = f"{host} port {port}" if port else host
    option = "--host" if failure.errno in _ABSENT else "--port"
    raise StorageError(
        f"Cannot listen on {where}: {failure.strerror}. Choose another {option}."
    ) from failure


def _listening(addresses: list[tuple[Any, Any]], number: int) -> list[socket.socket]:
    """Listen on each address with the same port. Raises OSError if one is in use."""
    listening: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listening.append(_listener(family, (address[0], number, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error  # not available on this machine
            else:
                number = listening[0].getsockname()[1]
        if not listening and absent is not None:
            raise absent
    except OSError:
        for sock in listening:
            sock.close()
        raise
    return listening


def _listener(family: int, address: Any) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is given.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock


def _name(address: str) -> str:
    if address in ANY_ADDRESS:  # a wildcard address cannot be opened
        address = "::1" if ":" in address else _LOOPBACK
    return f"[{address}]" if ":" in address else address


_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
