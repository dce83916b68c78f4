"""`ui`: the timeline in a browser."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext

from agent_checkpoint.cli.output import Answer
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import InvalidInputError

EXAMPLES = """
agent-checkpoint ui                    all keys
agent-checkpoint ui fix-bug-42         the timeline of one
agent-checkpoint ui --read-only        nothing can be changed from the page
agent-checkpoint ui --public-url https://timeline.example.org   behind a server with TLS there
AGENT_CHECKPOINT_TOKEN="$(openssl rand -hex 16)" agent-checkpoint ui --host 0.0.0.0   for others
"""
TOKEN = "AGENT_CHECKPOINT_TOKEN"  # noqa: S105 - the name of a variable


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("key", nargs="?", metavar="KEY", help="what to show first; all if none")
    parser.add_argument("--port", type=int, metavar="N", help="the port (8421, or a free one)")
    parser.add_argument(
        "--host", metavar="H", help="the address (one of this machine alone, new with each run)"
    )
    parser.add_argument("--token", help=_about_token())
    parser.add_argument(
        "--public-url", metavar="URL", help="where a server with TLS in front of it is reached"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--read-only", action="store_true", help="the page changes nothing")


def _about_token() -> str:
    return (
        f"what others enter to be let in: better in ${TOKEN}, since everybody on this machine can "
        "read what a command was started with"
    )


def run(args: Namespace, places: Places) -> Answer:
    """Serve the page until it is interrupted."""
    try:
        from agent_checkpoint.web.server.server import listen, open_in_browser
    except ImportError as error:
        raise InvalidInputError(
            f"The page needs more than is installed ({error.name}): "
            "pip install 'agent-checkpoint[web]'"
        ) from None
    with places.manager() as manager:
        key = None if args.key is None else places.key(manager, args.key)
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
            "It lets one browser in, once, to the whole store. Ctrl-C ends it.", style="dim"
        )
        args.out.flush()
        with nullcontext() if args.no_browser else open_in_browser(server.invite()):
            server.run()
    return Answer({}, lambda out: None)
