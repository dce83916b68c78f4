"""From what was typed to a command, and from its end to an exit status. Owns both.

0  done                         3  there is no such thing
1  it failed                    4  refused, or a person said no
2  what was typed is wrong    130  interrupted
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from agent_checkpoint.cli.registry import COMMANDS, Listed, find_command

NAME = "agent-checkpoint"
FAILED, WRONG, MISSING, REFUSED, INTERRUPTED = 1, 2, 3, 4, 130

_BEGIN = "Save, restore, roll back, fork and resume what an AI agent is in the middle of."
_END = f"""\
Ids: a checkpoint's id; its key for the latest; key~2 for two before that; key@17 for the 17th. In a
directory that was saved, ~2 and @17 will do.

{NAME} COMMAND --help tells more, with examples. Exit status: 0 done, 1 failed, 2 wrong usage,
3 no such thing, 4 refused, 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that was typed; return the exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(typed)
    try:
        chosen = parser.parse_args(typed)
        if chosen.command is None:
            parser.print_help()
            return WRONG
        return _run(chosen)
    except SystemExit as end:  # of argparse
        return end.code if isinstance(end.code, int) else WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has had enough. Python would complain once more when it ends.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _run(chosen: argparse.Namespace) -> int:
    from agent_checkpoint.cli.out import Out
    from agent_checkpoint.cli.places import Places
    from agent_checkpoint.errors import CheckpointError

    command: Listed = chosen.command
    out = Out()
    chosen.out = out
    try:
        answer = command.load().run(chosen, Places(chosen.store))
        if getattr(chosen, "json", False):
            out.json(answer.data)
        else:
            answer.show(out)
        out.flush()
    except CheckpointError as error:
        sys.stderr.write(f"{NAME}: {_safe(error)}\n")
        return status_of(error)
    return answer.status


def status_of(error: Exception) -> int:
    """Return the exit status of an error."""
    from agent_checkpoint.errors import (
        ConflictError,
        InvalidInputError,
        NotFoundError,
        RollbackRefusedError,
    )

    if isinstance(error, NotFoundError):
        return MISSING
    if isinstance(error, (ConflictError, RollbackRefusedError)):
        return REFUSED
    return WRONG if isinstance(error, InvalidInputError) else FAILED


def _safe(error: Exception) -> str:
    from agent_checkpoint.cli.out import safe

    return safe(str(error))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines, and not in a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message}.\nTry: {self.prog} --help\n")


def _parser(typed: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser; of a command that was not typed it knows the name only."""
    parser = _Parser(
        prog=NAME,
        description=_BEGIN,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{NAME} [--store PATH|URL] COMMAND …",
        add_help=True,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_Version())
    parser.add_argument(
        "--store", metavar="PATH|URL", help="the store; else $AGENT_CHECKPOINT_STORE, or your own"
    )
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="", parser_class=_Parser)
    for listed in COMMANDS:
        child = commands.add_parser(
            listed.name,
            help=listed.help,
            description=f"{listed.help[0].upper()}{listed.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=listed.name in typed,
        )
        if listed.name in typed:
            complete(child, listed)
    return parser


def complete(parser: argparse.ArgumentParser, listed: Listed) -> None:
    """Give the parser of a command all that the command takes."""
    module = listed.load()
    module.arguments(parser)
    parser.epilog = "examples:\n" + "\n".join(
        f"  {line}" for line in module.EXAMPLES.strip().splitlines()
    )
    parser.set_defaults(command=listed)
    # After the command, too, where one looks for it.
    parser.add_argument("--store", metavar="PATH|URL", default=argparse.SUPPRESS, help="the store")


class _Version(str):
    """The version, read when it is asked for."""

    def __mod__(self, values: object) -> str:
        from agent_checkpoint import __version__

        return f"{NAME} {__version__}"


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command, as its help shows it."""
    listed = find_command(name)
    if listed is None:
        raise KeyError(name)
    parser = _parser([name])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            child = action.choices[name]
            if isinstance(child, argparse.ArgumentParser):
                return child
    raise KeyError(name)
