"""`restore`: files become what they were, after a preview; what was there before is kept."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from agent_checkpoint.cli.main import REFUSED
from agent_checkpoint.cli.out import Answer, Out
from agent_checkpoint.cli.ownership import works_in
from agent_checkpoint.cli.places import Places, existing_directory
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, show
from agent_checkpoint.workspace.naming import key_of, tree_in
from agent_checkpoint.workspace.plan import Plan

EXAMPLES = """
agent-checkpoint restore ~1               this directory, as it was one checkpoint ago
agent-checkpoint restore @3 src/app.py    one file of the third
agent-checkpoint restore @3 --dry-run     only show what would be done
agent-checkpoint restore fix-bug-42 --into ./copy   a session's files, elsewhere
"""
_SHOWN = 15


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
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="for programs; needs --yes")


def run(args: Namespace, places: Places) -> Answer:
    """Preview it, ask, and do it."""
    from agent_checkpoint.workspace.workspace import Workspace

    with places.manager() as manager:
        checkpoint = places.checkpoint(manager, args.id)
        tree = tree_in(manager.store, checkpoint)
        if tree is None:
            raise NotFoundError(f"The checkpoint {show(checkpoint.id, 120)} has no files.")
        place = _place(args, places, manager.store, checkpoint)
        options: dict[str, Any] = {
            "paths": [places.directory / path for path in args.paths] or None,
            "exclude": [".git"] if args.keep_git else [],
            "keep_unseen": args.keep_unseen,
        }
        rules: dict[str, Any] = {"ignore": tree.ignore, "gitignore": tree.gitignore}
        with Workspace(place, manager.store, watch=False, force=True, **rules) as workspace:
            plan = workspace.restore(tree, dry_run=True, **options)
            if args.dry_run or not plan:
                return Answer(_data(plan, checkpoint, done=False), lambda out: _show(out, plan))
            if not args.yes:
                _show(args.out, plan)
                if not args.out.confirm(f"Restore {place}?"):
                    words = "Nothing was done. Say --yes to go on without a question."
                    data = _data(plan, checkpoint, done=False)
                    return Answer(data, lambda out: out.line(words), REFUSED)
            done = workspace.restore(tree, **options)

    def tell(out: Out) -> None:
        if args.yes:
            _show(out, done)
        out.line(f"Restored {place} to @{checkpoint.seq}.", style="green")
        if done.safety_id is not None:
            out.line(f"What was there before: agent-checkpoint restore '{done.safety_id}'")

    return Answer(_data(done, checkpoint, done=True), tell)


def _place(args: Namespace, places: Places, store: Any, checkpoint: Checkpoint) -> Path:
    if args.into is not None:
        target = places.directory / args.into
        target.mkdir(parents=True, exist_ok=True)
        return existing_directory(args.into, places.directory)
    said = works_in(store, checkpoint)
    if said is not None:
        return existing_directory(said, places.directory)
    for place in (places.directory, *places.directory.parents):
        if key_of(place) == checkpoint.key:
            return place
    raise InvalidInputError(
        f"The files of {show(checkpoint.key)} are not those of {places.directory}: go to their "
        "directory, or say --into DIR."
    )


def _show(out: Out, plan: Plan) -> None:
    if not plan and not plan.leave:
        out.line("Nothing to do: the files are what they were.")
        return
    for words, paths, style in (
        ("write", plan.write, "green"),
        ("delete", plan.delete, "red"),
        ("set the mode of", plan.mode, ""),
    ):
        for path in paths[:_SHOWN]:
            out.line(f"  {words} {path}", style=style)
        if len(paths) > _SHOWN:
            out.line(f"  {words} {len(paths) - _SHOWN:,} more", style=style)
    for path, why in list(plan.leave.items())[:_SHOWN]:
        out.line(f"  leave {path}: {why}", style="yellow")
    for line in plan.git:
        out.line(f"  git: {line}", style="yellow")
    if plan.unseen:
        out.line(
            f"  {len(plan.unseen):,} of these were never saved before; the safety checkpoint "
            "will hold them.",
            style="yellow",
        )


def _data(plan: Plan, checkpoint: Checkpoint, *, done: bool) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "done": done,
        "write": plan.write,
        "delete": plan.delete,
        "mode": plan.mode,
        "leave": plan.leave,
        "unseen": plan.unseen,
        "git": plan.git,
        "safety_id": plan.safety_id,
    }
