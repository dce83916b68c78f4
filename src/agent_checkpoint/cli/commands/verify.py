"""`verify`: read every checkpoint and object, and check its hash."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.main import FAILED
from agent_checkpoint.cli.output import CommandResult, Output, format_count, json_fields, one_line
from agent_checkpoint.cli.progress_backend import progress_manager
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint verify                     exit with status 1 if anything is damaged
agent-checkpoint verify --json              print the report as JSON
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Verify the store."""
    # A missing store is an error; it is not treated as an empty store.
    options = {"counts_all": True, "must_exist": True}
    with progress_manager(location, args.out, "Verifying", **options) as manager:
        report = manager.verify()
    problems = [json_fields(problem, "checkpoint reason") for problem in report.problems]
    data = {**json_fields(report, "ok checkpoints objects"), "problems": problems}

    def show(out: Output) -> None:
        looked = (
            f"{format_count(report.checkpoints, 'checkpoint')}, "
            f"{format_count(report.objects, 'object')}"
        )
        if report.ok:
            out.line(f"No problems found: {looked}.", style="green")
            return
        out.line(f"{format_count(len(report.problems), 'problem')} in {looked}:", style="bold red")
        limit = out.limit(300)
        for problem in report.problems:
            where = one_line(problem.checkpoint, limit)
            out.line(f"  {where}: {one_line(problem.reason, limit)}", style="red")
        out.line(
            "All other checkpoints are intact. Restore the damaged ones from a backup, "
            "or delete them."
        )

    return CommandResult(data, show, 0 if report.ok else FAILED)
