"""What the library says, in terms of commands. Owns the translation; knows no error by its class.

The library speaks to who programs with it, and names calls. Who has typed a command gets the
command that does the same.
"""

from __future__ import annotations

import re

_COMMAND = "agent-checkpoint"
_WORDS: tuple[tuple[str, str], ...] = (
    (r"list_keys\(\) names them all", rf"`{_COMMAND} keys` lists them all"),
    (r"history\(('.*?'|\".*?\")\) lists those it has", rf"`{_COMMAND} log \1` lists those it has"),
    (
        r"session\.resolve\('([\w-]+)', happened=[^)]*\)",
        rf"`{_COMMAND} effects resolve \1 --happened`, or `--not`",
    ),
    (r"session\.undo\(\) goes there", f"`{_COMMAND} rollback --to` with that id goes there"),
    (r'effects="(\w+)"', r"--effects \1"),
    (r"gc\(ignore_clock=True\)", f"`{_COMMAND} gc --ignore-clock`"),
    (r"Prune and gc\b", f"`{_COMMAND} prune` and `{_COMMAND} gc`"),
    (r"[Pp]ass workspace=", "Say --workspace"),
    (r"Pass rebind=True if they are\.", "Name an empty directory."),
    (r"pass force=True", "say --force"),
    (r"by ignore= or", "by --ignore or"),
    (r", or set another limit=", ", or say --limit"),
    (r"in ignore=", "in --ignore"),
    (r", with paths=,", ", by its path,"),
    (r"delete it before importing (.*)\.", r"import \1 into another store, by --store."),
    (r"verify\(\)", f"`{_COMMAND} verify`"),
    (r" \(an id is what save\(\) returned\)", ""),
)


def in_commands(message: str) -> str:
    """Return a message of the library with commands and options in the place of calls."""
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message
