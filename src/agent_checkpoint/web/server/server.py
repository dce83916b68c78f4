"""The server: from an address to a page in a browser. Owns the socket, and what is printed."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import uvicorn

from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import short_repr
from agent_checkpoint.web.app import make_app
from agent_checkpoint.web.auth import ANY_ADDRESS, Guard
from agent_checkpoint.web.page_text import link
from agent_checkpoint.web.server.browser import in_browser as in_browser
from agent_checkpoint.web.server.connections import Connection

PORT = 8421
"""Where the page is if nothing is said, and nobody else is there."""
_LOOPBACK = "127.0.0.1"
_TRIES = 5
"""How often a free port is looked for that all addresses of a name have."""


class Server(NamedTuple):
    """A server that listens, and is yet to answer."""

    address: str
    """What to open, in one browser and once: it has a token in it."""
    port: int
    run: Callable[[], None]
    """Answers until it is interrupted."""
    stop: Callable[[], None]
    invite: Callable[[], str]
    """Returns such an address for one more browser."""


def listen(
    manager: CheckpointManager,
    key: str | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    read_only: bool = False,
    public_url: str | None = None,
) -> Server:
    """Begin to listen.

    Args:
        manager: of the store to show.
        key: what to show first; all keys if None.
        host: the address to listen at, or a name: then at each of its addresses. One of this
            machine that is new with each run if None.
        port: the port there; the usual one, or any that is free, if None.
        token: what lets people in who enter it.
        read_only: whether the page may change nothing.
        public_url: where a server with TLS in front of this one is reached.

    Raises:
        InvalidInputError: others could reach it and there is no token, or a port or address makes
            no sense.
        StorageError: nobody can listen there.
    """
    if host is None:
        host = own_host() if public_url is None else _LOOPBACK
        if port is None and host == _LOOPBACK and public_url is None:
            port = 0  # at least the port is not that of an earlier run
    Guard(token, hosts=[host], port=0, public_url=public_url)  # refused before anything is opened
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInputError(f"The port must be between 0 and 65535, not {short_repr(port)}.")
    taken = _bound(host, port)
    number = taken[0].getsockname()[1]
    addresses = [one.getsockname()[0] for one in taken]
    try:
        guard = Guard(token, hosts=[host, *addresses], port=number, public_url=public_url)
    except InvalidInputError:  # a name that is no loopback address after all
        for one in taken:
            one.close()
        raise
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
    origin = guard.public or f"http://{_name(addresses[0])}:{number}"

    def invite() -> str:
        page = link("timeline" if key else "", key=key)
        return f"{origin}{guard.base}{page}{'&' if key else '?'}token={guard.invite()}"

    def stop() -> None:
        server.should_exit = True

    def run() -> None:
        try:
            server.run(sockets=taken)
        finally:
            for one in taken:
                one.close()

    return Server(invite(), number, run, stop, invite)


def own_host() -> str:
    """Return a loopback address that no earlier run had, if this machine has more than one.

    What a browser keeps for an address (pages, workers) is then not met again by whoever listens
    there later, and nothing that somebody left there is met by us.
    """
    host = ".".join(["127", *(str(1 + secrets.randbelow(254)) for _ in range(3))])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:  # macOS has only one
            return _LOOPBACK
    return host


def _bound(host: str, port: int | None) -> list[socket.socket]:
    """Listen at all addresses that a name stands for. Raises InvalidInputError, StorageError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InvalidInputError(f"Cannot resolve the host {short_repr(host)}.") from None
    addresses = list(dict.fromkeys((kind[0], kind[4]) for kind in found))
    free = [0] * _TRIES
    for number in [PORT, *free] if port is None else [port] if port else free:
        try:
            return _listening(addresses, number)
        except OSError as error:
            trouble = error
    raise StorageError(
        f"Cannot listen on {host} port {port}: {trouble.strerror}. Choose another --port."
    ) from trouble


def _listening(addresses: list[tuple[Any, Any]], number: int) -> list[socket.socket]:
    """Listen at each address, at the same port. Raises OSError if somebody else is at one."""
    found: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                found.append(_listener(family, (address[0], number, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error  # nobody can listen there
            else:
                number = found[0].getsockname()[1]
        if not found and absent is not None:
            raise absent
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def _listener(family: int, address: Any) -> socket.socket:
    # By the name of its protocol asyncio knows that it may send small answers at once.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def _name(address: str) -> str:
    if address in ANY_ADDRESS:  # what to open from here
        address = "::1" if ":" in address else _LOOPBACK
    return f"[{address}]" if ":" in address else address


_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
