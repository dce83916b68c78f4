"""`hook`: save a checkpoint at every tool call of a coding agent; install the hook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.hook import event_sender
from agent_checkpoint.agents.settings.agent_settings import (
    FORMATS,
    install,
    installed,
    settings_file,
    store_of,
    uninstall,
)
from agent_checkpoint.agents.state_dir import log_file
from agent_checkpoint.backends.os_support.posix import read_regular
from agent_checkpoint.cli.args import Args, Parser, did_you_mean
from agent_checkpoint.cli.hints import command_line
from agent_checkpoint.cli.output import CommandResult, Output
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import CheckpointError, InvalidInputError
from agent_checkpoint.records import short_repr as shown

EXAMPLES = """
agent-checkpoint hook install claude-code   install for all your projects
agent-checkpoint hook install codex --project   install for this project only
agent-checkpoint --store ~/agents hook install codex   save to another store
agent-checkpoint hook status                show installations and recent errors
agent-checkpoint hook uninstall gemini      remove the hook
agent-checkpoint hook claude-code < event.json   save one event, as the agent does
"""
_VERBS = ("install", "uninstall", "status", "stop")
_LAST = 5


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "what",
        "WHAT",
        "install, uninstall, status, stop (the daemon); or an agent name, to save the event "
        f"on stdin: {', '.join(AGENTS)}",
        default="",
    )
    parser.optional("agent", "AGENT", f"one of {', '.join(AGENTS)}")
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--project", action="store_true", help="use the settings of the current directory"
    )
    scope.add_argument("--user", action="store_true", help="use your user settings (default)")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run a subcommand, or save an event. Saving an event never fails."""
    if not args.what and sys.stdin.isatty():
        raise InvalidInputError(
            "No event on stdin. To install the hook: agent-checkpoint hook install AGENT."
        )
    store = event_sender.absolute_store(args.store or "")
    if args.what in ("", *AGENTS):
        event_sender.main([args.what, *(["--store", store] if store else [])])
        args.json = False
        return CommandResult({}, lambda out: None)
    if args.what not in _VERBS:
        # Not the status of a usage error, which agents interpret as "block this call".
        known = (*_VERBS, *AGENTS)
        near = did_you_mean(args.what, known) or "."
        names = ", ".join(known)
        raise CheckpointError(f"Unknown argument {shown(args.what)}{near} Choose from {names}.")
    if args.what == "status":
        return _status(location)
    if args.what == "stop":
        from agent_checkpoint.agents.hook.daemon import stop_all

        stopped = stop_all()
        words = "Stopped the daemon." if stopped else "No daemon is running."
        return CommandResult({"stopped": stopped}, lambda out: out.line(words))
    if args.agent not in AGENTS:
        problem = f"Unknown agent {shown(args.agent)}." if args.agent else "No agent given."
        raise InvalidInputError(f"{problem} Choose from {', '.join(AGENTS)}.")
    project = location.directory if args.project else None
    path = settings_file(args.agent, project)
    if args.what == "install":
        is_changed = install(args.agent, path, store, project)
    else:
        is_changed = uninstall(args.agent, path, project)
    data = {"agent": args.agent, "file": str(path), "changed": is_changed}

    def show(out: Output) -> None:
        if args.what == "uninstall":
            out.line(f"Removed from {path}." if is_changed else f"Not installed in {path}.")
            return
        out.line(f"Installed in {path}." if is_changed else f"Already installed in {path}.")
        out.line(f"To rewind to a tool call: {command_line('rewind', store or None)}")
        out.line(FORMATS[args.agent].next_step, style="dim")

    return CommandResult(data, show)


def _status(location: StoreLocation) -> CommandResult:
    rows: list[dict[str, Any]] = []
    for agent in AGENTS:
        for scope, project in (("user", None), ("project", location.directory)):
            path = settings_file(agent, project)
            row = {"agent": agent, "scope": scope, "file": str(path)}
            try:
                is_installed = installed(agent, path, project)
                store = store_of(agent, path, project)
                rows.append({**row, "installed": is_installed, "store": store, "trouble": None})
            except InvalidInputError as error:
                rows.append({**row, "installed": False, "store": "", "trouble": str(error)})
    log = log_file()
    failures = _failures(log)
    data = {"agents": rows, "log": log, "failures": failures}

    def show(out: Output) -> None:
        heads = ["agent", "scope", "installed", "file", "store"]
        shown = [{**row, "installed": "yes" if row["installed"] else "no"} for row in rows]
        out.table(heads, ([row[name] for name in heads] for row in shown))
        for row in rows:
            if row["trouble"]:
                out.line(row["trouble"], style="yellow")
        if failures:
            out.line(f"Recent errors in {log}:", style="yellow")
            for line in failures:
                out.line(f"  {line}")

    return CommandResult(data, show)


def _failures(log: str | None) -> list[str]:
    if log is None:
        return []
    try:
        data = read_regular(Path(log))  # not a device or pipe, which may never end
    except OSError:
        return []
    return (data or b"").decode(errors="replace").splitlines()[-_LAST:]
