"""`revert`: takes the file changes of single steps out, and keeps the rest."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, get_args

from agent_checkpoint.agents.directory_keys import (
    claimed_directory,
    directory_key,
    directory_of_files,
    is_directory_key,
    session_directory,
)
from agent_checkpoint.agents.directory_revert import preview_revert, revert_and_save
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.effect_output import effect_json, effect_line
from agent_checkpoint.cli.main import REFUSED
from agent_checkpoint.cli.output import CommandResult, Output, format_count, masked, one_line
from agent_checkpoint.cli.paths import RelativePaths
from agent_checkpoint.cli.plan_output import plan_json, show_plan, show_plan_changes
from agent_checkpoint.cli.prompts import confirmed, declined, show_plan_changed
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import Conflicts
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.revert.revert import (
    RevertReport,
    StepPair,
    can_be_marked,
    own_pairs,
    step_pairs,
)
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.lookup import find
from agent_checkpoint.workspace.restore.plan import PlanChangedError

EXAMPLES = """
agent-checkpoint revert @17                       take step 17 out, keep all later work
agent-checkpoint revert @17..@20 --dry-run        show what would change
agent-checkpoint revert fix-bug-42@17             a step of another key
agent-checkpoint revert --session claude-code/5b0fd7d1   everything that one session did
agent-checkpoint revert @17 --conflicts markers   mark what later work overlaps
"""
_SHOWN = 20


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("step", "STEP", "the checkpoint that ends the step, or several: @17..@20")
    parser.add("--session", "KEY", "the session of the step; without STEP, all its own steps")
    parser.add_argument(
        "--conflicts",
        choices=get_args(Conflicts),
        default="refuse",
        help="where later work overlaps the step: refuse (default), or write conflict markers",
    )
    parser.add(
        "--workspace", "DIR", "the directory, if the key does not name one, as with LangGraph"
    )
    parser.no_mask()
    parser.previewed("show what would change, change nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Show the preview, ask for confirmation, and revert."""
    if args.step is None and args.session is None:
        raise InvalidInputError("Name a step, such as @17, or a session with --session KEY.")
    with location.manager() as manager:
        key, pairs = _steps(args, location, manager)
        head = manager.store.head(key)
        if head is None or not pairs:
            raise NotFoundError(f"{short_repr(key)} has no steps of its own to revert.")
        directory = _directory(manager, head, location, args.workspace)
        is_session = SESSION_PART in head.parts
        own = is_directory_key(manager.store, head, directory)
        paths = RelativePaths(directory, location.directory)
        tracked_key = key if own else directory_key(manager.store, directory)
        with open_tracked(directory, manager.store, tracked_key) as tracked:
            tracked.saved_in = (key,)
            done: RevertReport | None = None
            while done is None:
                preview = preview_revert(tracked, pairs, args.conflicts)
                data = masked(args, _data(key, preview))
                is_refused = bool(preview.conflicts) and not can_be_marked(preview, args.conflicts)
                show_it = partial(
                    _show, report=preview, shown=data, paths=paths, is_refused=is_refused
                )
                if args.dry_run or is_refused or not preview.files:
                    status = REFUSED if is_refused and not args.dry_run else 0
                    return CommandResult(data, show_it, status)
                more = " A running agent can no longer save to it." if is_session else ""
                if not confirmed(
                    args, show_it, f"Revert {preview.words} of {one_line(key)}?{more}"
                ):
                    return declined(data)
                only_if = None if args.yes else preview
                try:
                    if is_session:
                        done = _revert_session(manager, key, pairs, args.conflicts, only_if)
                    else:
                        done = revert_and_save(tracked, pairs, args.conflicts, only_if)
                except PlanChangedError as error:
                    show_plan_changed(args, error)
        finished = done

    def tell(out: Output) -> None:
        if args.yes:
            _show(out, finished, masked(args, _data(key, finished)), paths)
        elif finished.files is not None:
            show_plan_changes(out, preview.files, finished.files, paths)
        out.line(f"Reverted {finished.words} of {one_line(key)}.", style="green")
        out.hint("To undo", f"undo {shell_quote(key if is_session else tracked_key)}", style="")

    return CommandResult(masked(args, _data(key, finished)), tell)


def _steps(
    args: Args, location: StoreLocation, manager: CheckpointManager
) -> tuple[str, list[StepPair]]:
    """Return the key and the steps."""
    if args.step is None:
        key = location.key(manager, args.session)
        return key, own_pairs(manager.store, key)
    first = args.step.partition("..")[0]
    if args.session is not None:
        key = location.key(manager, args.session)
    else:
        key = location.checkpoint(manager, first).key
    find(manager.store, first, base=key)  # the error names the checkpoint
    return key, step_pairs(manager.store, key, args.step)


def _directory(
    manager: CheckpointManager, head: Checkpoint, location: StoreLocation, given: str | None
) -> Path:
    here = location.directory
    found = session_directory(manager.store, head, (here, *here.parents))
    directory = Path(found) if found else None
    directory = directory or directory_of_files(manager.store, head, location.directory)
    if directory is None and given is not None and claimed_directory(manager.store, head) is None:
        directory = Path(os.path.realpath(here / given))
    if directory is None or not directory.is_dir():
        raise InvalidInputError(
            f"{one_line(location.directory)} is not the directory of {short_repr(head.key)}. "
            "Change to its directory, or pass it as --workspace if the key names none."
        )
    return directory


def _revert_session(
    manager: CheckpointManager,
    key: str,
    pairs: list[StepPair],
    conflicts: Conflicts,
    only_if: RevertReport | None,
) -> RevertReport:
    session = Session(key, store=manager, every="manual")
    try:
        names = [pair.after.id for pair in pairs]
        return session.revert(names, conflicts=conflicts, only_if=only_if)
    finally:
        session.close()


def _data(key: str, report: RevertReport) -> dict[str, Any]:
    effects = [] if report.effects is None else report.effects.effects
    return {
        "key": key,
        "done": report.id is not None,
        "id": report.id,
        "safety_id": report.safety_id,
        "steps": [{**step.to_dict(), "messages": []} for step in report.steps],
        "files": None if report.files is None else plan_json(report.files),
        "conflicts": [
            {
                "path": conflict.path,
                "step": conflict.step,
                "why": conflict.why,
                "hunks": [
                    {"line": hunk.line, **dict(zip(("now", "after", "before"), hunk.texts))}
                    for hunk in conflict.hunks
                ],
            }
            for conflict in report.conflicts
        ],
        "ambiguous": report.ambiguous,
        "renamed": report.renamed,
        "effects": [effect_json(effect) for effect in effects],
    }


def _show(
    out: Output,
    report: RevertReport,
    shown: dict[str, Any],
    paths: RelativePaths,
    *,
    is_refused: bool = False,
) -> None:
    words = "Would revert" if report.id is None else "Reverted"
    rows = [f"{words} {step['at']}: {one_line(step['words'], 150)}" for step in shown["steps"]]
    out.some(rows, out.limit(_SHOWN), "and {:,} more steps", style="bold")
    for conflict in shown["conflicts"]:
        path = one_line(paths.display(conflict["path"]))
        left = "" if is_refused or conflict["hunks"] else "; left as it is"
        out.line(f"  conflict in {path}: {conflict['why']}{left}", style="red")
        for hunk in conflict["hunks"]:
            out.line(f"    line {hunk['line']}", style="cyan")
            for sign, name in (("now ", "now"), ("step", "after"), ("was ", "before")):
                for line in hunk[name] or ["(nothing)"]:
                    out.pieces((f"      {sign} | {one_line(line)}", ""))
    for path, why in shown["ambiguous"].items():
        out.line(f"  keep {one_line(paths.display(path))}: {one_line(why, 200)}", style="yellow")
    for old, new in shown["renamed"].items():
        out.line(f"  {one_line(old)} is {one_line(new)} now")
    if is_refused:
        number = format_count(len(shown["conflicts"]), "conflict")
        if all(conflict["hunks"] for conflict in shown["conflicts"]):
            way = "--conflicts markers writes them to the files."
        else:
            way = "Conflict markers cannot show files that conflict as a whole."
        out.line(f"Nothing was changed: {number}. {way}")
    elif report.files is not None:
        if not report.files and not report.files.leave:
            out.line("  files: no changes")
        show_plan(out, report.files, paths)
    effects = [] if report.effects is None else report.effects.effects
    if effects:
        out.line("  external side effects of these steps stay:", style="yellow")
        for effect in effects[: out.limit(_SHOWN)]:
            out.line(f"    {effect_line(effect)}", style="yellow")
