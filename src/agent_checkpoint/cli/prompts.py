"""Questions before something is changed. Owns when a person is asked, and what silence means."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from agent_checkpoint.cli.main import REFUSED
from agent_checkpoint.cli.output import Answer, Out, one_line
from agent_checkpoint.errors import ConflictError

_NOTHING_DONE = "Nothing was done."
_UNASKED = f"{_NOTHING_DONE} Say --yes to go on without a question."


def add_yes(parser: ArgumentParser) -> None:
    """Add the option that stands for an answer."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def add_json(parser: ArgumentParser, *, needs_yes: bool = False) -> None:
    """Add the option for programs."""
    more = "; asks nothing, so say --yes too" if needs_yes else ""
    parser.add_argument("--json", action="store_true", help=f"for programs{more}")


def agreed(args: Namespace, preview: Callable[[Out], object], question: str) -> bool:
    """Show what would be done and ask; nobody there, or a program, means no."""
    if args.yes:
        return True
    if args.json:
        return False
    preview(args.out)
    return bool(args.out.confirm(question))


def again(args: Namespace, error: ConflictError) -> None:
    """Say that something else would be done than was agreed to: it is asked once more."""
    args.out.line(one_line(str(error)), style="yellow")


def refused(data: Any) -> Answer:
    """Return the answer of a command that was not agreed to."""

    def show(out: Out) -> None:
        # Who has just said no knows how to say yes.
        out.line(_NOTHING_DONE if out.has_asked else _UNASKED)

    return Answer(data, show, REFUSED)
