"""The settings of coding agents. Owns where they are, and putting our hooks in and out."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agent_checkpoint.agents.agent_events import CLAUDE, CODEX, GEMINI
from agent_checkpoint.agents.settings.hook_command import command_of, is_ours, store_in
from agent_checkpoint.agents.settings.jsonc import (
    Node,
    indented,
    is_alone,
    parse,
    unit_of,
    with_item,
    with_member,
    without,
)
from agent_checkpoint.agents.settings.settings_files import Folder, read_settings, settings_folder
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr


class Form(NamedTuple):
    """How an agent is told of hooks."""

    user: str
    """Its file below the home directory."""
    project: str
    """The same below that of a project."""
    events: tuple[str, ...]
    newer: tuple[str, ...]
    """Events that an older version does not know, for which it may refuse the whole file."""
    seconds: int
    """How many of the format's units a second is."""
    comments: bool
    then: str
    """What the user has to do yet."""


FORMS = {
    CLAUDE: Form(
        ".claude/settings.json",
        # The one that is not committed: the command is a path of this machine.
        ".claude/settings.local.json",
        (
            "UserPromptSubmit",
            "PreToolUse",
            "PostToolUse",
            "PreCompact",
            "Stop",
            "SessionEnd",
        ),
        ("PostToolUseFailure", "PostToolBatch"),
        1,
        False,
        "Sessions that run already read it when they are started again.",
    ),
    CODEX: Form(
        ".codex/hooks.json",
        ".codex/hooks.json",
        ("UserPromptSubmit", "PreToolUse", "PostToolUse", "PreCompact", "Stop"),
        (),
        1,
        False,
        "Codex asks you to review new hooks before it runs them: see /hooks there.",
    ),
    GEMINI: Form(
        ".gemini/settings.json",
        ".gemini/settings.json",
        ("BeforeAgent", "BeforeTool", "AfterTool", "PreCompress", "AfterAgent", "SessionEnd"),
        (),
        1000,
        True,
        "Gemini CLI warns of hooks that are new in a project before it runs them.",
    ),
}
_TIMEOUT = 30
_KNOWS_NEWER = (2, 1, 145)
"""The version of Claude Code that has them; before 2.1.101 an unknown one spoils all settings."""


@cache
def events_of(agent: str) -> tuple[str, ...]:
    """Return the events that the version of an agent that is here surely knows."""
    form = FORMS[agent]
    if not form.newer:
        return form.events
    try:
        command = ["claude", "--version"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=15).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return form.events
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", told)
    is_newer = found is not None and tuple(map(int, found.groups())) >= _KNOWS_NEWER
    return form.events + form.newer if is_newer else form.events


def settings_file(agent: str, project: Path | None) -> Path:
    """Return the file of an agent's settings: the user's, or a project's."""
    form = FORMS[agent]
    return Path.home() / form.user if project is None else project / form.project


def installed(agent: str, path: Path, project: Path | None = None) -> bool:
    """Tell whether our hooks are there, all of them as they are now. Raises InvalidInputError."""
    text = read_settings(path, project)
    if text is None or not text.strip():
        return False
    hooks = _hooks(_parsed(agent, path, text))
    command = command_of(agent, store_of(agent, path, project))
    return all(
        [found for _, _, _, found in _ours(hooks, event)] == [command] for event in events_of(agent)
    ) and {event for event in hooks if _ours(hooks, event)} == set(events_of(agent))


def store_of(agent: str, path: Path, project: Path | None = None) -> str:
    """Return the store that our hooks name; empty if none. Raises InvalidInputError."""
    text = read_settings(path, project) or ""
    hooks = _hooks(_parsed(agent, path, text)) if text.strip() else {}
    for event in hooks:
        for _, _, _, command in _ours(hooks, event):
            return store_in(command)
    return ""


def install(agent: str, path: Path, store: str = "", project: Path | None = None) -> bool:
    """Put our hooks in; tell whether anything had to be changed.

    Args:
        agent: whose settings they are.
        path: the file.
        store: where to save, as it is understood from any directory.
        project: the directory of the project that the file belongs to, if it is not the user's.

    Raises:
        InvalidInputError: the file cannot be read, or does not parse; it is as it was.
        StorageError: it cannot be written; it is as it was.
    """
    if installed(agent, path, project) and store_of(agent, path, project) == store:
        return False
    before = read_settings(path, project)
    text = _with_ours(agent, path, before or "", store)
    with settings_folder(path, project) as folder:
        if before is not None and (not before.strip() or _removed(agent, path, before) == before):
            # The version without our hooks: it is not to be lost when they are installed anew.
            folder.replace(folder.backup, before)
        folder.replace(folder.name, text)
    return True


def uninstall(agent: str, path: Path, project: Path | None = None) -> bool:
    """Take our hooks out, and nothing else; tell whether there were any. Raises as `install`.

    If nothing else has changed since they were put in, the file is what it was, byte by byte, or
    gone again if there was none.
    """
    before = read_settings(path, project) or ""
    text = _removed(agent, path, before) if before.strip() else before
    if text == before:
        return False
    with settings_folder(path, project) as folder:
        original = _original(agent, path, folder)
        if original is not None and _round(agent, path, original) == text:
            folder.replace(folder.name, original)
            folder.remove(folder.backup)
        elif original is None and "".join(text.split()) == "{}":
            folder.remove(folder.name)  # there was none before
        else:
            folder.replace(folder.name, text)
    return True


def _original(agent: str, path: Path, folder: Folder) -> str | None:
    """Return the settings before our hooks, if they were kept."""
    try:
        text = folder.read(folder.backup)
        has_ours = text is not None and text.strip() and _removed(agent, path, text) != text
        return None if has_ours else text
    except (InvalidInputError, OSError, UnicodeDecodeError):  # somebody else wrote it
        return None


def _round(agent: str, path: Path, text: str) -> str:
    """Return what is left of settings when our hooks were put in and taken out again."""
    return _removed(agent, path, _with_ours(agent, path, text, ""))


def _with_ours(agent: str, path: Path, text: str, store: str) -> str:
    text = _removed(agent, path, text) if text.strip() else "{}\n"
    for event in events_of(agent):
        text = _added(agent, path, text, event, store)
    parse(text, comments=FORMS[agent].comments)
    return text


def _removed(agent: str, path: Path, text: str) -> str:
    while True:
        root = _parsed(agent, path, text)
        hooks = _hooks(root)
        found = next((ours for event in hooks for ours in _ours(hooks, event)), None)
        if found is None:
            return text
        event, group, handler, _ = found
        handlers = (group.members or {})["hooks"]
        if len(handlers.items or []) > 1:
            text = without(text, handlers, handler)
        elif len(hooks[event].items or []) > 1:
            text = without(text, hooks[event], group)
        else:
            outer = (root.members or {})["hooks"]
            if is_alone(text, outer, hooks[event]):
                text = without(text, root, outer)
            else:
                text = without(text, outer, hooks[event])


def _added(agent: str, path: Path, text: str, event: str, store: str) -> str:
    root = _parsed(agent, path, text)
    unit = unit_of(text)
    hooks = (root.members or {}).get("hooks")
    if hooks is None:
        return _added(agent, path, with_member(text, root, "hooks", "{}"), event, store)
    found = (hooks.members or {}).get(event)
    if found is None:
        return with_member(text, hooks, event, indented([_group(agent, store)], 2, unit))
    return with_item(text, found, indented(_group(agent, store), 3, unit))


def _group(agent: str, store: str) -> dict[str, Any]:
    handler: dict[str, Any] = {"type": "command", "command": command_of(agent, store)}
    if agent == GEMINI:
        handler["name"] = "agent-checkpoint"
    return {"hooks": [{**handler, "timeout": _TIMEOUT * FORMS[agent].seconds}]}


def _hooks(root: Node) -> dict[str, Node]:
    hooks = (root.members or {}).get("hooks")
    return {} if hooks is None else (hooks.members or {})


def _ours(hooks: dict[str, Node], event: str) -> list[tuple[str, Node, Node, str]]:
    """Return our handlers for an event, each with its group and its command."""
    found = []
    for group in (hooks[event].items or []) if event in hooks else []:
        handlers = (group.members or {}).get("hooks")
        for handler in (handlers.items or []) if handlers is not None else []:
            command = handler.value.get("command") if isinstance(handler.value, dict) else None
            if isinstance(command, str) and is_ours(command):
                found.append((event, group, handler, command))
    return found


def _parsed(agent: str, path: Path, text: str) -> Node:
    try:
        root = parse(text, comments=FORMS[agent].comments)
        hooks = (root.members or {}).get("hooks")
        if root.members is None or (hooks is not None and hooks.members is None):
            raise ValueError("it is no object with an object of hooks")
        events = (*FORMS[agent].events, *FORMS[agent].newer)
        if any(node.items is None for event, node in _hooks(root).items() if event in events):
            raise ValueError("the hooks of an event are no list")
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"{short_repr(str(path), 200)} does not parse ({error}): repair it first. It was not "
            "touched."
        ) from None
    return root
