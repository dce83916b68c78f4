"""`demo`: a scripted coding agent that is killed, resumed, rolled back and forked."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError

EXAMPLES = """
agent-checkpoint demo               run in a temporary directory
agent-checkpoint demo --in ./demo   run in a directory of your choice
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("--in", "DIR", "an empty directory (default: a temporary one)", dest="home")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run the demo."""
    if args.store is not None:
        raise InvalidInputError(
            "The demo does not support --store: it creates its own store in --in DIR."
        )
    from agent_checkpoint.demo.story import main

    status = main([] if args.home is None else ["--in", str(location.directory / args.home)])
    return CommandResult({"status": status}, lambda out: None, status)
