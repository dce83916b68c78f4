"""Finds what keeps an installed hook from running. Owns the words for it; changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from agent_checkpoint.agents.agent_events import CLAUDE, CODEX, GEMINI, PROGRAMS
from agent_checkpoint.agents.session_presence import all_presences
from agent_checkpoint.agents.settings.agent_settings import (
    FORMATS,
    agent_home,
    claude_version,
    installed,
    missing_program,
    our_positions,
    settings_file,
    settings_value,
    usual_settings_file,
)
from agent_checkpoint.agents.settings.settings_files import read_settings
from agent_checkpoint.backends.os_support.space_limits import SpaceLimits
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.named_tuple import NamedTuple

_KEY = re.compile(r"""^\s*\[\s*hooks\s*\.\s*state\s*\.\s*("(?:[^"\\]|\\.)*"|'[^']*')\s*\]""")


_SWITCHES: dict[str, tuple[tuple[str, ...], bool]] = {
    CLAUDE: (("disableAllHooks",), True),
    GEMINI: (("hooksConfig", "enabled"), False),
}
"""The setting of an agent that disables all hooks, and its value then."""


class HookHealth(NamedTuple):
    """The state of the hook in one settings file."""

    installed: bool
    """Whether all our entries are there, and those of this version."""
    reviewed: bool | None
    """Whether the user has reviewed them; None if the agent asks for no review."""
    problems: tuple[str, ...]
    """What is wrong, and what to do."""
    is_outdated: bool = False
    """Whether there are entries, but not all of this version."""


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
        problems = _why_not_installed(agent) if project is None else []
        return HookHealth(installed=False, reviewed=None, problems=tuple(problems))
    is_current = installed(agent, path, project)
    problems = []
    if not is_current:
        gone = missing_program(agent, path, project)
        problems.append(
            f"The hook in {path} runs {gone}, which does not exist, so nothing is saved: run "
            if gone is not None
            else f"The entries in {path} are of another version: run "
        )
        problems[-1] += _how_to_renew(agent, path, project)
    if agent == CLAUDE and not claude_version():
        problems.append(
            "`claude` is not on PATH, so failed calls get no checkpoint: run `agent-checkpoint "
            "hook install claude-code` where it is."
        )
    names, off = _SWITCHES.get(agent, ((), True))
    if names and settings_value(agent, path, project, *names) is off:
        problems.append(f"Hooks are disabled in {path}.")
    reviewed = _is_reviewed(path, positions) if agent == CODEX else None
    if reviewed is False:
        problems.append(
            "Codex runs no hook before you have reviewed it: type /hooks in Codex. `codex exec` "
            "does not ask, and runs none until then."
        )
    return HookHealth(is_current, reviewed, tuple(problems), is_outdated=not is_current)


def _how_to_renew(agent: str, path: Path, project: Path | None) -> str:
    if path != settings_file(agent, project):
        return f"`agent-checkpoint hook install {agent}`, and remove the entries of that file."
    scope = "" if project is None else " --project"
    return f"`agent-checkpoint hook install {agent}{scope}` again."


def installed_twice(agent: str, paths: list[Path]) -> str:
    """Return that an agent has the hook in several settings files, and what to do."""
    is_last_ours = paths[-1].name == Path(FORMATS[agent].project).name
    return (
        f"The hook of {agent} is in {' and in '.join(map(str, paths))}, so an event may be saved "
        "twice. Keep one: "
        + (
            f"`agent-checkpoint hook uninstall {agent} --project` removes that of the project."
            if is_last_ours
            else "remove the entries of the last file."
        )
    )


def write_problem(place: Path) -> str | None:
    """Return why nothing can be saved in a directory, which need not exist; None if it can."""
    near = next(path for path in (place, *place.parents) if os.path.exists(path))
    if not os.access(near, os.W_OK | os.X_OK):
        return f"Nothing is saved: {near} is read-only or not yours."
    try:
        SpaceLimits(place, min_free=None, max_bytes=None).check({})
    except StorageError as error:
        return f"Nothing is saved. {error}"
    return None


def _why_not_installed(agent: str) -> list[str]:
    """Return what is wrong if the user's settings have no hook."""
    again = f"run `agent-checkpoint hook install {agent}`."
    usual, path = usual_settings_file(agent), settings_file(agent, None)
    if usual != path and our_positions(agent, usual, None):
        variable = FORMATS[agent].home[0]
        return [f"{variable} is set, so {agent} reads {path}, but the hook is in {usual}: {again}"]
    # A plug-in of the agent sends events without an entry in the settings.
    if shutil.which(PROGRAMS[agent]) is not None and last_seen(agent).event is None:
        return [f"`{PROGRAMS[agent]}` is on this machine, but its hook is not installed: {again}"]
    return []


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
