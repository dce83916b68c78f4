"""`ui`: serve the timeline to a browser."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext

from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError

EXAMPLES = """
agent-checkpoint ui                    show all keys
agent-checkpoint ui fix-bug-42         show the timeline of a key
agent-checkpoint ui --read-only        disable all changes
agent-checkpoint ui --public-url https://timeline.example.org   behind a TLS reverse proxy
AGENT_CHECKPOINT_TOKEN="$(openssl rand -hex 16)" agent-checkpoint ui --host 0.0.0.0   on the network
"""
TOKEN = "AGENT_CHECKPOINT_TOKEN"  # noqa: S105 - the name of a variable


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "key", nargs="?", metavar="KEY", help="the key to show (default: the list of keys)"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="the port (default: 8421, or a free one)"
    )
    parser.add_argument(
        "--host",
        metavar="H",
        help="the address to bind (default: a loopback address, different in each run)",
    )
    parser.add_argument("--token", help=_about_token())
    parser.add_argument(
        "--public-url", metavar="URL", help="the URL of a TLS reverse proxy in front of the server"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--read-only", action="store_true", help="disable all changes")


def _about_token() -> str:
    return (
        f"access token for other users (prefer ${TOKEN}: command lines are visible to all users "
        "of the machine)"
    )


def run(args: Namespace, location: StoreLocation) -> CommandResult:
    """Run the server until interrupted."""
    try:
        from agent_checkpoint.web.server.server import listen, open_in_browser
    except ImportError as error:
        raise InvalidInputError(
            f"The web UI needs the package {error.name}. Run: pip install 'agent-checkpoint[web]'"
        ) from None
    with location.manager() as manager:
        key = None if args.key is None else location.key(manager, args.key)
        server = listen(
            manager,
            key,
            host=args.host,
            port=args.port,
            token=args.token or os.environ.get(TOKEN) or None,
            read_only=args.read_only,
            public_url=args.public_url,
        )
        args.out.line(server.address)
        args.out.line(
            "The link works once, in one browser, and gives access to the whole store. Press "
            "Ctrl-C to stop.",
            style="dim",
        )
        args.out.flush()
        with nullcontext() if args.no_browser else open_in_browser(server.invite()):
            server.run()
    return CommandResult({}, lambda out: None)
