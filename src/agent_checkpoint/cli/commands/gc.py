"""`gc`: delete objects that are not reachable from any checkpoint."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    format_count,
    format_size,
    json_fields,
)
from agent_checkpoint.cli.progress_backend import progress_manager
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint gc                    collect garbage; concurrent saves are safe
agent-checkpoint gc --dry-run          show how much would be deleted
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.dry_run("show what would be deleted, delete nothing")
    parser.flag("--ignore-clock", "proceed although objects have timestamps in the future")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Collect garbage."""
    with progress_manager(location, args.out, "Marking reachable objects") as manager:
        report = manager.gc(dry_run=args.dry_run, ignore_clock=args.ignore_clock)
    data = {**json_fields(report, "objects bytes repacked"), "done": not args.dry_run}

    def show(out: Output) -> None:
        if report.repacked:
            objects = format_count(report.repacked, "object")
            out.line(f"Repacked {objects} with zlib: every installation can read them now.")
        if not report.objects:
            out.line("Nothing to delete: all objects are reachable.")
            return
        words = "Would delete" if args.dry_run else "Deleted"
        out.line(f"{words} {format_count(report.objects, 'object')}, {format_size(report.bytes)}.")

    return CommandResult(data, show)
