"""`gc`: delete objects that are not reachable from any checkpoint."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size
from agent_checkpoint.cli.progress_backend import progress_manager
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint gc                    collect garbage; concurrent saves are safe
agent-checkpoint gc --dry-run          show how much would be deleted
"""


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show what would be deleted, delete nothing"
    )
    parser.add_argument(
        "--ignore-clock",
        action="store_true",
        help="proceed although objects have timestamps in the future",
    )
    add_json(parser)


def run(args: Namespace, location: StoreLocation) -> CommandResult:
    """Collect garbage."""
    with progress_manager(location, args.out, "Marking reachable objects") as manager:
        report = manager.gc(dry_run=args.dry_run, ignore_clock=args.ignore_clock)
    data = {
        "objects": report.objects,
        "bytes": report.bytes,
        "repacked": report.repacked,
        "done": not args.dry_run,
    }

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
