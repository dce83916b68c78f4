"""All commands, in the order in which people meet them. Owns their names; loads none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from agent_checkpoint.cli.out import Answer
    from agent_checkpoint.cli.places import Places


class Command(Protocol):
    """What the module of a command has."""

    EXAMPLES: str
    """How it is used, line by line, for the end of its help."""
    arguments: Callable[[ArgumentParser], None]
    """Adds its arguments to a parser."""
    run: Callable[[Namespace, Places], Answer]
    """Does it. Raises CheckpointError."""


class Listed(NamedTuple):
    """A command in the list."""

    name: str
    help: str
    group: str

    def load(self) -> Command:
        """Load its module."""
        name = self.name.replace("-", "_")
        # Those that Python has a meaning for of its own get an underscore.
        name = f"{name}_" if name in ("import",) else name
        return import_module(f"agent_checkpoint.cli.commands.{name}")


FILES, SESSIONS, STORE, MORE = "files", "sessions", "the store", "more"

COMMANDS = (
    Listed("save", "save a directory", FILES),
    Listed("log", "show what was saved, with its branches", FILES),
    Listed("restore", "make files what they were", FILES),
    Listed("keys", "list all lines of checkpoints", STORE),
    Listed("ui", "show the timeline in a browser", MORE),
)


def find_command(name: str) -> Listed | None:
    """Return the command of a name, if there is one."""
    return next((command for command in COMMANDS if command.name == name), None)
