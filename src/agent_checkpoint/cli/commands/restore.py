"""`restore`: files become what they were, after a preview; what was there before is kept."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from agent_checkpoint.cli.asking import add_json, add_yes, agreed, refused
from agent_checkpoint.cli.out import Answer, Out, Tell, inert
from agent_checkpoint.cli.ownership import files_belong_to
from agent_checkpoint.cli.places import Places, existing_directory
from agent_checkpoint.cli.plans import plan_data, show_plan
from agent_checkpoint.cli.text import quoted
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, show
from agent_checkpoint.workspace.naming import tree_in
from agent_checkpoint.workspace.plan import Plan

EXAMPLES = """
agent-checkpoint restore ~1               this directory, as it was one checkpoint ago
agent-checkpoint restore @3 src/app.py    one file of the third
agent-checkpoint restore @3 --dry-run     only show what would be done
agent-checkpoint restore fix-bug-42 --into ./copy   a session's files, elsewhere
"""


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("id", metavar="ID", help="the checkpoint")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="what of it; everything if none")
    parser.add_argument("--into", metavar="DIR", help="where to; where it belongs if none")
    parser.add_argument("--keep-git", action="store_true", help="leave .git as it is")
    parser.add_argument(
        "--keep-unseen", action="store_true", help="leave alone what was never saved"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="only show what would be done")
    add_yes(parser)
    add_json(parser, needs_yes=True)


def run(args: Namespace, places: Places) -> Answer:
    """Preview it, ask, and do it."""
    from agent_checkpoint.workspace.workspace import Workspace

    with places.manager() as manager:
        checkpoint = places.checkpoint(manager, args.id)
        tree = tree_in(manager.store, checkpoint)
        if tree is None:
            raise NotFoundError(f"The checkpoint {show(checkpoint.id, 120)} has no files.")
        place = _place(args, places, manager.store, checkpoint)
        base = place if args.into is not None else places.directory
        options: dict[str, Any] = {
            "paths": [base / path for path in args.paths] or None,
            "exclude": [".git"] if args.keep_git else [],
            "keep_unseen": args.keep_unseen,
        }
        rules: dict[str, Any] = {"ignore": tree.ignore, "gitignore": tree.gitignore}
        told: list[Tell] = []
        rules["progress"] = lambda files, read: told[-1](files, f"{files:,} files read")
        with Workspace(place, manager.store, watch=False, force=True, **rules) as workspace:
            with args.out.progress("Looking at files") as tell:
                told.append(tell)
                plan = workspace.restore(tree, dry_run=True, **options)
            preview = Answer(
                _data(plan, checkpoint, place, done=False), lambda out: show_plan(out, plan)
            )
            if args.dry_run or not plan:
                return preview
            question = f"Restore {inert(place)} to {_name(checkpoint)}?"
            if not agreed(args, preview.show, question):
                return refused(preview.data)
            with args.out.progress("Restoring") as tell:
                told.append(tell)
                done = workspace.restore(tree, **options)

    def tell_end(out: Out) -> None:
        if args.yes:
            show_plan(out, done)
        out.line(f"Restored {inert(place)} to {_name(checkpoint)}.", style="green")
        if done.safety_id is not None:
            into = f" --into {quoted(str(place))}" if args.into is not None else ""
            back = f"agent-checkpoint restore {quoted(done.safety_id)}{into}"
            out.line(f"What was there before: {back}")

    return Answer(_data(done, checkpoint, place, done=True), tell_end)


def _place(args: Namespace, places: Places, store: Any, checkpoint: Checkpoint) -> Path:
    if args.into is not None:
        target = places.directory / args.into
        if not args.dry_run:
            try:
                target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidInputError(f"{target} cannot be made: {error.strerror}.") from error
        return existing_directory(args.into, places.directory)
    place = files_belong_to(store, checkpoint, places.directory)
    if place is None or not place.is_dir():
        raise InvalidInputError(
            f"The files of {show(checkpoint.key)} are not those of {places.directory}: go to their "
            "directory, or say --into DIR."
        )
    return place


def _name(checkpoint: Checkpoint) -> str:
    return f"@{checkpoint.seq}"


def _data(plan: Plan, checkpoint: Checkpoint, place: Path, *, done: bool) -> dict[str, Any]:
    return {"id": checkpoint.id, "directory": str(place), "done": done, **plan_data(plan)}
