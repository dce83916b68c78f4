"""Finds what keeps an installed hook from running. Owns the words for it; changes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from agent_checkpoint.agents.agent_events import CLAUDE, CODEX, GEMINI, PROGRAMS, QWEN
from agent_checkpoint.agents.session_presence import all_presences
from agent_checkpoint.agents.settings.agent_settings import (
    FORMATS,
    claude_version,
    installed,
    missing_program,
    our_positions,
    settings_file,
    settings_value,
    usual_settings_file,
)
from agent_checkpoint.agents.settings.codex_review import review_problem
from agent_checkpoint.agents.settings.installed_plugins import COMMAND as PLUGIN_COMMAND
from agent_checkpoint.agents.settings.installed_plugins import NAME as PLUGIN_NAME
from agent_checkpoint.agents.settings.installed_plugins import REMOVE, codex_plugin_hooks
from agent_checkpoint.backends.os_support.space_limits import SpaceLimits
from agent_checkpoint.errors import StorageError
from agent_checkpoint.named_tuple import NamedTuple

_SWITCHES: dict[str, tuple[tuple[str, ...], bool]] = {
    CLAUDE: (("disableAllHooks",), True),
    GEMINI: (("hooksConfig", "enabled"), False),
}
"""The setting of an agent that disables all hooks, and its value then."""
_READS_ITS_OWN_DIRECTORY = (GEMINI, QWEN)
"""Agents that read the settings of the directory where they start, not those above it."""


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
    is_blocked: bool = False
    """Whether a problem keeps all calls from being saved."""


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
    gone = None if is_current else missing_program(agent, path, project)
    if not is_current:
        problems.append(
            f"The hook in {path} runs {gone}, which does not exist, so nothing is saved: run "
            if gone is not None
            else f"The entries in {path} are of another version: run "
        )
        problems[-1] += _how_to_renew(agent, path, project)
    has_newer = {event for event, _, _ in positions} >= set(FORMATS[agent].newer)
    if not has_newer and not claude_version():
        problems.append(
            "`claude` is not on PATH, so failed calls get no checkpoint: run `agent-checkpoint "
            "hook install claude-code` where it is."
        )
    names, off = _SWITCHES.get(agent, ((), True))
    is_off = bool(names) and settings_value(agent, path, project, *names) is off
    if is_off:
        problems.append(f"Hooks are disabled in {path}.")
    reviewed = None
    if agent == CODEX:
        hooks = settings_value(agent, path, project, "hooks")
        problem = review_problem({str(path), str(path.resolve())}, hooks, positions, path)
        reviewed = problem is None
        problems += [problem] if problem else []
    is_blocked = gone is not None or is_off or reviewed is False
    return HookHealth(is_current, reviewed, tuple(problems), not is_current, is_blocked)


def plugin_health(agent: str, place: Path) -> HookHealth:
    """Return the state of our plugin in an agent."""
    problems, reviewed = [], None
    if shutil.which(PLUGIN_COMMAND) is None:
        problems.append(
            f"The plugin of {agent} runs `{PLUGIN_COMMAND}`, which is not on PATH, so nothing is "
            "saved: add its directory to PATH, or use `agent-checkpoint hook install` instead."
        )
    if agent == CODEX:
        hooks = codex_plugin_hooks()
        entries = [(event, 0, 0) for event in hooks]
        problem = review_problem({f"{PLUGIN_NAME}:hooks/hooks.json"}, hooks, entries, place)
        reviewed = problem is None
        problems += [problem] if problem else []
    return HookHealth(True, reviewed, tuple(problems), is_blocked=bool(problems))


def _how_to_renew(agent: str, path: Path, project: Path | None) -> str:
    if path != settings_file(agent, project):
        return f"`agent-checkpoint hook install {agent}`, and remove the entries of that file."
    scope = "" if project is None else " --project"
    return f"`agent-checkpoint hook install {agent}{scope}` again."


def installed_twice(agent: str, paths: list[Path], plugin: Path | None) -> str:
    """Return that an agent has the hook more than once, and what to do."""
    is_last_ours = paths[-1].name == Path(FORMATS[agent].project).name
    if plugin is not None:
        how = f"`{REMOVE[agent]}` removes the plugin."
    elif is_last_ours:
        how = f"`agent-checkpoint hook uninstall {agent} --project` removes that of the project."
    else:
        how = "remove the entries of the last file."
    places = [*map(str, paths), *([f"its plugin ({plugin})"] if plugin is not None else [])]
    return (
        f"The hook of {agent} is in {' and in '.join(places)}, so an event may be saved twice. "
        f"Keep one: {how}"
    )


def not_read_here(agent: str, path: Path, here: Path) -> str | None:
    """Return that an agent started in a sub-directory does not read a hook; None if it does."""
    if agent not in _READS_ITS_OWN_DIRECTORY:
        return None
    return (
        f"{agent} reads settings of a project only in the directory where it starts. Started in "
        f"{here}, it does not read {path}: start it where that file is, or run `agent-checkpoint "
        f"hook install {agent}` for all your projects."
    )


def write_problem(place: Path) -> str | None:
    """Return why nothing can be saved in a store, which need not exist; None if it can."""
    why = _why_not_writable(place)
    if why is not None:
        return (
            f"Nothing is saved: {why}. Make it writable, or save elsewhere: `agent-checkpoint "
            "--store DIR hook install AGENT`."
        )
    try:
        SpaceLimits(place, min_free=None, max_bytes=None).check({})
    except StorageError as error:
        return f"Nothing is saved. {error}"
    return None


def state_problem(place: Path) -> str | None:
    """Return what is missing if the state directory is not writable; None if it is."""
    why = _why_not_writable(place)
    if why is None:
        return None
    return (
        f"Errors and last events are not recorded, and conversations cannot be rewound: {why}. "
        "Make it writable."
    )


def _why_not_writable(place: Path) -> str | None:
    near = next(path for path in (place, *place.parents) if os.path.exists(path))
    if os.access(near, os.W_OK | os.X_OK):
        return None
    what = str(place) if near == place else f"{place} does not exist, and {near}"
    return f"{what} is read-only or not yours"


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
