"""Commands that are shown to be typed. Owns how they are written; knows no error by its class.

The library speaks to who programs with it, and names calls. Who has typed a command gets the
command that does the same. It is for the store that was named, or it would act on another.
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
    (r"[Pp]ass workspace=", "Say --workspace"),
    (r"pass shared=True, which", "say --shared, which"),
    (
        r"delete the key here and import the archive",
        f"`{_COMMAND} delete` the key here and `{_COMMAND} import` the archive",
    ),
    (r'pass backend="\w+", or (\w+://\S+)\.$', r"say --store \1"),
    (
        r"Pass rebind=True to continue with the files in it\.",
        "Name an empty directory.",
    ),
    (r"pass force=True", "say --force"),
    (r"by ignore= or", "by --ignore or"),
    (r", or set another limit=", ", or say --limit"),
    (r"in ignore=", "in --ignore"),
    (r", with paths=,", ", by its path,"),
    (r"delete it before importing (.*)\.", r"import \1 into another store, by --store."),
    (r"verify\(\)", f"`{_COMMAND} verify`"),
    (r" \(pass an id that save\(\) returned\)", ""),
)


_FORCE = ", or pass Workspace(path, force=True)"


def typed(command: str, store: str | None) -> str:
    """Return a command as it is to be typed.

    Args:
        command: its name and what follows, quoted for a shell.
        store: what was said by `--store`, if anything was.
    """
    return f"{_COMMAND} {command}" if store is None else f"{_begin(store)} {command}"


def in_commands(message: str, store: str | None = None, *, can_force: bool = False) -> str:
    """Return a message of the library with commands and options in the place of calls.

    Args:
        message: what it says.
        store: what was said by `--store`, if anything was.
        can_force: whether the command has `--force`.
    """
    message = message.replace(_FORCE, ", or say --force" if can_force else "")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    if store is None:
        return message
    # Only those that we have put there: a name of the user's stands in quotes, not in these.
    return message.replace(f"`{_COMMAND} ", f"`{_begin(store)} ")


def _begin(store: str) -> str:
    return f"{_COMMAND} --store {shell_quote(store)}"
