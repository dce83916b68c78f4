"""Finds what keeps an installed hook from running. Owns the words for it; changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

from agent_checkpoint.agents.agent_events import CLAUDE, CODEX, GEMINI
from agent_checkpoint.agents.session_presence import all_presences
from agent_checkpoint.agents.settings.agent_settings import (
    agent_home,
    claude_version,
    installed,
    our_positions,
    settings_value,
)
from agent_checkpoint.agents.settings.settings_files import read_settings
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple

_KEY = re.compile(r"""^\s*\[\s*hooks\s*\.\s*state\s*\.\s*("(?:[^"\\]|\\.)*"|'[^']*')\s*\]""")


class HookHealth(NamedTuple):
    """The state of the hook in one settings file."""

    installed: bool
    """Whether all our entries are there, and those of this version."""
    reviewed: bool | None
    """Whether the user has reviewed them; None if the agent asks for no review."""
    problems: tuple[str, ...]
    """What is wrong, and what to do."""


class LastSeen(NamedTuple):
    """The last sign of life of an agent."""

    event: float | None
    """When its last event was received."""
    checkpoint: float | None
    """When its last checkpoint was saved."""


def hook_health(agent: str, path: Path, project: Path | None) -> HookHealth:
    """Return the state of the hook in a settings file. Raises InvalidInputError."""
    positions = our_positions(agent, path, project)
    if not positions:
        return HookHealth(installed=False, reviewed=None, problems=())
    is_current = installed(agent, path, project)
    problems = []
    if not is_current:
        problems.append(
            f"The entries in {path} are of another version: run `agent-checkpoint hook install "
            f"{agent}` again."
        )
    if agent == CLAUDE and not claude_version():
        problems.append(
            "`claude` is not on PATH, so failed calls get no checkpoint: run `agent-checkpoint "
            "hook install claude-code` where it is."
        )
    is_off = {
        CLAUDE: settings_value(agent, path, project, "disableAllHooks") is True,
        GEMINI: settings_value(agent, path, project, "hooksConfig", "enabled") is False,
    }
    if is_off.get(agent):
        problems.append(f"Hooks are disabled in {path}.")
    reviewed = _is_reviewed(path, positions) if agent == CODEX else None
    if reviewed is False:
        problems.append(
            "Codex runs no hook before you have reviewed it: type /hooks in Codex. `codex exec` "
            "does not ask, and runs none until then."
        )
    return HookHealth(is_current, reviewed, tuple(problems))


def last_seen(agent: str) -> LastSeen:
    """Return when an agent was last seen in any session of this user."""
    found = [one for one in all_presences() if one.agent == agent]
    events = [one.ts for one in found]
    saved = [one.saved for one in found if one.saved is not None]
    return LastSeen(max(events, default=None), max(saved, default=None))


def _is_reviewed(path: Path, positions: list[tuple[str, int, int]]) -> bool:
    """Return whether Codex has recorded a review of each of our entries.

    It names an entry by the file, the event and two numbers. The hash of the reviewed text is not
    checked here; Codex does that.
    """
    try:
        text = read_settings(agent_home(CODEX) / "config.toml", None) or ""
    except InvalidInputError:
        return False
    files = {str(path), str(path.resolve())}
    names = {
        f"{file}:{re.sub('(?<!^)(?=[A-Z])', '_', event).lower()}:{group}:{handler}": (event, group)
        for file in files
        for event, group, handler in positions
    }
    reviewed: set[tuple[str, int]] = set()
    current: tuple[str, int] | None = None
    for line in text.splitlines():
        found = _KEY.match(line)
        if found is not None:
            current = names.get(_unquoted(found[1]))
        elif line.lstrip().startswith("["):
            current = None
        elif current is not None and re.match(r"\s*trusted_hash\s*=", line):
            reviewed.add(current)
        elif current is not None and re.match(r"\s*enabled\s*=\s*false", line):
            reviewed.discard(current)
            current = None
    return reviewed >= {(event, group) for event, group, _ in positions}


def _unquoted(text: str) -> str:
    try:
        return text[1:-1] if text.startswith("'") else str(json.loads(text))
    except ValueError:  # an escape that JSON does not have
        return ""
