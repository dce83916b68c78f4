"""All commands, in the order in which people meet them. Owns their names; loads none of them."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` for it alone would cost 10 ms
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Protocol

    from agent_checkpoint.cli.output import Answer
    from agent_checkpoint.cli.store_location import Places

    class Command(Protocol):
        """What the module of a command has."""

        EXAMPLES: str
        """How it is used, line by line, for the end of its help."""
        arguments: Callable[[ArgumentParser], None]
        """Adds its arguments to a parser."""
        run: Callable[[Namespace, Places], Answer]
        """Does it. Raises CheckpointError."""


class Listed:
    """A command in the list."""

    def __init__(self, name: str, help: str, group: str, *, makes_store: bool = False) -> None:
        self.name = name
        self.help = help
        self.group = group
        self.makes_store = makes_store
        """Whether a store that was named and is not there is made, and no mistake."""

    @property
    def module(self) -> str:
        """The name of its module."""
        name = self.name.replace("-", "_")
        # Those that Python has a meaning for of its own get an underscore.
        return f"{name}_" if name in ("import",) else name

    def load(self) -> Command:
        """Load its module."""
        from importlib import import_module

        return import_module(f"agent_checkpoint.cli.commands.{self.module}")


FILES, SESSIONS, STORE, MORE = "files", "sessions", "the store", "more"

COMMANDS = (
    Listed("save", "save a directory", FILES, makes_store=True),
    Listed("log", "show what was saved, with its branches", FILES),
    Listed("show", "show what is in a checkpoint", FILES),
    Listed("diff", "compare checkpoints: files, state and messages", FILES),
    Listed("restore", "make files what they were", FILES),
    Listed("watch", "save a directory whenever its files change", FILES, makes_store=True),
    Listed("run", "run a command, and save on the way", FILES, makes_store=True),
    Listed("rollback", "take a session back, files and state alike", SESSIONS),
    Listed("fork", "go on from a checkpoint under another key", SESSIONS),
    Listed("tasks", "show how far sessions are", SESSIONS),
    Listed("effects", "show what was done outside, and say what became of it", SESSIONS),
    Listed("approvals", "answer calls that wait for a person", SESSIONS),
    Listed("hook", "save at every tool call of a coding agent", SESSIONS),
    Listed("rewind", "take a coding agent back to a tool call", SESSIONS),
    Listed("keys", "list all lines of checkpoints", STORE),
    Listed("stats", "show what is there, and what it takes", STORE),
    Listed("verify", "read everything, and compare it with its hash", STORE),
    Listed("prune", "delete old checkpoints of a key", STORE),
    Listed("delete", "delete keys or checkpoints", STORE),
    Listed("gc", "delete what no checkpoint needs", STORE),
    Listed("purge", "remove a leaked secret from everything", STORE),
    Listed("export", "write a key into one file", STORE),
    Listed("import", "add the key of such a file", STORE, makes_store=True),
    Listed("ui", "show the timeline in a browser", MORE),
    Listed("demo", "show it all on a scripted coding agent, in seconds", MORE),
    Listed("doctor", "tell what works on this machine", MORE, makes_store=True),
    Listed("completion", "write the completions for a shell", MORE),
)


def find_command(name: str) -> Listed | None:
    """Return the command of a name, if there is one."""
    return next((command for command in COMMANDS if command.name == name), None)
