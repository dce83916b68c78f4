"""`rollback`: roll back the files and state of a session, without the code of the agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, get_args

from agent_checkpoint.agents.directory_keys import session_directory
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.effect_output import effect_json, effect_line
from agent_checkpoint.cli.main import REFUSED
from agent_checkpoint.cli.output import CommandResult, Output, format_count, json_fields, one_line
from agent_checkpoint.cli.paths import RelativePaths
from agent_checkpoint.cli.plan_output import plan_json, show_plan, show_plan_changes
from agent_checkpoint.cli.prompts import confirmed, declined, show_plan_changed
from agent_checkpoint.cli.store_location import StoreLocation, existing_directory
from agent_checkpoint.errors import InvalidInputError, RollbackRefusedError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import RollbackEffects
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.records import short_repr as show_name
from agent_checkpoint.session.agent_scope import SUBAGENTS, part_groups
from agent_checkpoint.session.rollback.rollback_preview import preview_rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.tools.effect_kinds import behaviour_of
from agent_checkpoint.workspace.restore.plan import PlanChangedError

EXAMPLES = """
agent-checkpoint rollback                       one step, session of the current directory
agent-checkpoint rollback fix-bug-42 --steps 3  three steps
agent-checkpoint rollback fix-bug-42 --to @7    to a given checkpoint
agent-checkpoint rollback --parts workspace     files only
agent-checkpoint rollback --dry-run             show what would change
agent-checkpoint rollback --effects compensate --import shop.tools   run compensations first
"""
_SHOWN, _MOST_SUBAGENTS = 20, 4


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("key", "KEY", "the session (default: that of the current directory)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--to", metavar="ID", help="the target checkpoint")
    where.add_argument(
        "--steps", type=int, default=1, metavar="N", help="number of steps (default: 1)"
    )
    effects_arguments(parser)
    parser.repeatable(
        "--parts", "NAME", "roll back only these parts, such as workspace; repeatable", default=None
    )
    parser.flag("--keep-unseen", "keep files created or changed since the last regular checkpoint")
    parser.add("--workspace", "DIR", "directory for the files, if the session is not bound to one")
    parser.previewed("show the plan, change nothing")


def effects_arguments(parser: Parser) -> None:
    """Add the options for external side effects since the target."""
    parser.add_argument(
        "--effects",
        choices=get_args(RollbackEffects),
        default="refuse",
        help="external side effects since the target: refuse (default) to roll back past effects "
        "that are irreversible or whose outcome is unknown, warn, or compensate first",
    )
    parser.repeatable(
        "--import",
        "MODULE",
        "import the module that defines the agent's tools, for compensations; runs its code",
        dest="modules",
    )


def run(args: Args, location: StoreLocation, about: str = "") -> CommandResult:
    """Show the report, below the line `about`, ask for confirmation, and roll back."""
    if args.steps < 0:
        raise InvalidInputError("--steps must not be negative.")
    parts = [name for names in args.parts or () for name in names.split(",") if name] or None
    place = None
    if args.workspace is not None:
        place = existing_directory(args.workspace, location.directory)
    for module in args.modules:
        _load(module, location)
    with location.manager() as manager:
        key = location.key(manager, args.key, sessions=True)
        to: str | None = args.to
        paths = RelativePaths(place or _directory(manager, key), location.directory)
        forgets = parts is None or any(name != "workspace" for name in parts)
        question = f"Roll back {one_line(key, 60)}? A running agent can no longer save to it"
        done = None
        while done is None:
            preview = preview_rollback(
                manager,
                key,
                to=to,
                steps=args.steps,
                parts=parts,
                keep_unseen=args.keep_unseen,
                workspace=place,
            ).report
            to = preview.target  # a second prompt uses the same target
            is_refused = forgets and bool(preview.blocking) and args.effects != "warn"
            data = _data(key, preview, is_refused)
            show_it = partial(
                _show, key=key, report=preview, paths=paths, about=about, is_refused=is_refused
            )
            if args.dry_run:
                return CommandResult(data, show_it)
            if is_refused:
                return _refused(key, preview, about)
            if not confirmed(args, show_it, f"{question}."):
                return declined(data)
            session = Session(key, store=manager, workspace=place, every="manual")
            try:
                done = session.rollback(
                    preview.target,
                    effects=args.effects,
                    parts=parts,
                    keep_unseen=args.keep_unseen,
                    only_if=None if args.yes else preview,
                )
            except PlanChangedError as error:
                show_plan_changed(args, error)
            except RollbackRefusedError as error:
                report = error.report if isinstance(error.report, RollbackReport) else preview
                return _refused(key, report, about)
            finally:
                session.close()

    def tell(out: Output) -> None:
        if args.yes:
            _show(out, key, done, paths, about)
        else:
            show_plan_changes(out, preview.files, done.files, paths)
        _show_done(out, key, done)

    return CommandResult(_data(key, done), tell)


def _directory(manager: CheckpointManager, key: str) -> Path | None:
    head = manager.store.head(key)
    found = None if head is None else session_directory(manager.store, head)
    return None if found is None else Path(found)


def _load(module: str, location: StoreLocation) -> None:
    """Import a user's module, from the current directory or from installed packages."""
    import sys
    from importlib import import_module

    if str(location.directory) not in sys.path:
        sys.path.insert(0, str(location.directory))
    try:
        import_module(module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidInputError(f"Cannot import {show_name(module)}: {why}") from error


def _show_done(out: Output, key: str, report: RollbackReport) -> None:
    out.line(f"Rolled back {one_line(key)} to {_short_id(report.target)}.", style="green")
    out.line("A running agent can no longer save to this session: restart it.")
    for notice in report.notices[: out.limit(_SHOWN)]:
        out.line(f"  {one_line(notice, out.limit(1000))}", style="yellow")
    if report.safety_id is not None:
        back = f"rollback {shell_quote(key)} --to {shell_quote(report.safety_id)}"
        out.hint("To undo", back, style="")


def _show(
    out: Output,
    key: str,
    report: RollbackReport,
    paths: RelativePaths,
    about: str = "",
    is_refused: bool = False,
) -> None:
    if about:
        out.line(one_line(about), style="yellow")
    words = "Would roll back" if report.id is None else "Rolled back"
    out.line(f"{words} {one_line(key)} to {_short_id(report.target)}: {_part_words(report)}")
    if is_refused:
        effects = format_count(len(report.blocking), "external side effect")
        out.line(f"  refused without --effects warn: {effects} cannot be undone", style="bold red")
    _show_effects(out, report)
    if report.files is not None:
        if not report.files and not report.files.leave:
            out.line("  files: no changes")
        show_plan(out, report.files, paths, is_foreign=report.foreign and bool(report.files))
    if report.void:
        requests = format_count(len(report.void), "approval request")
        out.line(f"  {requests} no longer valid", style="yellow")


def _part_words(report: RollbackReport) -> str:
    """Return the names of the parts; many sub-agents are counted."""
    names = part_groups(report.parts)
    subagents = [name for name in names if name.startswith(SUBAGENTS)]
    counted = subagents if len(subagents) > _MOST_SUBAGENTS else []
    shown = [one_line(name, 60) for name in names if name not in counted]
    return ", ".join([*shown, format_count(len(counted), "sub-agent")] if counted else shown)


def _show_effects(out: Output, report: RollbackReport) -> None:
    gone = {effect.id for effect in (*report.compensated, *report.unknown)}
    stands = [effect for effect in report.compensable if effect.id not in gone]
    # Whether an effect has a compensation is known only with the code of its tool.
    final = [one for one in report.irreversible if not behaviour_of(one.kind).is_compensable]
    unloaded = [one for one in report.irreversible if behaviour_of(one.kind).is_compensable]
    for heading, effects, style in (
        ("irreversible", final, "red"),
        ("compensation needs the code of the tool (--import MODULE)", unloaded, "red"),
        ("outcome unknown", report.unknown, "red"),
        ("compensated", report.compensated, "green"),
        ("already compensated, but the restored state has its result", report.gone, "yellow"),
        ("remains, can be compensated (--effects compensate)", stands, "yellow"),
        ("remains, its recorded result is replayed", report.replayable, ""),
    ):
        lines = [f"  {heading}: {effect_line(effect)}" for effect in effects]
        out.some(lines, out.limit(_SHOWN), f"  {heading}: {{:,}} more", style=style)


def _refused(key: str, report: RollbackReport, about: str) -> CommandResult:
    data = _data(key, report, is_refused=True)
    return CommandResult(data, lambda out: _show_refusal(out, report, about), REFUSED)


def _show_refusal(out: Output, report: RollbackReport, about: str) -> None:
    if about:
        out.line(one_line(about), style="yellow")
    number = len(report.blocking)
    effects = format_count(number, "external side effect")
    out.line(
        f"Refused: {effects} since {_short_id(report.target)} cannot be undone.",
        style="bold red",
    )
    _show_effects(out, report)
    if report.failure:
        out.line(f"  {one_line(report.failure, out.limit(1000))}", style="red")
    out.line("Choose a later checkpoint, or pass --effects warn to roll back anyway.")
    for effect in report.unknown[: out.limit(3)]:
        command = f"effects resolve {effect.id} --happened"
        out.hint("To record the outcome (--happened or --not)", command, style="")


def _short_id(name: str) -> str:
    place = parse_checkpoint_id(name)
    return one_line(name) if place is None else f"@{place.seq}"


def _data(key: str, report: RollbackReport, is_refused: bool = False) -> dict[str, Any]:
    names = ("irreversible", "unknown", "compensable", "compensated", "replayable", "gone")
    return {
        "key": key,
        "done": report.id is not None,
        "refused": is_refused,
        **json_fields(report, "target parts id safety_id"),
        "effects": {name: [effect_json(item) for item in getattr(report, name)] for name in names},
        **json_fields(report, "failure foreign void notices"),
        "files": None if report.files is None else plan_json(report.files),
    }
