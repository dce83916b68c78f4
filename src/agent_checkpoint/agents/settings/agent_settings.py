"""Installs and uninstalls the hook. Owns the settings formats of coding agents."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import (
    CLAUDE,
    CLINE,
    CODEX,
    COPILOT,
    GEMINI,
    GOOSE,
    OPENCODE,
    QWEN,
)
from agent_checkpoint.agents.settings.hook_command import (
    command_of,
    is_ours,
    missing_file,
    store_in,
)
from agent_checkpoint.agents.settings.jsonc import (
    JsonNode,
    append_item,
    append_member,
    format_json,
    indent_unit,
    is_only_child,
    parse,
    remove_node,
)
from agent_checkpoint.agents.settings.plugin_files import PLUGIN_AGENTS, command_in, plugin_text
from agent_checkpoint.agents.settings.settings_files import (
    SettingsDir,
    open_settings_dir,
    read_settings,
)
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr


class SettingsFormat(NamedTuple):
    """Location and format of an agent's hook settings."""

    home: tuple[str, str, str]
    """The variable that moves the user's settings, if any, their directory in that place, and the
    one in the home directory."""
    user: str
    """The user's settings file, relative to that directory."""
    project: str
    """The settings file, relative to a project."""
    events: tuple[str, ...]
    newer: tuple[str, ...]
    """Events that older versions of the agent do not support; they may reject the whole file."""
    seconds: int
    """Timeout units per second."""
    comments: bool
    next_step: str
    """The next step for the user after the installation."""
    shared: str = ""
    """Another settings file of a project that the agent reads, which is committed to git."""
    in_project: str = ""
    """A condition of the agent for settings of a project, for the user."""
    former: tuple[str, ...] = ()
    """Events that earlier versions of this package installed. They are still saved."""


FORMATS = {
    CLAUDE: SettingsFormat(
        ("CLAUDE_CONFIG_DIR", "", ".claude"),
        "settings.json",
        # Not committed to git, because the command contains a path of this machine.
        ".claude/settings.local.json",
        ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PreCompact", "Stop", "SessionEnd"),
        ("PostToolUseFailure",),
        1,
        False,
        "Restart running sessions to load the hook.",
        ".claude/settings.json",
        # The agent waits for each event in turn, and the last call of a batch has its own event.
        former=("PostToolBatch",),
    ),
    CODEX: SettingsFormat(
        ("CODEX_HOME", "", ".codex"),
        "hooks.json",
        ".codex/hooks.json",
        ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PreCompact", "Stop"),
        (),
        1,
        False,
        'Codex runs no hook before you have reviewed it. At its next start it asks: choose "Trust '
        'all and continue". Later: type /hooks in Codex.',
        in_project="Codex reads settings of a project only if you trust the project.",
    ),
    GEMINI: SettingsFormat(
        ("GEMINI_CLI_HOME", ".gemini", ".gemini"),
        "settings.json",
        ".gemini/settings.json",
        ("BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
        (),
        1000,
        True,
        "Restart running sessions to load the hook.",
        in_project="Gemini CLI reads settings of a project only in a folder that you trust: type "
        "/permissions trust in Gemini CLI. --skip-trust is not enough.",
    ),
    QWEN: SettingsFormat(
        ("QWEN_HOME", "", ".qwen"),
        "settings.json",
        ".qwen/settings.json",
        (
            *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure"),
            *("PostToolBatch", "PreCompact", "Stop", "SessionEnd"),
        ),
        (),
        1,
        True,
        "Restart running sessions to load the hook.",
    ),
    COPILOT: SettingsFormat(
        ("COPILOT_HOME", "", ".copilot"),
        "hooks/agent-checkpoint.json",
        ".github/hooks/agent-checkpoint.json",
        (
            *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure"),
            *("PreCompact", "Stop", "SessionEnd"),
        ),
        (),
        1,
        False,
        "Restart running sessions to load the hook.",
    ),
    OPENCODE: SettingsFormat(
        ("XDG_CONFIG_HOME", "opencode", ".config/opencode"),
        "plugins/agent-checkpoint.js",
        ".opencode/plugins/agent-checkpoint.js",
        ("plugin",),
        (),
        1,
        False,
        "Restart running sessions to load the plug-in.",
    ),
    CLINE: SettingsFormat(
        ("CLINE_DIR", "", ".cline"),
        "plugins/agent-checkpoint.js",
        ".cline/plugins/agent-checkpoint.js",
        ("plugin",),
        (),
        1,
        False,
        "Restart running sessions to load the plug-in.",
    ),
    GOOSE: SettingsFormat(
        ("", "", ".agents/plugins/agent-checkpoint"),
        "hooks/hooks.json",
        ".agents/plugins/agent-checkpoint/hooks/hooks.json",
        (
            *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure"),
            *("Stop", "SessionEnd"),
        ),
        (),
        1,
        False,
        "Restart running sessions to load the hook.",
    ),
}
_TIMEOUT = 30
_KNOWS_NEWER = (2, 1, 145)
"""The Claude Code version with the newer events; before 2.1.101 an unknown event invalidates all
settings."""


@cache
def events_of(agent: str) -> tuple[str, ...]:
    """Return the events that the installed version of an agent supports."""
    form = FORMATS[agent]
    if not form.newer:
        return form.events
    version = claude_version()
    return form.events + form.newer if version >= _KNOWS_NEWER else form.events


@cache
def claude_version() -> tuple[int, ...]:
    """Return the version of Claude Code on PATH or where its installer puts it; () if unknown."""
    homes = (Path.home() / ".local/bin/claude", agent_home(CLAUDE) / "local/claude")
    for command in ("claude", *map(str, homes)):
        try:
            output = subprocess.run(
                [command, "--version"], capture_output=True, text=True, timeout=15
            ).stdout
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", output)
        if found is not None:
            return tuple(map(int, found.groups()))
    return ()


def next_step(agent: str, project: Path | None) -> str:
    """Return what the user does after the installation."""
    form = FORMATS[agent]
    return f"{form.next_step} {form.in_project}".strip() if project else form.next_step


def settings_file(agent: str, project: Path | None) -> Path:
    """Return the path of an agent's settings file, for the user or for a project."""
    form = FORMATS[agent]
    return agent_home(agent) / form.user if project is None else project / form.project


def usual_settings_file(agent: str) -> Path:
    """Return the path of the user's settings file if no variable of the agent moves it."""
    return Path.home() / FORMATS[agent].home[2] / FORMATS[agent].user


def agent_home(agent: str) -> Path:
    """Return the directory of an agent's own files, which a variable of the agent may move."""
    variable, inside, usual = FORMATS[agent].home
    moved = os.environ.get(variable)
    return Path(os.path.abspath(moved)) / inside if moved else Path.home() / usual


def installed(agent: str, path: Path, project: Path | None = None) -> bool:
    """Return whether our hooks are installed, complete and valid. Raises InvalidInputError."""
    ours = _our_commands(agent, path, project)
    events = _due_events(agent, ours)
    former = FORMATS[agent].former
    return _is_installed(agent, ours, events) or _is_installed(agent, ours, (*events, *former))


def store_of(agent: str, path: Path, project: Path | None = None) -> str:
    """Return the `--store` value of the installed hook command, or "" if it has none.

    Raises InvalidInputError if the settings file cannot be parsed.
    """
    return _store_in(_our_commands(agent, path, project))


def missing_program(agent: str, path: Path, project: Path | None) -> str | None:
    """Return a file that the installed hook command runs and that does not exist; None if none.

    Raises InvalidInputError if the settings file cannot be parsed.
    """
    for commands in _our_commands(agent, path, project).values():
        for command in commands:
            gone = missing_file(command)
            if gone is not None:
                return gone
    return None


def our_positions(agent: str, path: Path, project: Path | None) -> list[tuple[str, int, int]]:
    """Return the event of each of our entries, and its numbers in the file.

    Raises InvalidInputError if the settings file cannot be parsed.
    """
    text = read_settings(path, project) or ""
    if agent in PLUGIN_AGENTS:
        return [("plugin", 0, 0)] if command_in(agent, text) is not None else []
    hooks = _hooks(_parsed(agent, path, text)) if text.strip() else {}
    found = []
    for event in hooks:
        for _, group, handler, _ in _our_handlers(hooks, event):
            handlers = (group.members or {})["hooks"].items or []
            place = (hooks[event].items or []).index(group)
            found.append((event, place, handlers.index(handler)))
    return found


def settings_value(agent: str, path: Path, project: Path | None, *names: str) -> Any:
    """Return a value of a settings file; None if missing. Raises InvalidInputError."""
    text = read_settings(path, project) or ""
    found = _parsed(agent, path, text).value if text.strip() else None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _our_commands(agent: str, path: Path, project: Path | None) -> dict[str, list[str]]:
    """Return our commands by event. Raises InvalidInputError."""
    text = read_settings(path, project) or ""
    if agent in PLUGIN_AGENTS:
        command = command_in(agent, text)
        if command is None:
            return {}
        return {"plugin" if text == plugin_text(agent, command) else "outdated": [command]}
    hooks = _hooks(_parsed(agent, path, text)) if text.strip() else {}
    found = {event: [ours[-1] for ours in _our_handlers(hooks, event)] for event in hooks}
    return {event: commands for event, commands in found.items() if commands}


def _due_events(agent: str, ours: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the events of the installed version of an agent.

    If the version is unknown, they include the newer events that are installed.
    """
    newer = FORMATS[agent].newer
    is_known = not newer or claude_version()
    kept = () if is_known else tuple(event for event in newer if event in ours)
    return events_of(agent) + kept


def _is_installed(agent: str, ours: dict[str, list[str]], events: tuple[str, ...]) -> bool:
    """Return whether exactly these events have our command."""
    command = command_of(agent, _store_in(ours))
    return ours == {event: [command] for event in events}


def _store_in(ours: dict[str, list[str]]) -> str:
    return next((store_in(commands[0]) for commands in ours.values()), "")


def install(agent: str, path: Path, store: str = "", project: Path | None = None) -> bool:
    """Install our hooks; return whether the file was changed.

    Args:
        agent: the agent.
        path: the settings file.
        store: the store to save to, as an absolute path or URL.
        project: the project directory of the file; None for the user's file.

    Raises:
        InvalidInputError: the file cannot be read or parsed; it is unchanged.
        StorageError: the file cannot be written; it is unchanged.
    """
    ours = _our_commands(agent, path, project)
    events = _due_events(agent, ours)
    if _is_installed(agent, ours, events) and _store_in(ours) == store:
        return False
    before = read_settings(path, project)
    if agent in PLUGIN_AGENTS:
        if before is not None and not ours:
            raise InvalidInputError(f"{path} is not a plug-in of agent-checkpoint. Remove it.")
        with open_settings_dir(path, project) as folder:
            folder.replace(folder.name, plugin_text(agent, command_of(agent, store)))
        return True
    text = _with_ours(agent, path, before or "", store, events)
    with open_settings_dir(path, project) as folder:
        if before is not None and (not before.strip() or _removed(agent, path, before) == before):
            # Back up only a version without our hooks: a second install must not overwrite it.
            folder.replace(folder.backup, before)
        folder.replace(folder.name, text)
    return True


def uninstall(agent: str, path: Path, project: Path | None = None) -> bool:
    """Remove our hooks; return whether any were installed. Raises the same errors as `install`.

    If the settings were not edited since `install`, the original file is restored byte for byte, or
    deleted if `install` created it.
    """
    before = read_settings(path, project) or ""
    if agent in PLUGIN_AGENTS:
        if command_in(agent, before) is None:
            return False
        with open_settings_dir(path, project) as folder:
            folder.remove(folder.name)
        return True
    text = _removed(agent, path, before) if before.strip() else before
    if text == before:
        return False
    with open_settings_dir(path, project) as folder:
        original = _original(agent, path, folder)
        if original is not None and _round_trip(agent, path, original) == text:
            folder.replace(folder.name, original)
            folder.remove(folder.backup)
        elif original is None and "".join(text.split()) == "{}":
            folder.remove(folder.name)  # `install` created it
        else:
            folder.replace(folder.name, text)
    return True


def _original(agent: str, path: Path, folder: SettingsDir) -> str | None:
    """Return the backup of the settings without our hooks, if there is one."""
    try:
        text = folder.read(folder.backup)
        has_ours = text is not None and text.strip() and _removed(agent, path, text) != text
        return None if has_ours else text
    except (InvalidInputError, OSError, UnicodeDecodeError):  # not our backup
        return None


def _round_trip(agent: str, path: Path, text: str) -> str:
    """Return settings after installing and removing our hooks, to compare formatting."""
    return _removed(agent, path, _with_ours(agent, path, text, "", events_of(agent)))


def _with_ours(agent: str, path: Path, text: str, store: str, events: tuple[str, ...]) -> str:
    text = _removed(agent, path, text) if text.strip() else "{}\n"
    for event in events:
        text = _added(agent, path, text, event, store)
    parse(text, comments=FORMATS[agent].comments)
    return text


def _removed(agent: str, path: Path, text: str) -> str:
    while True:
        root = _parsed(agent, path, text)
        hooks = _hooks(root)
        found = next((ours for event in hooks for ours in _our_handlers(hooks, event)), None)
        if found is None:
            return text
        event, group, handler, _ = found
        handlers = (group.members or {})["hooks"]
        if len(handlers.items or []) > 1:
            text = remove_node(text, handlers, handler)
        elif len(hooks[event].items or []) > 1:
            text = remove_node(text, hooks[event], group)
        else:
            outer = (root.members or {})["hooks"]
            if is_only_child(text, outer, hooks[event]):
                text = remove_node(text, root, outer)
            else:
                text = remove_node(text, outer, hooks[event])


def _added(agent: str, path: Path, text: str, event: str, store: str) -> str:
    root = _parsed(agent, path, text)
    unit = indent_unit(text)
    hooks = (root.members or {}).get("hooks")
    if hooks is None:
        return _added(agent, path, append_member(text, root, "hooks", "{}"), event, store)
    found = (hooks.members or {}).get(event)
    if found is None:
        return append_member(text, hooks, event, format_json([_group(agent, store)], 2, unit))
    return append_item(text, found, format_json(_group(agent, store), 3, unit))


def _group(agent: str, store: str) -> dict[str, Any]:
    handler: dict[str, Any] = {"type": "command", "command": command_of(agent, store)}
    if agent == GEMINI:
        handler["name"] = "agent-checkpoint"
    return {"hooks": [{**handler, "timeout": _TIMEOUT * FORMATS[agent].seconds}]}


def _hooks(root: JsonNode) -> dict[str, JsonNode]:
    hooks = (root.members or {}).get("hooks")
    return {} if hooks is None else (hooks.members or {})


def _our_handlers(
    hooks: dict[str, JsonNode], event: str
) -> list[tuple[str, JsonNode, JsonNode, str]]:
    """Return our handlers for an event, each with its group and its command."""
    found = []
    for group in (hooks[event].items or []) if event in hooks else []:
        handlers = (group.members or {}).get("hooks")
        for handler in (handlers.items or []) if handlers is not None else []:
            command = handler.value.get("command") if isinstance(handler.value, dict) else None
            if isinstance(command, str) and is_ours(command):
                found.append((event, group, handler, command))
    return found


def _parsed(agent: str, path: Path, text: str) -> JsonNode:
    try:
        root = parse(text, comments=FORMATS[agent].comments)
        hooks = (root.members or {}).get("hooks")
        if root.members is None or (hooks is not None and hooks.members is None):
            raise ValueError("expected a JSON object in which `hooks` is an object")
        events = (*FORMATS[agent].events, *FORMATS[agent].newer, *FORMATS[agent].former)
        if any(node.items is None for event, node in _hooks(root).items() if event in events):
            raise ValueError("the hooks of an event must be an array")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"Cannot parse {short_repr(str(path), 200)} ({error}). Fix it and retry; it was not "
            "changed."
        ) from None
    return root
