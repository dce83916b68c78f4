"""`import`: import the key of an archive atomically, or a trajectory as a session."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from agent_checkpoint.adapters.atif import import_trajectory
from agent_checkpoint.agents.directory_keys import claimed_directory
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, one_line
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import UNUSABLE, InvalidInputError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.records import short_repr as quoted_name

EXAMPLES = """
agent-checkpoint import fix.ckpt              import into the default store; runs no code
agent-checkpoint --store ./store import fix.ckpt   import into another store
agent-checkpoint import run.json --format atif --key run   import an ATIF trajectory as a session
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("file", "FILE", "the file to read")
    parser.add_argument(
        "--format",
        choices=("archive", "atif"),
        default="archive",
        help="archive (default); atif: an ATIF trajectory, one checkpoint per step",
    )
    parser.add_argument(
        "--key", metavar="KEY", help="the key of a trajectory; default: its session id"
    )
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Import the archive."""
    file = Path(location.directory, args.file)
    if not file.is_file():
        raise InvalidInputError(f"No such file: {quoted_name(str(file), 200)}.")
    with location.manager() as manager, args.out.progress("Importing"):
        if args.format == "atif":
            key = import_trajectory(manager, file.read_bytes(), key=args.key)
        elif args.key is not None:
            raise InvalidInputError("--key is for trajectories: an archive has its own key.")
        else:
            key = manager.import_archive(file)
        head = manager.store.head(key)
        number = sum(1 for _ in manager.store.entries(key))
        claimed = None
        with suppress(*UNUSABLE):  # a damaged note does not fail the import
            claimed = None if head is None else claimed_directory(manager.store, head)
    data = {
        "key": key,
        "id": None if head is None else head.id,
        "checkpoints": number,
        "says_directory": claimed,
    }

    def show(out: Output) -> None:
        out.line(f"Imported {one_line(key)}: {format_count(number, 'checkpoint')}.", style="green")
        if claimed is not None:
            out.line(f"It claims the directory {one_line(claimed)} (not verified).", style="yellow")
        out.line("The imported key is not bound to any of your directories, sessions or agents.")
        out.hint("To see it", f"log {shell_quote(key)}")

    return CommandResult(data, show)
