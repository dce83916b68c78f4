"""Finds our plugin package in a coding agent, which has hooks without an entry in the settings.

Owns where agents keep plugins; changes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import CLAUDE, CODEX, COPILOT, GEMINI, QWEN
from agent_checkpoint.agents.settings.agent_settings import agent_home, settings_value
from agent_checkpoint.agents.settings.codex_review import codex_settings
from agent_checkpoint.errors import InvalidInputError

COMMAND = "agent-checkpoint-hook"
"""The command that the hooks of a plugin run."""
NAME = "agent-checkpoint@agent-checkpoint"
"""The plugin and its marketplace."""
_SECTION = re.compile(rf"""^\s*\[\s*plugins\s*\.\s*["']{NAME}["']\s*\]""")
REMOVE = {
    CLAUDE: f"claude plugin uninstall {NAME}",
    CODEX: f"codex plugin remove {NAME}",
    GEMINI: "gemini extensions uninstall agent-checkpoint",
    QWEN: "qwen extensions uninstall agent-checkpoint",
    COPILOT: f"copilot plugin uninstall {NAME}",
}
"""The command that removes the plugin from an agent."""


def installed_plugin(agent: str) -> Path | None:
    """Return the file or directory that has our plugin in an agent; None if none is enabled."""
    home = agent_home(agent)
    if agent in (CLAUDE, COPILOT):
        path = home / "settings.json"
        with suppress(InvalidInputError):
            return path if settings_value(agent, path, None, "enabledPlugins", NAME) else None
    elif agent == CODEX:
        return home / "config.toml" if _is_on_in_codex() else None
    elif agent in (GEMINI, QWEN):
        path = home / "extensions" / "agent-checkpoint"
        return path if path.is_dir() else None
    return None


def codex_plugin_hooks() -> Any:
    """Return the hooks of the newest version of the plugin in Codex, by event; {} if unknown."""
    place = agent_home(CODEX) / "plugins" / "cache" / "agent-checkpoint" / "agent-checkpoint"
    found = [path for path in place.glob("*/hooks/hooks.json") if path.is_file()]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return {}
    with suppress(InvalidInputError):
        return settings_value(CODEX, newest, None, "hooks") or {}
    return {}


def _is_on_in_codex() -> bool:
    is_ours = is_found = False
    for line in codex_settings().splitlines():
        if line.lstrip().startswith("["):
            is_ours = _SECTION.match(line) is not None
            is_found = is_found or is_ours
        elif is_ours and re.match(r"\s*enabled\s*=\s*false", line):
            return False
    return is_found
