"""The command that an agent starts at every event. Owns its words, and telling it from others."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from agent_checkpoint.agents.agent_events import AGENTS, GEMINI
from agent_checkpoint.agents.hook.client import FILE

_CLIENTS = ("agent_checkpoint/agents/hook/client.py", "agent_checkpoint/cli/hooks/client.py")
"""Where the client is, and where version 0.1 had it."""
_REST = (["2>/dev/null", "||", "true"], ["2>/dev/null", "||", "echo", "{}"])
"""What stands behind our command, as words."""
_STORE = "--store"


def command_of(agent: str, store: str = "") -> str:
    """Return the command that an agent starts; it saves to a store, if one is named.

    If Python or the package are gone it ends well all the same: the status 2, which Python has for
    a file that is missing, would keep the agent from every tool call.
    """
    parts = [sys.executable, "-I", "-S", FILE, agent, *([_STORE, store] if store else [])]
    otherwise = "echo '{}'" if agent == GEMINI else "true"
    return f"{shlex.join(parts)} 2>/dev/null || {otherwise}"


def is_ours(command: str) -> bool:
    """Tell whether a command is ours and nothing else: one that only mentions ours is not."""
    words = _words(command)
    if words[-2:-1] == [_STORE]:
        del words[-2:]
    if len(words) < 3 or words[-1] not in AGENTS:
        return False
    first, *between, last = words[:-1]
    if Path(first).name == "agent-checkpoint":
        return (between, last) == ([], "hook")
    return last.endswith(_CLIENTS) and all(word.startswith("-") for word in between)


def store_in(command: str) -> str:
    """Return the store that a command of ours names; empty if none."""
    words = _words(command)
    return words[-1] if words[-2:-1] == [_STORE] else ""


def _words(command: str) -> list[str]:
    """Return the words of a command, without what comes if it fails."""
    try:
        words = shlex.split(command)
    except ValueError:  # quotes that do not match
        return []
    for rest in _REST:
        if words[-len(rest) :] == rest:
            return words[: -len(rest)]
    return words
