"""`keys`: all lines of checkpoints in a store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from agent_checkpoint.cli.out import Answer, Out, when
from agent_checkpoint.cli.ownership import works_in
from agent_checkpoint.cli.places import Places
from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.store.store import Store

EXAMPLES = """
agent-checkpoint keys                  all
agent-checkpoint keys fix-             those that begin so
agent-checkpoint keys --json | jq .    for programs
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="how they begin")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: Namespace, places: Places) -> Answer:
    """List them, the latest first."""
    with places.manager() as manager:
        rows = [_row(manager.store, key) for key in manager.list_keys(args.prefix)]
    rows.sort(key=lambda row: row["ts"] or 0.0, reverse=True)

    def show(out: Out) -> None:
        if not rows:
            out.line("There is nothing here yet. `agent-checkpoint save` saves this directory.")
            return
        out.table(
            ["key", "last", "when", "kind", "directory"],
            ([r["key"], f"@{r['seq']}", when(r["ts"]), r["kind"], r["directory"]] for r in rows),
        )

    return Answer(rows, show)


def _row(store: Store, key: str) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "seq": None, "ts": None, "kind": "?", "directory": None}
    try:
        head = store.head(key)
        if head is not None:
            row.update(seq=head.seq, ts=head.ts_ns / 1e9, kind=head.kind, id=head.id)
            row["directory"] = works_in(store, head)
    except (IntegrityError, FormatError) as error:
        row.update(kind="unreadable", error=str(error))
    return row
