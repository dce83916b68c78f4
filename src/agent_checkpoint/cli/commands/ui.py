"""`ui`: serve the timeline to a browser."""

from __future__ import annotations

import os
from contextlib import nullcontext

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.extras import missing_extra
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint ui                    show all keys
agent-checkpoint ui fix-bug-42         show the timeline of a key
agent-checkpoint ui --read-only        disable all changes
agent-checkpoint ui --public-url https://timeline.example.org   behind a TLS reverse proxy
AGENT_CHECKPOINT_TOKEN="$(openssl rand -hex 16)" agent-checkpoint ui --host 0.0.0.0   on the network
"""
TOKEN = "AGENT_CHECKPOINT_TOKEN"  # noqa: S105 - the name of a variable


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("key", "KEY", "the key to show (default: the list of keys)")
    parser.add("--port", "N", "the port (default: 8421, or a free one)", type=int)
    parser.add(
        "--host", "H", "the address to bind (default: a loopback address, different in each run)"
    )
    parser.add(
        "--token",
        "TOKEN",
        f"access token for other users (prefer ${TOKEN}: command lines are visible to all users "
        "of the machine)",
    )
    parser.add("--public-url", "URL", "the URL of a TLS reverse proxy in front of the server")
    parser.flag("--no-browser", "do not open a browser")
    parser.flag("--read-only", "disable all changes")
    parser.no_mask()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run the server until interrupted."""
    try:
        from agent_checkpoint.web.server.server import listen, open_in_browser
    except ImportError:
        raise missing_extra("web", "The web UI") from None
    with location.manager() as manager:
        key = None if args.key is None else location.key(manager, args.key)
        location.directory_keys(manager)  # finds out whether this directory was moved
        server = listen(
            manager,
            key,
            host=args.host,
            port=args.port,
            token=args.token or os.environ.get(TOKEN) or None,
            read_only=args.read_only,
            masked=not args.no_mask,
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
