"""`import-langgraph`: import the threads of LangGraph's own savers."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.extras import missing_extra
from agent_checkpoint.cli.output import CommandResult, Output, format_count, json_fields, one_line
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint import-langgraph checkpoints.sqlite                  all threads of a SqliteSaver
agent-checkpoint import-langgraph postgresql://db/app --thread 42     one thread of a PostgresSaver
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("source", "SOURCE", "the SQLite file or PostgreSQL URL of the saver; only read")
    parser.repeatable("--thread", "ID", "a thread to import (default: all); can be repeated")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Import the threads."""
    try:
        from agent_checkpoint.adapters.langgraph import CheckpointSaver
        from agent_checkpoint.adapters.langgraph.migration import import_threads
    except ImportError as error:
        raise missing_extra("langgraph", "import-langgraph") from error
    with location.manager() as manager:
        report = import_threads(args.source, CheckpointSaver(manager), args.thread or None)
    data = {**json_fields(report, "checkpoints writes"), "threads": list(report.threads)}

    def show(out: Output) -> None:
        if not report.checkpoints:
            out.line("Nothing to import: all checkpoints are there.")
            return
        counts = [
            format_count(len(report.threads), "thread"),
            format_count(report.checkpoints, "checkpoint"),
            format_count(report.writes, "write"),
        ]
        out.line(f"Imported {', '.join(counts)} from {one_line(args.source)}.", style="green")

    return CommandResult(data, show)
