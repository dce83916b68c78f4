"""The server: from an address to a page in a browser. Owns the socket, and what is printed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

import uvicorn

from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import show
from agent_checkpoint.web.app import make_app
from agent_checkpoint.web.connections import Connection
from agent_checkpoint.web.guard import Guard
from agent_checkpoint.web.opening import in_browser as in_browser
from agent_checkpoint.web.words import link

PORT = 8421
"""Where the page is if nothing is said, and nobody else is there."""


class Server(NamedTuple):
    """A server that listens, and is yet to answer."""

    address: str
    """What to open: it has the token in it."""
    port: int
    run: Callable[[], None]
    """Answers until it is interrupted."""
    stop: Callable[[], None]


def listen(
    manager: CheckpointManager,
    key: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    read_only: bool = False,
    public_url: str | None = None,
) -> Server:
    """Begin to listen.

    Args:
        manager: of the store to show.
        key: what to show first; all keys if None.
        host: the address to listen at.
        port: the port there; the usual one, or any that is free, if None.
        token: what a person has to show; made if not given.
        read_only: whether the page may change nothing.
        public_url: where a server with TLS in front of this one is reached.

    Raises:
        InvalidInputError: others could reach it and there is no token, or a port or address makes
            no sense.
        StorageError: nobody can listen there.
    """
    Guard(token, host=host, port=0, public_url=public_url)  # refused before anything is opened
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInputError(f"A port is a number up to 65535, not {show(port)}.")
    taken = _bound(host, port)
    number = taken.getsockname()[1]
    guard = Guard(token, host=host, port=number, public_url=public_url)
    app = make_app(manager, guard, read_only=read_only)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="critical",  # what fails is told by the guard, without values
        access_log=False,  # addresses have keys in them, and once the token
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    server = uvicorn.Server(config)
    base = guard.public or f"http://{_name(host)}:{number}"
    page = link("/timeline" if key else "/", key=key)
    mark = "&" if key else "?"
    address = f"{base}{page}{mark}token={_quoted(guard.token)}"

    def stop() -> None:
        server.should_exit = True

    def run() -> None:
        try:
            server.run(sockets=[taken])
        finally:
            taken.close()

    return Server(address, number, run, stop)


def _bound(host: str, port: int | None) -> socket.socket:
    try:
        kind = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InvalidInputError(f"There is no address {show(host)} here.") from None
    for number in (PORT, 0) if port is None else (port,):
        # By the name of its protocol asyncio knows that it may send small answers at once.
        found = socket.socket(kind[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((kind[4][0], number))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            trouble = error
    raise StorageError(
        f"Cannot listen at {host}, port {port}: {trouble.strerror}. Say another --port."
    ) from trouble


def _name(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 - what to open from here, not what to listen at
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _quoted(token: str) -> str:
    return link("", token=token).partition("=")[2]
