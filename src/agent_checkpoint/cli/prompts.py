"""Confirmation before changes: --yes, --json and the question.

Without a terminal, the answer is no.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from agent_checkpoint.cli.args import Args
from agent_checkpoint.cli.main import REFUSED
from agent_checkpoint.cli.output import CommandResult, Output, one_line
from agent_checkpoint.errors import ConflictError

_NOTHING_DONE = "Nothing was changed."
_UNASKED = f"{_NOTHING_DONE} Pass --yes to proceed without confirmation."


def add_json(parser: ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def confirmed(args: Args, preview: Callable[[Output], object], question: str) -> bool:
    """Show the preview and ask for confirmation.

    Without a terminal or with --json, return False.
    """
    if args.yes:
        return True
    if args.json:
        return False
    preview(args.out)
    return bool(args.out.confirm(question))


def show_plan_changed(args: Args, error: ConflictError) -> None:
    """Print that the plan has changed since the preview. The caller then asks again."""
    args.out.line(one_line(str(error)), style="yellow")


def declined(data: Any) -> CommandResult:
    """Return the result of a command that was not confirmed."""

    def show(out: Output) -> None:
        # After a prompt the user knows how to confirm.
        out.line(_NOTHING_DONE if out.has_prompted else _UNASKED)

    return CommandResult(data, show, REFUSED)
