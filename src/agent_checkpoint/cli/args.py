"""Parses the command line. Owns the parsers, the help texts and the usage errors.

The help has its own format, because the format of argparse differs between Python versions.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

from agent_checkpoint.cli.command_table import COMMANDS, CommandRow, find_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent_checkpoint.cli.output import Output

NAME = "agent-checkpoint"
USAGE_ERROR = 2

BEGIN = "Save, restore, roll back, fork and resume the files and state of an AI agent."
END = (
    "ID is a checkpoint id; KEY for the latest checkpoint of a key; KEY~2 for two checkpoints "
    "earlier; KEY@17 for number 17. In a saved directory the key can be omitted: @~2, @17.\n\n"
    f"Run {NAME} COMMAND --help for options and examples. Exit status: 0 success, 1 failure, "
    "2 usage error, 3 not found, 4 refused, 130 interrupted."
)
_ELSEWHERE = {
    "history": f"did you mean {NAME} log?",
    "help": f"use {NAME} --help or {NAME} COMMAND --help",
    "version": f"use {NAME} --version",
    "list": f"use {NAME} keys to list keys, or {NAME} log for the history of a key",
    "status": f"use {NAME} diff --stat",
}
"""Hints for command names of other programs."""
_SHARED = (
    "the store belongs to another user or is writable by others: trust only checkpoints "
    "signed with your secret"
)
_LEFT = 26
_NARROW, _WIDE = 50, 100


class Args(argparse.Namespace):
    """The parsed command line: the options of the command, and these."""

    command: CommandRow | None
    out: Output
    store: str | None
    shared: bool


class Parser(argparse.ArgumentParser):
    """A parser with two-line errors that suggest the nearest option."""

    examples = ""
    """Example lines for the end of the help."""
    takes_command = False
    """Whether the words after `--` are a command, which becomes `argv`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "add_help": False, **options})
        self.add_argument("-h", "--help", action="help", help="show this help")

    def flag(self, name: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def add(self, name: str, metavar: str, help: str, **more: Any) -> None:
        """Add an argument, or an option with a value; `more` as for `add_argument`."""
        self.add_argument(name, metavar=metavar, help=help, **more)

    def optional(self, name: str, metavar: str, help: str, **more: Any) -> None:
        """Add an argument that can be omitted."""
        self.add(name, metavar, help, nargs="?", **more)

    def repeatable(self, name: str, metavar: str, help: str, **more: Any) -> None:
        """Add an option that can be given several times; its value is a list."""
        self.add(name, metavar, help, **{"action": "append", "default": [], **more})

    def dry_run(self, help: str) -> None:
        """Add --dry-run."""
        self.add_argument("-n", "--dry-run", action="store_true", help=help)

    def yes(self) -> None:
        """Add --yes."""
        self.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")

    def json(self, more: str = "") -> None:
        """Add --json; `more` ends its help."""
        self.flag("--json", f"print JSON{more}")

    def no_mask(self, verb: str = "show") -> None:
        """Add --no-mask; its help begins with the verb."""
        self.flag("--no-mask", f"{verb} keys, tokens and passwords instead of masking them")

    def previewed(self, dry_run: str) -> None:
        """Add --dry-run, with its help, --yes and --json, for a change with a preview."""
        self.dry_run(dry_run)
        self.yes()
        self.json("; never prompts: add --yes to apply")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Exits with a usage error on unknown options."""
        if self.takes_command:
            words = list(args)
            end = words.index("--") if "--" in words else len(words)
            namespace = argparse.Namespace() if namespace is None else namespace
            args, namespace.argv = words[:end], words[end + 1 :]
        found, left = super().parse_known_args(args, namespace)
        strange = [text for text in left if text.startswith("-") and text != "-"]
        if strange:
            self._complain_of(strange[0].partition("=")[0])
        return found, left

    def _complain_of(self, option: str) -> NoReturn:
        self.error(f"unknown option {option}{did_you_mean(option, self._option_string_actions)}")

    def error(self, message: str) -> NoReturn:
        """Print two lines to stderr and exit with the status of a usage error."""
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            choices = re.findall(r"[\w-]+", wrong[2])
            hint = did_you_mean(wrong[1], choices) or f": choose from {', '.join(choices)}"
            message = f"unknown argument {wrong[1]!r}{hint}"
        message = "".join(char if char.isprintable() else "?" for char in message)
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(USAGE_ERROR, f"{self.prog}: {message}{end}\nTry: {self.prog} --help\n")

    def usage_line(self) -> str:
        """Return the usage line."""
        if self.usage:
            return str(self.usage)
        shown = [item for item in self._shown() if item.dest not in ("help", "store", "shared")]
        shown.sort(key=lambda action: bool(action.option_strings))
        return " ".join([self.prog, *map(_usage, shown)])

    def format_help(self, width: int | None = None) -> str:
        """Return the help, wrapped to a width; the width of the terminal if None."""
        room = width or min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
        blocks = [_wrapped(f"usage: {self.usage_line()}", room, indent=11)]
        if self.description:
            blocks.append(_wrapped(self.description, room))
        for title, rows, left in self._tables():
            lines = [line for begin, words in rows for line in _row(begin, words, room, left)]
            if lines:
                blocks.append("\n".join([f"{title}:", *lines]))
        if self.examples:
            blocks.append("\n  ".join(["examples:", *self.examples.strip().splitlines()]))
        if self.epilog:
            blocks += [_wrapped(text, room) for text in self.epilog.split("\n\n")]
        return "\n\n".join(blocks) + "\n"

    def _tables(self) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
        """Iterate over the tables of the help: title, rows, width of the left column."""
        for title, has_dashes in (("arguments", False), ("options", True)):
            shown = [item for item in self._shown() if bool(item.option_strings) == has_dashes]
            yield title, [(_invocation(item), item.help or "") for item in shown], _LEFT

    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._actions if action.help is not argparse.SUPPRESS]


class Root(Parser):
    """The top-level parser: global options and the list of commands."""

    def _tables(self) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
        for group, commands in groupby(COMMANDS, lambda command: command.group):
            yield group, [(command.name, command.help) for command in commands], 14
        yield from super()._tables()


class _Version(argparse.Action):
    """Prints the version; imports it on use."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        from agent_checkpoint import __version__

        sys.stdout.write(f"{NAME} {__version__}\n")
        parser.exit(0)


def parse(typed: Sequence[str]) -> Args:
    """Return the parsed command line; `command` is None if no command was given.

    Raises:
        SystemExit: a usage error, or help was requested.
    """
    before, rest = _split(typed)
    root = root_parser()
    chosen = root.parse_args(before, Args())
    if not rest:
        sys.stderr.write(root.format_help())
        chosen.command = None
        return chosen
    command = find_command(rest[0])
    if command is None:
        names = [command.name for command in COMMANDS]
        other = _ELSEWHERE.get(rest[0])
        hint = did_you_mean(rest[0], names) if other is None else f": {other}"
        root.error(f"unknown command {rest[0]!r}{hint}")
    chosen.command = command
    return parser_of(rest[0]).parse_args(rest[1:], chosen)


def root_parser() -> Root:
    """Return the top-level parser."""
    usage = f"{NAME} [--store PATH|URL] [--shared] COMMAND …"
    parser = Root(prog=NAME, usage=usage, description=BEGIN, epilog=END)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    parser.add(
        "--store",
        "PATH|URL",
        "the store (default: $AGENT_CHECKPOINT_STORE, or the default store in your home directory)",
    )
    parser.flag("--shared", _SHARED)
    parser.set_defaults(command=None)
    return parser


def parser_of(name: str) -> Parser:
    """Return the parser of one command. Raises KeyError."""
    command = find_command(name)
    if command is None:
        raise KeyError(name)
    parser = Parser(
        prog=f"{NAME} {name}", description=f"{command.help[0].upper()}{command.help[1:]}."
    )
    module = command.load()
    module.arguments(parser)
    parser.examples = module.EXAMPLES
    if not command.takes_store:
        return parser
    # Also accepted after the command, where users expect them.
    parser.add("--store", "PATH|URL", "the store", default=argparse.SUPPRESS)
    shared = "the store is writable by other users"
    parser.add_argument("--shared", action="store_true", default=argparse.SUPPRESS, help=shared)
    return parser


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return ": did you mean NAME?" for the closest name, or "" if no name is close."""
    from difflib import get_close_matches  # slow to import

    bare = {name.lstrip("-"): name for name in names}  # dashes would make any two options similar
    close = get_close_matches(text.lstrip("-"), bare, n=1)
    return f": did you mean {bare[close[0]]}?" if close else ""


def _split(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line into the options before the command and the rest."""
    place = 0
    while place < len(typed) and typed[place].startswith("-"):
        place += 2 if typed[place] == "--store" else 1
    return list(typed[:place]), list(typed[place:])


def _usage(action: argparse.Action) -> str:
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


def _row(begin: str, words: str, room: int, left: int) -> list[str]:
    import textwrap

    begin = f"  {begin}"
    lines = textwrap.wrap(words, max(room - left, 20), break_on_hyphens=False) or [""]
    if len(begin) + 2 > left:
        lines.insert(0, "")
    first = f"{begin:{left}}{lines[0]}".rstrip()
    return [first, *(" " * left + line for line in lines[1:])]


def _wrapped(text: str, room: int, indent: int = 0) -> str:
    import textwrap

    # Groups such as `[--into DIR]` are not broken across lines.
    held = (
        re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(" ", "\0"), text) if indent else text
    )
    lines = textwrap.wrap(
        held, room, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines).replace("\0", " ")
