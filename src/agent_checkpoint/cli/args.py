"""From what was typed to a command and its arguments. Owns the parsers, their help and complaints.

The help has a form of its own: that of argparse differs from one Python to the next.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from agent_checkpoint.cli.command_table import COMMANDS, Listed, find_command

NAME = "agent-checkpoint"
WRONG = 2

BEGIN = "Save, restore, roll back, fork and resume what an AI agent is in the middle of."
END = (
    "Ids: a checkpoint's id; its key for the latest; key~2 for two before that; key@17 for the "
    "17th. In a directory that was saved, @~2 and @17 will do.\n\n"
    f"{NAME} COMMAND --help tells more, with examples. Exit status: 0 done, 1 failed, 2 wrong "
    "usage, 3 no such thing, 4 refused, 130 interrupted."
)
_ELSEWHERE = {
    "help": f"it is {NAME} --help, or {NAME} COMMAND --help",
    "version": f"it is {NAME} --version",
    "undo": f"what was there before a restore is a safety checkpoint: {NAME} log shows its number, "
    f"and {NAME} restore @NUMBER goes back to it",
    "list": f"it is {NAME} keys, or {NAME} log for one of them",
    "status": f"it is {NAME} diff --stat",
}
"""What people type who know other programs."""
_SHARED = (
    "the store may be another user's, or one that others may write: only what is sealed under your "
    "secret is used"
)
_LEFT = 26
_NARROW, _WIDE = 50, 100


class Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines, and what may have been meant."""

    examples = ""
    """Lines for the end of the help."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "add_help": False, **options})
        self.add_argument("-h", "--help", action="help", help="show this")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and complain of options that nobody knows."""
        found, left = super().parse_known_args(args, namespace)
        strange = [text for text in left if text.startswith("-") and text != "-"]
        if strange:
            self._complain_of(strange[0].partition("=")[0])
        return found, left

    def _complain_of(self, option: str) -> NoReturn:
        self.error(f"there is no option {option}{meant(option, self._option_string_actions)}")

    def error(self, message: str) -> NoReturn:
        """Leave with two lines on the standard error."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            choices = re.findall(r"[\w-]+", wrong[2])
            message = f"there is no {wrong[1]!r} here{meant(wrong[1], choices)}"
            message += "" if "mean" in message else f": it is one of {', '.join(choices)}"
        message = "".join(char if char.isprintable() else "?" for char in message)
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(WRONG, f"{self.prog}: {message}{end}\nTry: {self.prog} --help\n")

    def format_usage(self) -> str:
        """Return the line of the usage."""
        return f"usage: {self.usage_line()}\n"

    def usage_line(self) -> str:
        """Return how it is called."""
        if self.usage:
            return str(self.usage)
        words = [self.prog]
        words += [_usage(action) for action in self._shown() if not action.option_strings]
        words += [_usage(action) for action in self._shown() if action.option_strings]
        return " ".join(words)

    def format_help(self, width: int | None = None) -> str:
        """Return the whole help, in lines of so many characters."""
        room = width or min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
        blocks = [_wrapped(f"usage: {self.usage_line()}", room, indent=11)]
        if self.description:
            blocks.append(_wrapped(self.description, room))
        named = [(_invocation(item), item) for item in self._shown() if not item.option_strings]
        options = [(_invocation(item), item) for item in self._shown(True) if item.option_strings]
        for title, rows in (("arguments", named), ("options", options)):
            lines = [line for left, item in rows for line in _rows(left, item, room)]
            if lines:
                blocks.append("\n".join([f"{title}:", *lines]))
        if self.examples:
            blocks.append(
                "\n".join(
                    ["examples:", *(f"  {line}" for line in self.examples.strip().splitlines())]
                )
            )
        if self.epilog:
            blocks += [_wrapped(text, room) for text in self.epilog.split("\n\n")]
        return "\n\n".join(blocks) + "\n"

    def _shown(self, with_help: bool = False) -> list[argparse.Action]:
        return [
            action
            for action in self._actions
            if action.help is not argparse.SUPPRESS
            and (with_help or not isinstance(action, argparse._HelpAction))
            and (with_help or action.dest not in ("store", "shared"))
        ]


class Root(Parser):
    """The parser of what stands before the command."""

    def format_help(self, width: int | None = None) -> str:
        """Return the help, with the commands by what they are about."""
        room = width or min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
        blocks = [f"usage: {self.usage}", _wrapped(BEGIN, room)]
        groups: dict[str, list[str]] = {}
        for listed in COMMANDS:
            lines = _row(f"  {listed.name}", listed.help, room, left=14)
            groups.setdefault(listed.group, []).extend(lines)
        blocks += ["\n".join([f"{group}:", *lines]) for group, lines in groups.items()]
        options = [
            line for item in self._shown(True) for line in _rows(_invocation(item), item, room)
        ]
        blocks.append("\n".join(["options:", *options]))
        blocks += [_wrapped(text, room) for text in END.split("\n\n")]
        return "\n\n".join(blocks) + "\n"


class _Version(argparse.Action):
    """Shows the version, read when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        from agent_checkpoint import __version__

        sys.stdout.write(f"{NAME} {__version__}\n")
        parser.exit(0)


def parse(typed: Sequence[str]) -> argparse.Namespace:
    """Return what was typed; `command` in it is None if it was no command.

    Raises:
        SystemExit: it makes no sense, or was a question for help.
    """
    before, rest = _split(typed)
    root = root_parser()
    chosen = root.parse_args(before)
    if not rest:
        sys.stderr.write(root.format_help())
        chosen.command = None
        return chosen
    listed = find_command(rest[0])
    if listed is None:
        names = [command.name for command in COMMANDS]
        other = _ELSEWHERE.get(rest[0])
        hint = meant(rest[0], names) if other is None else f": {other}"
        root.error(f"there is no command {rest[0]!r}{hint}")
    chosen.command = listed
    return parser_of(rest[0]).parse_args(rest[1:], chosen)


def root_parser() -> Root:
    """Return the parser of what stands before the command."""
    parser = Root(prog=NAME, usage=f"{NAME} [--store PATH|URL] [--shared] COMMAND …")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    parser.add_argument(
        "--store",
        metavar="PATH|URL",
        help="the store; else $AGENT_CHECKPOINT_STORE, or your own",
    )
    parser.add_argument("--shared", action="store_true", help=_SHARED)
    parser.set_defaults(command=None)
    return parser


def parser_of(name: str) -> Parser:
    """Return the parser of one command. Raises KeyError."""
    listed = find_command(name)
    if listed is None:
        raise KeyError(name)
    parser = Parser(
        prog=f"{NAME} {name}", description=f"{listed.help[0].upper()}{listed.help[1:]}."
    )
    complete(parser, listed)
    return parser


def complete(parser: Parser, listed: Listed) -> None:
    """Give the parser of a command all that the command takes."""
    module = listed.load()
    module.arguments(parser)
    parser.examples = module.EXAMPLES
    # After the command, too, where one looks for it.
    parser.add_argument("--store", metavar="PATH|URL", default=argparse.SUPPRESS, help="the store")
    parser.add_argument(
        "--shared", action="store_true", default=argparse.SUPPRESS, help="others may write it"
    )


def meant(text: str, names: Iterable[str]) -> str:
    """Return a question for the nearest name, if one is near."""
    from difflib import get_close_matches  # slow to load, and wanted only here

    close = get_close_matches(text, list(names), n=1)
    return f": did you mean {close[0]}?" if close else ""


def _split(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part what stands before the command from the rest."""
    place = 0
    while place < len(typed) and typed[place].startswith("-"):
        place += 2 if typed[place] == "--store" else 1
    return list(typed[:place]), list(typed[place:])


def subcommands(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Return the parsers of the commands within a command, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        text = "|".join(action.choices)
        return text if action.required else f"[{text}]"
    if not action.option_strings:
        name = _metavar(action)
        if action.nargs == "?":
            return f"[{name}]"
        if action.nargs in ("*", argparse.REMAINDER):
            return f"[{name} …]"
        return f"{name} …" if action.nargs == "+" else name
    text = action.option_strings[-1]
    if action.nargs != 0:
        text += f" {_metavar(action)}"
    return text if action.required else f"[{text}]"


def _invocation(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):
        return ""
    if not action.option_strings:
        return _metavar(action)
    text = ", ".join(action.option_strings)
    return text if action.nargs == 0 else f"{text} {_metavar(action)}"


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.dest.upper().replace("_", "-")


def _rows(left: str, action: argparse.Action, room: int) -> list[str]:
    if isinstance(action, argparse._SubParsersAction):
        lines: list[str] = []
        for name, parser in action.choices.items():
            words = [_usage(item) for item in parser._actions if item.dest != "help"]
            lines += _row(f"  {' '.join([name, *words])}", parser.description or "", room)
        return lines
    return _row(f"  {left}", action.help or "", room)


def _row(begin: str, words: str, room: int, left: int = _LEFT) -> list[str]:
    import textwrap

    lines = textwrap.wrap(words, max(room - left, 20), break_on_hyphens=False) or [""]
    if len(begin) + 2 > left:
        lines.insert(0, "")
    first = f"{begin:{left}}{lines[0]}".rstrip()
    return [first, *(" " * left + line for line in lines[1:])]


def _wrapped(text: str, room: int, indent: int = 0) -> str:
    import textwrap

    # What belongs together, such as `[--into DIR]`, stays in one line.
    held = (
        re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(" ", "\0"), text) if indent else text
    )
    lines = textwrap.wrap(
        held, room, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines).replace("\0", " ")
