"""`hook`: saves at every tool call of a coding agent; puts itself into the agent's settings."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.hook import client
from agent_checkpoint.agents.settings.agent_settings import (
    FORMS,
    install,
    installed,
    settings_file,
    store_of,
    uninstall,
)
from agent_checkpoint.backends.disk.posix import read_regular
from agent_checkpoint.cli.args import meant
from agent_checkpoint.cli.output import Answer, Out
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import CheckpointError, InvalidInputError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.records import short_repr as shown

EXAMPLES = """
agent-checkpoint hook install claude-code   at every tool call, in all your projects
agent-checkpoint hook install codex --project   in this project only
agent-checkpoint --store ~/agents hook install codex   saved to another store
agent-checkpoint hook status                where it is installed, and what went wrong
agent-checkpoint hook uninstall gemini      take it out again
agent-checkpoint hook claude-code < event.json   what the agent runs
"""
_VERBS = ("install", "uninstall", "status", "stop")
_LAST = 5


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        default="",
        help="install, uninstall, status, stop (the process that saves); or the agent whose event "
        f"is read: {', '.join(AGENTS)}",
    )
    parser.add_argument("agent", nargs="?", metavar="AGENT", help=f"one of {', '.join(AGENTS)}")
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--project", action="store_true", help="in the settings of this directory")
    scope.add_argument("--user", action="store_true", help="in your own settings (the default)")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: Namespace, places: Places) -> Answer:
    """Do one of these; an event is always taken well."""
    if not args.what and sys.stdin.isatty():
        raise InvalidInputError("It reads an event of an agent. To set it up: hook install AGENT.")
    store = client.whole_name(args.store or "")
    if args.what in ("", *AGENTS):
        client.main([args.what, *(["--store", store] if store else [])])
        args.json = False
        return Answer({}, lambda out: None)
    if args.what not in _VERBS:
        # Not the status of what was typed wrong: agents take 2 for "block this call".
        known = (*_VERBS, *AGENTS)
        near = meant(args.what, known) or "."
        names = ", ".join(known)
        raise CheckpointError(f"There is no {shown(args.what)} here{near} It is one of {names}.")
    if args.what == "status":
        return _status(places)
    if args.what == "stop":
        from agent_checkpoint.agents.hook.daemon import end_all

        told = end_all()
        words = "Told to end." if told else "There is no process that saves."
        return Answer({"stopped": told}, lambda out: out.line(words))
    if args.agent not in AGENTS:
        raise InvalidInputError(f"Say which agent: {', '.join(AGENTS)}.")
    project = places.directory if args.project else None
    path = settings_file(args.agent, project)
    if args.what == "install":
        is_changed = install(args.agent, path, store, project)
    else:
        is_changed = uninstall(args.agent, path, project)
    data = {"agent": args.agent, "file": str(path), "changed": is_changed}

    def show(out: Out) -> None:
        if args.what == "uninstall":
            out.line(f"Removed from {path}." if is_changed else f"It is not in {path}.")
            return
        out.line(f"Installed in {path}." if is_changed else f"It is in {path} already.")
        named = f" --store {shell_quote(store)}" if store else ""
        out.line(f"Back to a tool call: agent-checkpoint{named} rewind")
        out.line(FORMS[args.agent].then, style="dim")

    return Answer(data, show)


def _status(places: Places) -> Answer:
    rows: list[dict[str, Any]] = []
    for agent in AGENTS:
        for scope, project in (("user", None), ("project", places.directory)):
            path = settings_file(agent, project)
            row = {"agent": agent, "scope": scope, "file": str(path)}
            try:
                is_installed = installed(agent, path, project)
                store = store_of(agent, path, project)
                rows.append({**row, "installed": is_installed, "store": store, "trouble": None})
            except InvalidInputError as error:
                rows.append({**row, "installed": False, "store": "", "trouble": str(error)})
    log = client.log_file()
    failures = _failures(log)
    data = {"agents": rows, "log": log, "failures": failures}

    def show(out: Out) -> None:
        out.table(
            ["agent", "scope", "installed", "file", "store"],
            (
                [
                    row["agent"],
                    row["scope"],
                    "yes" if row["installed"] else "no",
                    row["file"],
                    row["store"],
                ]
                for row in rows
            ),
        )
        for row in rows:
            if row["trouble"]:
                out.line(row["trouble"], style="yellow")
        if failures:
            out.line(f"What went wrong last, from {log}:", style="yellow")
            for line in failures:
                out.line(f"  {line}")

    return Answer(data, show)


def _failures(log: str | None) -> list[str]:
    if log is None:
        return []
    try:
        data = read_regular(Path(log))  # what somebody put in its place could be endless
    except OSError:
        return []
    return (data or b"").decode(errors="replace").splitlines()[-_LAST:]
