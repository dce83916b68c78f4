"""The command line that an agent runs at every event. Owns building and recognizing it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from agent_checkpoint.agents.agent_events import AGENTS, GEMINI
from agent_checkpoint.agents.hook.protocol import CLIENT

_CLIENTS = ("agent_checkpoint/agents/hook/client.py", "agent_checkpoint/cli/hooks/client.py")
"""The path of the client, now and in version 0.1."""
_REST = (["2>/dev/null", "||", "true"], ["2>/dev/null", "||", "echo", "{}"])
"""The shell suffixes of our command, as words."""
_STORE = "--store"


def command_of(agent: str, store: str = "") -> str:
    """Return the command line for an agent, with `--store` if a store is given.

    The command line succeeds even if Python or the package is removed. Python exits with status 2
    for a missing file, which agents interpret as "block this tool call".
    """
    parts = [sys.executable, "-I", "-S", CLIENT, agent, *([_STORE, store] if store else [])]
    otherwise = "echo '{}'" if agent == GEMINI else "true"
    return f"{shlex.join(parts)} 2>/dev/null || {otherwise}"


def is_ours(command: str) -> bool:
    """Return whether a command line is exactly our hook command, not one that contains it."""
    words = _words(command)
    if words[-2:-1] == [_STORE]:
        del words[-2:]
    if len(words) < 3 or words[-1] not in AGENTS:
        return False
    first, *between, last = words[:-1]
    if Path(first).name == "agent-checkpoint":
        return (between, last) == ([], "hook")
    return last.endswith(_CLIENTS) and all(word.startswith("-") for word in between)


def missing_file(command: str) -> str | None:
    """Return the first file of a hook command line that does not exist; None if all do."""
    words = _words(command)
    if words[-2:-1] == [_STORE]:
        del words[-2:]
    files = (word for word in words if word.startswith("/"))
    return next((word for word in files if not Path(word).exists()), None)


def store_in(command: str) -> str:
    """Return the `--store` value of a hook command line, or "" if it has none."""
    words = _words(command)
    return words[-1] if words[-2:-1] == [_STORE] else ""


def _words(command: str) -> list[str]:
    """Return the words of a command line, without the shell suffix."""
    try:
        words = shlex.split(command)
    except ValueError:  # unbalanced quotes
        return []
    for rest in _REST:
        if words[-len(rest) :] == rest:
            return words[: -len(rest)]
    return words
