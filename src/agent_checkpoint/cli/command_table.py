"""The table of commands, in the order of the help page. Does not import the commands."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would cost 10 ms
if TYPE_CHECKING:
    from types import ModuleType


class CommandRow:
    """One row of the command table."""

    def __init__(
        self,
        name: str,
        help: str,
        group: str,
        *,
        makes_store: bool = False,
        takes_store: bool = True,
    ) -> None:
        self.name = name
        self.help = help
        self.group = group
        self.takes_store = takes_store
        """Whether the command has the options for a store."""
        self.makes_store = makes_store
        """Whether a missing store is created; otherwise a missing store is an error."""

    @property
    def module(self) -> str:
        """The name of the command's module."""
        name = self.name.replace("-", "_")
        # Python keywords get an underscore.
        return f"{name}_" if name in ("import",) else name

    def load(self) -> ModuleType:
        """Import the module of the command.

        It has `EXAMPLES`, lines for the end of the help; `arguments(parser)`, which adds its
        arguments to a `Parser`; and `run(args, location)`, which returns a `CommandResult` and
        raises CheckpointError.
        """
        from importlib import import_module

        return import_module(f"agent_checkpoint.cli.commands.{self.module}")


FILES, SESSIONS, TRAJECTORY = "files", "sessions", "trajectory"
STORE, MORE = "store", "more"

COMMANDS = (
    CommandRow("save", "save a checkpoint of a directory", FILES, makes_store=True),
    CommandRow("log", "show the checkpoint history and its branches", FILES),
    CommandRow("show", "show the contents of a checkpoint", FILES),
    CommandRow("diff", "show changes between checkpoints, or to the working tree", FILES),
    CommandRow("restore", "restore files from a checkpoint", FILES),
    CommandRow("undo", "take back the last rollback, restore, revert or adopt", FILES),
    CommandRow("watch", "save a checkpoint whenever files change", FILES, makes_store=True),
    CommandRow("run", "run a command and save checkpoints while it runs", FILES, makes_store=True),
    CommandRow("rollback", "roll a session back: files, state and conversation", SESSIONS),
    CommandRow("fork", "create a branch from a checkpoint", SESSIONS),
    CommandRow("tasks", "list the tasks of a session and their status", SESSIONS),
    CommandRow("effects", "list external side effects and record their outcomes", SESSIONS),
    CommandRow("approvals", "list, approve or deny tool calls that need approval", SESSIONS),
    CommandRow("hook", "save a checkpoint at every tool call of a coding agent", SESSIONS),
    CommandRow("rewind", "rewind a coding agent to an earlier tool call", SESSIONS),
    CommandRow("bisect", "find the step after which a test fails", TRAJECTORY),
    CommandRow("blame", "show which step wrote each line of a file", TRAJECTORY),
    CommandRow("revert", "take the file changes of a step out, keep later work", TRAJECTORY),
    CommandRow("keys", "list all keys", STORE),
    CommandRow("stats", "show the number and size of checkpoints and objects", STORE),
    CommandRow("verify", "check the integrity of every checkpoint and object", STORE),
    CommandRow("prune", "delete old checkpoints by a retention policy", STORE),
    CommandRow("delete", "delete keys or checkpoints", STORE),
    CommandRow("gc", "delete unreachable objects", STORE),
    CommandRow("purge", "remove a leaked secret from all checkpoints", STORE),
    CommandRow("rotate-key", "change the encryption key of a store", STORE),
    CommandRow("export", "write a key to an archive, or as a trajectory", STORE),
    CommandRow("import", "import a key from an archive or a trajectory", STORE, makes_store=True),
    CommandRow("import-langgraph", "import threads of LangGraph", STORE, makes_store=True),
    CommandRow("copy", "copy keys from store to store", STORE, takes_store=False),
    CommandRow("ui", "show the timeline in a browser", MORE),
    CommandRow("mcp", "serve the checkpoints of a directory to an agent", MORE, makes_store=True),
    CommandRow("demo", "run a demo with a scripted coding agent", MORE, takes_store=False),
    CommandRow("doctor", "check which features work on this machine", MORE, makes_store=True),
    CommandRow("completion", "print a shell completion script", MORE),
)


def find_command(name: str) -> CommandRow | None:
    """Return the command of a name, or None."""
    return next((command for command in COMMANDS if command.name == name), None)
