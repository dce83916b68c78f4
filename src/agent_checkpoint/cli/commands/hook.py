"""`hook`: save a checkpoint at every tool call of a coding agent; install the hook."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS, PROGRAMS
from agent_checkpoint.agents.hook import event_sender
from agent_checkpoint.agents.hook.event_saver import repository_root
from agent_checkpoint.agents.hook_redaction import hook_redactor, set_redaction
from agent_checkpoint.agents.settings.agent_settings import (
    FORMATS,
    agent_home,
    install,
    next_step,
    settings_file,
    store_of,
    uninstall,
)
from agent_checkpoint.agents.settings.hook_health import (
    hook_health,
    installed_twice,
    last_seen,
    not_read_here,
    plugin_health,
    state_problem,
    write_problem,
)
from agent_checkpoint.agents.settings.installed_plugins import installed_plugin
from agent_checkpoint.agents.state_dir import LOG_TIME, log_file, state_directory
from agent_checkpoint.agents.store_mounts import unmounted
from agent_checkpoint.agents.upkeep.disk_budget import (
    BudgetState,
    budget_state,
    parse_size,
    set_budget,
)
from agent_checkpoint.backends.os_support.posix import read_regular
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.cli.args import Args, Parser, did_you_mean
from agent_checkpoint.cli.hints import command_line, error_text
from agent_checkpoint.cli.output import CommandResult, Output, format_time, one_line
from agent_checkpoint.cli.progress_backend import describe_store
from agent_checkpoint.cli.store_location import STORE, StoreLocation
from agent_checkpoint.errors import CheckpointError, InvalidInputError, NotFoundError
from agent_checkpoint.formatting import without_password
from agent_checkpoint.records import short_repr as shown
from agent_checkpoint.workspace.ignore.secret_files import leave_out as add_to_ignore_file
from agent_checkpoint.workspace.ignore.secret_files import secret_files

EXAMPLES = """
agent-checkpoint hook install claude-code   install for all your projects
agent-checkpoint hook install --all         install for every agent found on this machine
agent-checkpoint hook install codex --project   install for this project only
agent-checkpoint --store ~/agents hook install codex   save to another store
agent-checkpoint hook install --all --budget 10GB   keep more checkpoints than with 5 GB
agent-checkpoint hook status                show installations and recent errors
agent-checkpoint hook uninstall gemini      remove the hook
agent-checkpoint hook claude-code < event.json   save one event, as the agent does
"""
_VERBS = ("install", "uninstall", "status", "stop")
_LAST = 5
_SECRETS_SHOWN = 10


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "what",
        "WHAT",
        "install, uninstall, status (exit status 1 if a problem keeps calls from being saved), "
        f"stop (the daemon); or an agent name, to save the event on stdin: {', '.join(AGENTS)}",
        default="",
    )
    parser.optional("agent", "AGENT", f"one of {', '.join(AGENTS)}")
    parser.flag("--all", "with install, uninstall: all agents that are found on this machine")
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--project", action="store_true", help="use the settings of the current directory"
    )
    scope.add_argument("--user", action="store_true", help="use your user settings (default)")
    parser.flag(
        "--leave-out-secrets",
        "with install: add files of this project that look like secrets to .checkpointignore",
    )
    parser.add(
        "--budget",
        "SIZE",
        "with install: the disk budget of the store, such as 10GB; 0 for none (default: 5 GB)",
    )
    parser.add_argument(
        "--redact",
        choices=("on", "off"),
        help="with install: whether to save conversations of all agents without their secrets; a "
        "rewind then brings back placeholders (default: as before, at first off)",
    )
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
        return _status(location, store)
    if args.what == "stop":
        from agent_checkpoint.agents.hook.daemon import stop_all

        stopped = stop_all()
        words = "Stopped the daemon." if stopped else "No daemon is running."
        return CommandResult({"stopped": stopped}, lambda out: out.line(words))
    agents = _found_agents() if args.all and args.agent is None else [args.agent]
    if agents == [None] or agents[0] not in AGENTS:
        problem = f"Unknown agent {shown(args.agent)}." if args.agent else "No agent given."
        raise InvalidInputError(f"{problem} Choose from {', '.join(AGENTS)}, or use --all.")
    if args.what == "install" and without_password(store) != store:
        raise InvalidInputError(
            "The store URL has a password, which the settings file and the list of processes would "
            "show. Leave it out, and use a password file or PGPASSWORD."
        )
    project = location.directory if args.project else None
    if args.what == "install":
        named = store or event_sender.absolute_store(os.environ.get(STORE) or "")
        backend = open_named(named or None)  # refuses what cannot be a store; connects to none
        if args.budget is not None:
            set_budget(backend, parse_size(args.budget))
    if args.what == "install" and args.redact is not None:
        set_redaction(is_on=args.redact == "on")
    secrets = _secrets(location, leave_out=args.leave_out_secrets) if args.what == "install" else []
    rows: list[dict[str, Any]] = []
    for agent in agents:
        path = settings_file(agent, project)
        row: dict[str, Any] = {"agent": agent, "file": str(path), "changed": False}
        try:
            if args.what == "install":
                row["changed"] = install(agent, path, store, project)
            else:
                row["changed"] = uninstall(agent, path, project)
        except CheckpointError as error:
            if not args.all:
                raise
            row["trouble"] = str(error)  # of this agent: the others are done all the same
        rows.append(row)
    for row in rows:
        row.update({"secrets": secrets} if args.what == "install" else {})

    has_failed = any("trouble" in row for row in rows)
    is_any_done = any("trouble" not in row for row in rows)

    def show(out: Output) -> None:
        for row in rows:
            path, is_changed = row["file"], row["changed"]
            if "trouble" in row:
                out.line(f"{row['agent']}: {row['trouble']}", style="yellow")
            elif args.what == "uninstall":
                out.line(f"Removed from {path}." if is_changed else f"Not installed in {path}.")
            else:
                out.line(f"Installed in {path}." if is_changed else f"Already installed in {path}.")
                out.line(f"  {next_step(row['agent'], project)}", style="dim")
        if secrets and (is_any_done or args.leave_out_secrets):
            names = ", ".join(map(one_line, secrets[:_SECRETS_SHOWN]))
            more = len(secrets) - _SECRETS_SHOWN
            names += f" and {more:,} more" if more > 0 else ""
            if args.leave_out_secrets:
                out.line(f"Left out from now on, by .checkpointignore: {names}", style="yellow")
            else:
                out.line(
                    f"These files look like secrets and are saved, too: {names}", style="yellow"
                )
                out.line(
                    "  To leave them out, repeat the command with --leave-out-secrets. A rewind "
                    "then does not restore them.",
                    style="dim",
                )
        if args.what == "install" and is_any_done:
            out.line(f"To rewind to a tool call: {command_line('rewind', store or None)}")

    return CommandResult({"agents": rows} if args.all else rows[0], show, int(has_failed))


def _secrets(location: StoreLocation, *, leave_out: bool) -> list[str]:
    """Return the files of the project that look like secrets; leave them out if told to.

    Raises WorkspaceError.
    """
    root = Path(repository_root(str(location.directory)))
    if root in (Path.home().resolve(), Path("/")):
        return []  # not a project
    found = secret_files(root)
    if leave_out and found:
        add_to_ignore_file(root, found)
    return found


def _found_agents() -> list[str]:
    """Return the agents whose program or directory is on this machine.

    Raises NotFoundError if there is none.
    """
    found = [agent for agent in AGENTS if _is_found(agent)]
    if not found:
        names = ", ".join(PROGRAMS[agent] for agent in AGENTS)
        raise NotFoundError(f"No coding agent found: looked for {names} on PATH, and their files.")
    return found


def _is_found(agent: str) -> bool:
    return shutil.which(PROGRAMS[agent]) is not None or agent_home(agent).is_dir()


def _status(location: StoreLocation, store: str) -> CommandResult:
    rows: list[dict[str, Any]] = []
    for agent in AGENTS:
        rows += _rows(agent, location.directory)
    log = log_file()
    failures = _failures(log)
    saved = max((row["last_checkpoint"] or 0.0 for row in rows), default=0.0)
    older = [line for line in failures if line < _log_time(saved)]
    budgets, problems = _stores(rows, store)
    can_save = not problems
    state_dir = state_directory()
    if can_save and state_dir is not None:
        missing = state_problem(Path(state_dir))
        problems += [missing] if missing else []
    for row in rows:  # an older version installed hooks with a password
        row["store"] = without_password(row["store"])
    data = {
        "agents": rows,
        "log": log,
        "failures": failures,
        "redacted": hook_redactor() is not None,
        "budgets": {name: state.to_json() for name, state in budgets.items()},
        "problems": problems,
    }

    def show(out: Output) -> None:
        heads = ["agent", "scope", "installed", "reviewed", "last event", "last checkpoint"]
        shown = [row for row in rows if _is_shown(row)]
        if shown:
            out.table([*heads, "file", "store"], (_cells(row) for row in shown))
        names = {row["agent"] for row in shown}
        others = ", ".join(agent for agent in AGENTS if agent not in names)
        if others:
            out.line(f"Not found on this machine: {others}.", style="dim")
        for row in rows:
            for problem in [*([row["trouble"]] if row["trouble"] else []), *row["problems"]]:
                out.line(problem, style="yellow")
        for problem in problems:
            out.line(one_line(problem, 500), style="yellow")
        if data["redacted"]:
            out.line("Conversations are saved without secrets: a rewind brings back placeholders.")
        for name, state in budgets.items():
            style = "yellow" if state.problem else ""
            out.line(f"{one_line(name)}: {state.problem or state.words}", style=style)
        for words, lines, style in (
            ("Before the last checkpoint, in", older, "dim"),
            ("Recent errors in", [line for line in failures if line not in older], "yellow"),
        ):
            if lines:
                out.line("\n  ".join([f"{words} {log}:", *lines]), style=style)

    is_installed = any(row["installed"] or row["outdated"] for row in rows)
    is_blocked = any(row["blocked"] for row in rows) or (is_installed and not can_save)
    return CommandResult(data, show, int(is_blocked))


def _rows(agent: str, here: Path) -> list[dict[str, Any]]:
    """Return the state of each installation of an agent, and of places without one."""
    rows: list[dict[str, Any]] = []
    ours: list[Path] = []
    seen = last_seen(agent)
    plugin = installed_plugin(agent)
    places = _settings_files(agent, here)
    if plugin is not None:
        places.append(("plugin", None, plugin))
    for scope, project, path in places:
        row: dict[str, Any] = {"agent": agent, "scope": scope, "file": str(path)}
        row.update(installed=False, outdated=False, blocked=False, store="", trouble=None)
        row.update(reviewed=None, problems=[])
        row.update(last_event=seen.event, last_checkpoint=seen.checkpoint)
        is_plugin = scope == "plugin"
        try:
            health = plugin_health(agent, path) if is_plugin else hook_health(agent, path, project)
            row.update(installed=health.installed, reviewed=health.reviewed)
            row.update(outdated=health.is_outdated, blocked=health.is_blocked)
            row.update(problems=list(health.problems))
            row.update(store="" if is_plugin else store_of(agent, path, project))
        except InvalidInputError as error:
            row.update(trouble=str(error), blocked=True)
        is_here = row["installed"] or row["outdated"]
        unread = not_read_here(agent, path, here) if scope == "above" and is_here else None
        if unread is not None:
            row["problems"] += [] if ours or plugin is not None else [unread]
        elif is_here and not is_plugin:
            ours.append(path)
        if row["installed"] and seen.event is None and not row["problems"]:
            row["problems"].append(f"No event of {agent} was received yet. Start a session.")
        if scope in ("user", "project") or is_here or row["trouble"]:
            rows.append(row)
    if not rows[0]["installed"] and not rows[0]["outdated"] and (ours or plugin is not None):
        rows[0]["problems"].clear()  # the user's settings have no hook, but others do
    if len(ours) + (plugin is not None) > 1:
        rows[-1]["problems"].append(installed_twice(agent, ours, plugin))
    return rows


def _settings_files(agent: str, here: Path) -> list[tuple[str, Path | None, Path]]:
    """Return the scope, the project and the path of each settings file that an agent may read."""
    user, project = settings_file(agent, None), settings_file(agent, here)
    found: list[tuple[str, Path | None, Path]] = [("user", None, user), ("project", here, project)]
    root = Path(repository_root(str(here)))
    if root != Path(os.path.realpath(here)):
        found.append(("above", root, settings_file(agent, root)))
    shared = FORMATS[agent].shared
    return [*found, ("shared", here, here / shared)] if shared else found


def _is_shown(row: dict[str, Any]) -> bool:
    """Return whether the text shows a row: an installation, a problem, or an agent that is here."""
    if row["installed"] or row["outdated"] or row["trouble"] or row["problems"]:
        return True
    return row["scope"] == "user" and (row["last_event"] is not None or _is_found(row["agent"]))


def _stores(rows: list[dict[str, Any]], given: str) -> tuple[dict[str, BudgetState], list[str]]:
    """Return the budgets of the stores that hooks save to, by their names, and what is wrong."""
    usual = os.environ.get(STORE) or ""
    names = {row["store"] or usual for row in rows if row["installed"] or row["outdated"]}
    if given or usual or not names:
        names.add(given or usual)
    found: dict[str, BudgetState] = {}
    problems: list[str | None] = []
    for name in sorted(names):
        try:
            backend = open_named(name or None)
        except CheckpointError as error:
            problems.append(f"Nothing is saved. {error_text(error)}")
            continue
        with suppress(CheckpointError):  # `stats` reports it
            place = backend.properties.path
            problems += [unmounted(backend), None if place is None else write_problem(place)]
            state = budget_state(backend)
            if state is not None:
                found[describe_store(backend)] = state
    return found, list(dict.fromkeys(problem for problem in problems if problem is not None))


def _cells(row: dict[str, Any]) -> list[Any]:
    answers = {None: "", True: "yes", False: "no"}
    # Events also come from a plugin of the agent, without an entry in its settings.
    is_here = row["installed"] or row["problems"] or row["scope"] == "user"
    times = [row["last_event"], row["last_checkpoint"]] if is_here else [None, None]
    return [
        row["agent"],
        row["scope"],
        "outdated" if row["outdated"] else answers[row["installed"]],
        answers[row["reviewed"]],
        *("" if when is None else format_time(when) for when in times),
        row["file"],
        row["store"],
    ]


def _failures(log: str | None) -> list[str]:
    if log is None:
        return []
    try:
        data = read_regular(Path(log))  # not a device or pipe, which may never end
    except OSError:
        return []
    return (data or b"").decode(errors="replace").splitlines()[-_LAST:]


def _log_time(when: float) -> str:
    """Return a time as the lines of the log begin."""
    return time.strftime(LOG_TIME, time.localtime(when))
