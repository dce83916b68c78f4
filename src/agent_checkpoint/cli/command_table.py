"""The table of commands, in the order of the help. Owns their names; imports none of them."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` for it alone would cost 10 ms
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Protocol

    from agent_checkpoint.cli.output import Answer
    from agent_checkpoint.cli.store_location import Places

    class Command(Protocol):
        """The interface of a command module."""

        EXAMPLES: str
        """Example lines for the end of the help."""
        arguments: Callable[[ArgumentParser], None]
        """Adds the arguments of the command to a parser."""
        run: Callable[[Namespace, Places], Answer]
        """Runs the command. Raises CheckpointError."""


class Listed:
    """One row of the command table."""

    def __init__(self, name: str, help: str, group: str, *, makes_store: bool = False) -> None:
        self.name = name
        self.help = help
        self.group = group
        self.makes_store = makes_store
        """Whether a missing store is created; otherwise naming one is an error."""

    @property
    def module(self) -> str:
        """The name of the command's module."""
        name = self.name.replace("-", "_")
        # Python keywords get an underscore.
        return f"{name}_" if name in ("import",) else name

    def load(self) -> Command:
        """Import the module of the command."""
        from importlib import import_module

        return import_module(f"agent_checkpoint.cli.commands.{self.module}")


FILES, SESSIONS, STORE, MORE = "files", "sessions", "store", "more"

COMMANDS = (
    Listed("save", "save a checkpoint of a directory", FILES, makes_store=True),
    Listed("log", "show the checkpoint history and its branches", FILES),
    Listed("show", "show the contents of a checkpoint", FILES),
    Listed("diff", "show changes between checkpoints, or to the working tree", FILES),
    Listed("restore", "restore files from a checkpoint", FILES),
    Listed("watch", "save a checkpoint whenever files change", FILES, makes_store=True),
    Listed("run", "run a command and save checkpoints while it runs", FILES, makes_store=True),
    Listed("rollback", "roll a session back: files, state and conversation", SESSIONS),
    Listed("fork", "create a branch from a checkpoint", SESSIONS),
    Listed("tasks", "list the tasks of a session and their status", SESSIONS),
    Listed("effects", "list external side effects and record their outcomes", SESSIONS),
    Listed("approvals", "list, approve or deny tool calls that need approval", SESSIONS),
    Listed("hook", "save a checkpoint at every tool call of a coding agent", SESSIONS),
    Listed("rewind", "rewind a coding agent to an earlier tool call", SESSIONS),
    Listed("keys", "list all keys", STORE),
    Listed("stats", "show the number and size of checkpoints and objects", STORE),
    Listed("verify", "check the integrity of every checkpoint and object", STORE),
    Listed("prune", "delete old checkpoints by a retention policy", STORE),
    Listed("delete", "delete keys or checkpoints", STORE),
    Listed("gc", "delete unreachable objects", STORE),
    Listed("purge", "remove a leaked secret from all checkpoints", STORE),
    Listed("export", "write a key and its checkpoints to an archive", STORE),
    Listed("import", "import a key from an archive", STORE, makes_store=True),
    Listed("ui", "show the timeline in a browser", MORE),
    Listed("demo", "run a demo with a scripted coding agent", MORE),
    Listed("doctor", "check which features work on this machine", MORE, makes_store=True),
    Listed("completion", "print a shell completion script", MORE),
)


def find_command(name: str) -> Listed | None:
    """Return the command with a name; None if there is none."""
    return next((command for command in COMMANDS if command.name == name), None)
