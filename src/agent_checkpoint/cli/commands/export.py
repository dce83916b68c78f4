"""`export`: write a key and all its checkpoints to an archive."""

from __future__ import annotations

from pathlib import Path

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size, one_line
from agent_checkpoint.cli.progress_backend import progress_manager
from agent_checkpoint.cli.prompts import confirmed, declined
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.formatting import shell_quote

EXAMPLES = """
agent-checkpoint export fix-bug-42 fix.ckpt        write an archive
agent-checkpoint export fix-bug-42 fix.ckpt --yes  overwrite an existing file
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("key", "KEY", "the key")
    parser.add("file", "FILE", "the archive to write")
    parser.yes()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Write the archive."""
    file = Path(location.directory, args.file)
    data = {"key": args.key, "file": str(file), "done": False, "checkpoints": 0, "bytes": 0}
    with location.manager() as manager:
        key = location.key(manager, args.key)
    exists = f"{one_line(file)} exists."
    if file.exists() and not confirmed(args, lambda out: out.line(exists), "Overwrite?"):
        return declined(data)
    with progress_manager(location, args.out, "Exporting") as manager:
        number = manager.export_archive(file, key)
    data.update(done=True, checkpoints=number, bytes=file.stat().st_size)

    def show(out: Output) -> None:
        what = f"{format_count(number, 'checkpoint')}, {format_size(file.stat().st_size)}"
        out.line(f"Wrote {one_line(file)}: {what}.", style="green")
        # Without --store, because the archive is imported into another store.
        out.line(f"To import: agent-checkpoint import {shell_quote(file.name)}", style="dim")

    return CommandResult(data, show)
