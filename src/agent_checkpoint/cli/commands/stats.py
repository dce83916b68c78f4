"""`stats`: the number and size of checkpoints and objects in a store."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.agents.upkeep.disk_budget import BudgetState, budget_state
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size, one_line
from agent_checkpoint.cli.progress_backend import describe_store, progress_manager
from agent_checkpoint.cli.store_location import StoreLocation

EXAMPLES = """
agent-checkpoint stats                       statistics of the default store
agent-checkpoint --store ./store stats       statistics of another store
agent-checkpoint stats --json | jq .stored_bytes
"""
_SHOWN = 30


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.flag("--all", "list every key, not only the largest")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Collect the statistics."""
    with progress_manager(location, args.out, "Counting") as manager:
        backend = manager.store.backend
        data = {"store": describe_store(backend), **manager.stats()}
        budget = budget_state(backend)
    data["budget"] = None if budget is None else budget.to_json()
    return CommandResult(data, lambda out: _show(out, data, budget, args.all))


def _show(out: Output, data: dict[str, Any], budget: BudgetState | None, everything: bool) -> None:
    out.line(one_line(data["store"]), style="bold")
    out.line(
        f"{format_count(data['checkpoints'], 'checkpoint')} in "
        f"{format_count(len(data['keys']), 'key')}, {format_count(data['objects'], 'object')}"
    )
    out.line(
        f"{format_size(data['stored_bytes'])} stored, {format_size(data['logical_bytes'])} before "
        "deduplication and compression"
    )
    if budget is not None:
        problem = budget.problem
        out.line(problem or budget.words, style="yellow" if problem else "")
    rows = sorted(data["keys"].items(), key=lambda item: item[1]["stored_bytes"], reverse=True)
    shown = rows if everything or out.columns is None else rows[:_SHOWN]
    if rows:
        out.line()
        out.table(
            ["key", "checkpoints", "logical size", "own objects", "shared objects"],
            [
                [
                    one_line(key, out.limit(60)),
                    f"{row['checkpoints']:,}",
                    format_size(row["logical_bytes"]),
                    format_size(row["own_bytes"]),
                    format_size(row["stored_bytes"] - row["own_bytes"]),
                ]
                for key, row in shown
            ],
        )
    if len(shown) < len(rows):
        out.line(f"and {len(rows) - len(shown):,} more (use --all)", style="dim")
