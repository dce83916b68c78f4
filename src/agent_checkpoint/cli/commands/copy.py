"""`copy`: copy keys from store to store, with their forks, ledgers and objects."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    format_count,
    format_size,
    json_fields,
    one_line,
)
from agent_checkpoint.cli.progress_backend import describe_store, progress_manager
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.store.archive.store_copy import copy

EXAMPLES = """
agent-checkpoint copy ./store postgresql://db/team        copy all keys; again: what is new
agent-checkpoint copy ./store ./backup fix-bug-42         copy one key and its forks
agent-checkpoint copy ./store ./backup --dry-run          show how much would be copied
"""
_MOST = 20
"""Keys that the text output names."""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("source", "SOURCE", "the store to read: a path or URL")
    parser.add("target", "TARGET", "the store to write; created if it is missing")
    parser.add("keys", "KEY", "keys to copy, with their forks (default: all)", nargs="*")
    parser.dry_run("show what would be copied, write nothing")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Copy the keys."""
    source = StoreLocation(args.source)
    target = StoreLocation(args.target, makes_store=True)
    with target.manager() as to, progress_manager(source, args.out, "Copying") as manager:
        report = copy(manager, to, args.keys or None, dry_run=args.dry_run)
        place = describe_store(to.store.backend)
    data = {
        **json_fields(report, "checkpoints records objects bytes"),
        "keys": list(report.keys),
        "skipped": list(report.skipped),
        "done": not args.dry_run,
    }

    def show(out: Output) -> None:
        if not report.checkpoints and not report.records:
            out.line(f"Nothing to copy: {one_line(place)} is up to date.")
            return
        words = "Would copy" if args.dry_run else "Copied"
        counts = [
            format_count(len(report.keys), "key"),
            format_count(report.checkpoints, "checkpoint"),
            format_count(report.records, "ledger record"),
            format_count(report.objects, "object"),
            format_size(report.bytes),
        ]
        out.line(f"{words} to {one_line(place)}: {', '.join(counts)}.", style="green")
        out.some([f"  {one_line(key)}" for key in report.keys], _MOST, "  and {:,} more keys")
        if not args.dry_run:
            out.line("Copied keys are not bound to any of your directories, sessions or agents.")
            if report.records:
                out.line("Open a copied session in an empty directory, or with rebind=True.")

    return CommandResult(data, show)
