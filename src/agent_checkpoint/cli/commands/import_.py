"""`import`: the key of an archive is added, all of it or nothing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.agents.directory_keys import said_place
from agent_checkpoint.cli.output import Answer, Out, format_count, one_line
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import UNUSABLE, InvalidInputError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.records import short_repr as quoted_name

EXAMPLES = """
agent-checkpoint import fix.ckpt              nothing in it is run
agent-checkpoint --store ./store import fix.ckpt
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("file", metavar="FILE", help="what `export` wrote")
    add_json(parser)


def run(args: Namespace, places: Places) -> Answer:
    """Read it."""
    file = Path(places.directory, args.file)
    if not file.is_file():
        raise InvalidInputError(f"There is no file {quoted_name(str(file), 200)}.")
    with places.manager() as manager, args.out.progress("Importing"):
        key = manager.import_archive(file)
        head = manager.store.head(key)
        number = sum(1 for _ in manager.store.entries(key))
        said = None
        with suppress(*UNUSABLE):  # its notes are damaged; it was imported all the same
            said = None if head is None else said_place(manager.store, head)
    data = {
        "key": key,
        "id": None if head is None else head.id,
        "checkpoints": number,
        "says_directory": said,
    }

    def show(out: Out) -> None:
        out.line(f"Imported {one_line(key)}: {format_count(number, 'checkpoint')}.", style="green")
        if said is not None:
            out.line(f"It says that it is of {one_line(said)}.", style="yellow")
        out.line("It owns nothing here: no directory, session or agent of yours is taken for it.")
        out.hint("See it", f"log {shell_quote(key)}")

    return Answer(data, show)
