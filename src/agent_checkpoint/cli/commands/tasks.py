"""`tasks`: the tasks of sessions and their status."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_time, json_fields, one_line
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.formatting import value_summary
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.state_json import plain, read_parts
from agent_checkpoint.session.effects.approvals import Approvals
from agent_checkpoint.session.session_list import SessionRow, list_sessions

EXAMPLES = """
agent-checkpoint tasks                 session of the current directory
agent-checkpoint tasks fix-bug-42      another session
agent-checkpoint tasks --all           overview of all sessions
"""
_STYLES = {"completed": "green", "failed": "red", "in_progress": "yellow", "skipped": "dim"}
_SIGNS = {"completed": "✓", "failed": "✗", "in_progress": "▸", "skipped": "-", "pending": "·"}
_DONE = ("completed", "skipped")


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("key", "KEY", "the session (default: that of the current directory)")
    parser.flag("--all", "list all sessions")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """List the tasks of a session, or all sessions."""
    with location.manager() as manager:
        if args.all:
            rows = list_sessions(manager.store, args.key or "")
            data = [_overview(row) for row in rows]
            return CommandResult(data, lambda out: _show_all(out, data))
        key = location.key(manager, args.key, sessions=True)
        tasks = _tasks(manager, key)
    found = {"key": key, "tasks": tasks}
    return CommandResult(found, lambda out: _show(out, key, tasks))


def _tasks(manager: CheckpointManager, key: str) -> list[dict[str, Any]]:
    head = manager.store.head(key)
    if head is None or "tasks" not in head.parts:
        return []
    state = plain(read_parts(manager.store, head, ["tasks"])["tasks"])
    rows = state.get("tasks") if isinstance(state, dict) else None
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    names = ("id", "status", "attempt", "note", "result")
    requests = Approvals(manager.store).pending(key)
    return [
        {
            **{name: row.get(name) for name in names},
            "waits_for": [item.id for item in requests if item.task == row.get("id")],
        }
        for row in found
    ]


def _overview(row: SessionRow) -> dict[str, Any]:
    place = {"key": row.key, "id": row.head, "ts": row.ts, "directory": row.workspace}
    return {**place, "fork": row.is_fork, **json_fields(row, "tasks pending unknown")}


def _show(out: Output, key: str, tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        out.line(f"{one_line(key)} has no tasks.")
        return
    done = sum(row["status"] in _DONE for row in tasks)
    out.line(f"{one_line(key)}: {done} of {len(tasks)} done", style="bold")
    room = max((out.columns or 200) - 40, 40)
    for row in tasks:
        status = one_line(row["status"], 20)
        sign = _SIGNS.get(status, "?") if out.has_unicode else ""
        attempt = f", attempt {row['attempt']}" if row["attempt"] not in (0, 1, None) else ""
        note = f"  {one_line(row['note'], room)}" if row["note"] else ""
        result = f"  -> {value_summary(row['result'], room)}" if row["result"] is not None else ""
        waits = f", waits for {', '.join(row['waits_for'])}" if row["waits_for"] else ""
        style = _STYLES.get(status, "")
        out.pieces(
            (f"  {sign} {one_line(row['id'], 60)}", style),
            (f"  {status}{one_line(attempt)}", "dim"),
            (one_line(waits), "yellow"),
            (f"{note}{result}", ""),
        )


def _show_all(out: Output, rows: list[dict[str, Any]]) -> None:
    if not rows:
        out.line("No sessions in this store.")
        return
    limit = out.limit(40)
    cells = []
    for row in rows:
        done = sum(status in _DONE for status in row["tasks"].values())
        tasks = f"{done}/{len(row['tasks'])}" if row["tasks"] else ""
        waits = [f"{len(row['pending'])} to approve"] if row["pending"] else []
        waits += [f"{len(row['unknown'])} unknown"] if row["unknown"] else []
        name, place = one_line(row["key"], limit), one_line(row["directory"], limit)
        cells.append([name, format_time(row["ts"]), tasks, ", ".join(waits), place])
    out.table(["session", "when", "tasks", "waits for", "directory"], cells)
