"""`gc`: what no checkpoint needs is deleted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from agent_checkpoint.cli.output import Answer, Out, format_count, format_size
from agent_checkpoint.cli.progress_backend import telling_manager
from agent_checkpoint.cli.prompts import add_json
from agent_checkpoint.cli.store_location import Places

EXAMPLES = """
agent-checkpoint gc                    delete it; others may go on saving
agent-checkpoint gc --dry-run          only tell how much it is
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("-n", "--dry-run", action="store_true", help="only tell what would go")
    parser.add_argument(
        "--ignore-clock",
        action="store_true",
        help="go on although objects seem to come from the future",
    )
    add_json(parser)


def run(args: Namespace, places: Places) -> Answer:
    """Collect."""
    with telling_manager(places, args.out, "Looking for what is needed") as manager:
        report = manager.gc(dry_run=args.dry_run, ignore_clock=args.ignore_clock)
    data = {
        "objects": report.objects,
        "bytes": report.bytes,
        "repacked": report.repacked,
        "done": not args.dry_run,
    }

    def show(out: Out) -> None:
        if report.repacked:
            objects = format_count(report.repacked, "object")
            out.line(f"Repacked {objects} with zlib: every installation can read them now.")
        if not report.objects:
            out.line("Everything is needed.")
            return
        words = "Would delete" if args.dry_run else "Deleted"
        out.line(f"{words} {format_count(report.objects, 'object')}, {format_size(report.bytes)}.")

    return Answer(data, show)
