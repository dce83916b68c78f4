"""Formats commands to copy, and the texts of errors: commands and options instead of API calls."""

from __future__ import annotations

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.formatting import shell_quote, without_password

_COMMAND = "agent-checkpoint"
_LATER = "or choose a later checkpoint."
_RESOLVE = "`{run} effects resolve {effect} --happened`, or `--not`."
HINTS = {
    "clock": "Set the clock, or use `{run} gc --ignore-clock`.",
    "directory": "Pass --workspace to choose the directory.",
    "effects": f"Pass --effects warn to roll back anyway, {_LATER}",
    "effects_unknown": f"Pass --effects warn to roll back anyway, {_LATER} Record an unknown "
    f"outcome with {_RESOLVE}",
    "existing_directory": "Pass --workspace with an existing directory.",
    "encryption_key": "Name its key in the URL: --store '…?encryption_key_file=/path' or "
    "…?encryption_key_env=NAME.",
    "exists": "Import {path} into another store, by --store.",
    "force": "Use the directory of one project, or pass --force.",
    "head": "Retry, or fork.",
    "history": "`{run} log {key}` lists its checkpoints.",
    "import": "Otherwise ask its owner for an archive exported from a copy of the store; then "
    "`{run} delete` the key here and `{run} import` the archive.",
    "json_value": "To change its type, use --set-json {name}=JSON.",
    "limit": "Exclude generated files with --ignore or .checkpointignore, or raise --limit.",
    "list_keys": "`{run} keys` lists all keys.",
    "missing_object": "Restore it from a backup; `{run} verify` lists the affected checkpoints.",
    "new_directory": "Pass --workspace with a new directory to restore its files.",
    "new_store": "Make it writable, or pass --store DIR.",
    "paths": "Restore one of them by its path, or restore to another file system.",
    "rebind": "Choose an empty directory.",
    "resolve": f"Check it, and record it with {_RESOLVE}",
    "restore": "To go back: `{run} restore {checkpoint}`.",
    "shared": "For a shared store pass --shared, which loads only checkpoints signed with your "
    "secret; otherwise choose a directory that only you can write.",
    "space": "Run `{run} prune` and `{run} gc`, or free some space; reading and deleting still "
    "work.",
    "store": "Pass --store {url}",
    "unsearchable": "Repair or delete the affected checkpoints first; `{run} verify` lists them.",
}
"""The text of the command for each hint code, with the values of the hint."""
_WITHOUT_FORCE = "Use the directory of one project."


def command_line(command: str, store: str | None) -> str:
    """Return a complete command line.

    Args:
        command: the command name and its arguments, quoted for a shell.
        store: the value of `--store`, if given.
    """
    return f"{_begin(store)} {command}"


def error_text(error: Exception, store: str | None = None, *, can_force: bool = False) -> str:
    """Return the text of an error, with the hint of the command.

    Args:
        error: the error.
        store: the value of `--store`, if given.
        can_force: whether the command has `--force`.
    """
    if not isinstance(error, CheckpointError):
        return f"{type(error).__name__}: {error}"
    hint = error.hint
    if hint is None or hint.code not in HINTS:
        return with_store(str(error), store)
    text = _WITHOUT_FORCE if hint.code == "force" and not can_force else HINTS[hint.code]
    values = {name: shell_quote(value) for name, value in hint.values.items()}
    return with_store(error.with_hint(text.format(run=_begin(None), **values)), store)


def with_store(text: str, store: str | None) -> str:
    """Return a text whose commands, in backquotes, have the value of `--store`, if given."""
    return text.replace(f"`{_begin(None)} ", f"`{_begin(store)} ")


def _begin(store: str | None) -> str:
    if store is None:
        return _COMMAND
    return f"{_COMMAND} --store {shell_quote(without_password(store))}"
