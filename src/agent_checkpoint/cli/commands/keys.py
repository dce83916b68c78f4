"""`keys`: the keys of a store."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.agents.directory_keys import is_foreign, session_directory, tracked_directory
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_time, one_line
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Kind
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.store import Store

EXAMPLES = """
agent-checkpoint keys                  list all keys
agent-checkpoint keys fix-             list keys with a prefix
agent-checkpoint keys --json | jq .    print JSON
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("prefix", "PREFIX", "list only keys with this prefix", default="")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """List the keys, most recently saved first."""
    with location.manager() as manager:
        rows = [_row(manager.store, key) for key in manager.list_keys(args.prefix)]
    rows.sort(key=lambda row: row["ts"] or 0.0, reverse=True)

    def show(out: Output) -> None:
        if not rows and args.prefix:
            out.line(f"No keys start with {one_line(args.prefix, 80)}.")
        elif not rows:
            out.hint("The store is empty. To save the current directory", "save", style="")
        else:
            cells = [_cells(row, out.limit(60)) for row in rows]
            out.table(["key", "head", "when", "kind", "directory"], cells)

    return CommandResult(rows, show)


def _cells(row: dict[str, Any], limit: int) -> list[str]:
    head = "" if row["seq"] is None else f"@{row['seq']}"
    key, directory = one_line(row["key"], limit), one_line(row["directory"], limit)
    return [key, head, format_time(row["ts"]), one_line(row["kind"], 20), directory]


def _row(store: Store, key: str) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "id": None, "seq": None, "ts": None, "kind": None}
    row.update(session=False, directory=None, foreign=False, error=None)
    try:
        head = store.head(key)
        if head is not None:
            row.update(id=head.id, seq=head.seq, ts=head.ts_ns / 1e9, kind=head.kind)
            row.update(session=SESSION_PART in head.parts, foreign=is_foreign(store, head))
            if not row["foreign"]:
                row.update(
                    directory=session_directory(store, head) or tracked_directory(store, head)
                )
    except UNUSABLE as error:
        row.update(kind=Kind.UNREADABLE, error=str(error))
    return row
