"""`demo`: a scripted coding agent at work, killed, rolled back, forked and refused."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agent_checkpoint.cli.output import Answer
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import InvalidInputError

EXAMPLES = """
agent-checkpoint demo               in a temporary directory
agent-checkpoint demo --in ./demo   in a directory that stays
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("--in", dest="home", metavar="DIR", help="where; a temporary one if none")


def run(args: Namespace, places: Places) -> Answer:
    """Tell the story as it happens."""
    if args.store is not None:
        raise InvalidInputError("The demo has a store of its own: --in DIR says where.")
    from agent_checkpoint.demo.story import main

    status = main([] if args.home is None else ["--in", str(places.directory / args.home)])
    return Answer({"status": status}, lambda out: None, status)
