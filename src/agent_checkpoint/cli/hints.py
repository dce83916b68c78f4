"""Turn API calls in library messages into commands, and print commands to copy.

Messages of the library name calls and parameters. Users of the command get the equivalent
commands and options, with the same --store, so that they act on the same store.
"""

from __future__ import annotations

import re

from agent_checkpoint.formatting import shell_quote

_COMMAND = "agent-checkpoint"
_WORDS: tuple[tuple[str, str], ...] = (
    (r"list_keys\(\) lists all keys", rf"`{_COMMAND} keys` lists all keys"),
    (
        r"history\(('.*?'|\".*?\")\) lists its checkpoints",
        rf"`{_COMMAND} log \1` lists its checkpoints",
    ),
    (
        r"session\.resolve\('([\w-]+)', happened=[^)]*\)",
        rf"`{_COMMAND} effects resolve \1 --happened`, or `--not`",
    ),
    (r"session\.undo\(\) returns to it", f"`{_COMMAND} rollback --to` with that id returns to it"),
    (r'effects="(\w+)"', r"--effects \1"),
    (r"gc\(ignore_clock=True\)", f"`{_COMMAND} gc --ignore-clock`"),
    (r"Run prune and gc\b", f"Run `{_COMMAND} prune` and `{_COMMAND} gc`"),
    (r"restore the safety checkpoint ([\w@%+=:,./-]+)\.$", rf"`{_COMMAND} restore \1`."),
    (r"[Pp]ass workspace=", "Pass --workspace"),
    (r"pass shared=True, which", "pass --shared, which"),
    (
        r"delete the key here and import the archive",
        f"`{_COMMAND} delete` the key here and `{_COMMAND} import` the archive",
    ),
    (r'pass backend="\w+", or (\w+://\S+)\.$', r"pass --store \1"),
    (
        r"Pass rebind=True to continue with the files in it\.",
        "Name an empty directory.",
    ),
    (r"pass force=True", "pass --force"),
    (r"by ignore= or", "by --ignore or"),
    (r", or set another limit=", ", or pass --limit"),
    (r"in ignore=", "in --ignore"),
    (r", with paths=,", ", by its path,"),
    (r"delete it before importing (.*)\.", r"import \1 into another store, by --store."),
    (r"verify\(\)", f"`{_COMMAND} verify`"),
    (r" \(pass an id that save\(\) returned\)", ""),
)


_FORCE = ", or pass Workspace(path, force=True)"


def command_line(command: str, store: str | None) -> str:
    """Return a complete command line.

    Args:
        command: the command name and its arguments, quoted for a shell.
        store: the value of `--store`, if given.
    """
    return f"{_COMMAND} {command}" if store is None else f"{_begin(store)} {command}"


def to_cli_terms(message: str, store: str | None = None, *, can_force: bool = False) -> str:
    """Return a message of the library with commands and options instead of API calls.

    Args:
        message: the message.
        store: the value of `--store`, if given.
        can_force: whether the command has `--force`.
    """
    message = message.replace(_FORCE, ", or pass --force" if can_force else "")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    if store is None:
        return message
    # Only commands inserted above have backquotes: user-supplied names are in single quotes.
    return message.replace(f"`{_COMMAND} ", f"`{_begin(store)} ")


def _begin(store: str) -> str:
    return f"{_COMMAND} --store {shell_quote(store)}"
