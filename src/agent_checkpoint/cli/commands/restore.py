"""`restore`: restore files from a checkpoint, after a preview and a safety checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.directory_keys import (
    directory_key,
    directory_of_files,
    is_directory_key,
    is_foreign,
)
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    ProgressCallback,
    files_written,
    format_count,
    one_line,
)
from agent_checkpoint.cli.paths import RelativePaths, files_of, holds
from agent_checkpoint.cli.plan_output import (
    plan_json,
    show_plan,
    show_plan_changes,
    show_plan_heading,
)
from agent_checkpoint.cli.prompts import confirmed, declined, show_plan_changed
from agent_checkpoint.cli.store_location import StoreLocation, create_directory, existing_directory
from agent_checkpoint.errors import InvalidInputError, UnsafeWorkspaceError
from agent_checkpoint.formatting import format_paths, shell_quote
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.directory_claims import newest_readable, why_not_owned
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError
from agent_checkpoint.workspace.tree.snapshot import Tree

EXAMPLES = """
agent-checkpoint restore @~1              restore the directory, one checkpoint back
agent-checkpoint restore @3 src/app.py    restore one file from checkpoint 3
agent-checkpoint restore @3 --dry-run     show what would change
agent-checkpoint restore fix-bug-42 --into ./copy   write a session's files to another directory
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("id", "ID", "the checkpoint")
    parser.add("paths", "PATH", "paths to restore (default: all)", nargs="*", default=[])
    parser.add("--into", "DIR", "target directory (default: where the files were saved)")
    parser.flag(
        "--force", "allow restoring to /, to a home directory, or to a non-empty --into directory"
    )
    parser.flag("--keep-git", "do not change .git")
    parser.flag("--keep-unseen", "keep files created or changed since the last regular checkpoint")
    parser.previewed("show the plan, change nothing")


def run(args: Args, location: StoreLocation, about: str = "") -> CommandResult:
    """Show the plan, below the line `about`, ask for confirmation, and restore."""
    from agent_checkpoint.agents.tracked_dir import open_tracked, restore_and_save

    with location.manager() as manager, _made(args.into, location):
        store = manager.store
        checkpoint = location.checkpoint(manager, args.id)
        tree = files_of(store, checkpoint)
        directory = _target(args, location, store, checkpoint)
        paths = RelativePaths(directory, directory if args.into is not None else location.directory)
        chosen = _chosen(args.paths, paths, directory, checkpoint, tree)
        options: dict[str, Any] = {
            "exclude": [".git"] if args.keep_git else [],
            "keep_unseen": args.keep_unseen,
        }
        rules: dict[str, Any] = {"ignore": tree.ignore, "gitignore": tree.gitignore}
        scanning: list[ProgressCallback] = []
        if args.into is not None and not args.force:
            _check_empty(directory, store)
        rules["progress"] = lambda files, size: [
            tell(files, f"{format_count(files, 'file')} read") for tell in scanning
        ]
        head = newest_readable(store, checkpoint.key) or checkpoint
        is_own = args.into is None and is_directory_key(store, head, directory)
        key = checkpoint.key if is_own else directory_key(store, directory)
        of_others = is_foreign(store, checkpoint)
        with open_tracked(directory, store, key, force=args.force, **rules) as tracked:
            tracked.saved_in = (checkpoint.key,)
            notices = tracked.notices
            what, done = _what(chosen, directory, checkpoint), None
            show = partial(
                _show,
                directory=directory,
                paths=paths,
                of_others=of_others,
                notices=[about, *notices] if about else notices,
                is_copy=args.into is not None,
            )
            while done is None:
                with args.out.progress("Scanning files") as tell:
                    scanning.append(tell)
                    plan = tracked.restore(tree, paths=chosen, dry_run=True, **options)
                scanning.clear()  # the files that the restore has written are read, too
                data = _data(plan, checkpoint, directory, of_others, done=False)
                show_it = partial(show, plan=plan)
                if args.dry_run or not plan:
                    return CommandResult(data, show_it)
                if not confirmed(args, show_it, f"Restore {what}?"):
                    return declined(data)
                # A confirmation covers the plan that was shown; --yes covers any plan.
                only_if = None if args.yes else plan
                try:
                    with args.out.progress("Restoring") as tell:
                        done = restore_and_save(
                            tracked,
                            checkpoint,
                            tree,
                            chosen,
                            only_if=only_if,
                            progress=files_written(tell),
                            **options,
                        )
                except PlanChangedError as error:
                    show_plan_changed(args, error)

    def tell_end(out: Output) -> None:
        if args.yes:
            show(out, done)
        else:
            show_plan_changes(out, plan, done, paths)
        out.line(f"Restored {what}.", style="green")
        if done.safety_id is not None:
            into = f" --into {shell_quote(str(directory))} --force" if args.into is not None else ""
            back = f"restore {shell_quote(done.safety_id)}{into}"
            here = location.directory
            if directory in (here, *here.parents) and args.into is None:
                back = "undo" if here == directory else f"undo {shell_quote(key)}"
            out.hint("To undo", back, style="")

    return CommandResult(_data(done, checkpoint, directory, of_others, done=True), tell_end)


def _chosen(
    typed: list[str], paths: RelativePaths, directory: Path, checkpoint: Checkpoint, tree: Tree
) -> list[str] | None:
    """Return the paths to restore; None for everything.

    Raises:
        NotFoundError: a path is neither in the checkpoint nor in the directory.
        InvalidInputError: a path is outside of the directory.
    """
    chosen = paths.resolve(typed) if typed else None
    for name, path in zip(typed, chosen or ()):
        if not (os.path.lexists(directory / path) or holds(tree, path)):
            raise paths.not_found(name, path, tree, checkpoint)
    return chosen


def _show(
    out: Output,
    plan: Plan,
    directory: Path,
    paths: RelativePaths,
    of_others: bool,
    notices: list[str],
    is_copy: bool,
) -> None:
    for notice in notices:
        out.line(one_line(notice), style="yellow")
    if not plan and not plan.leave:
        out.line("Nothing to do: the files match the checkpoint.")
    else:
        show_plan_heading(out, plan, directory)
    show_plan(out, plan, paths, is_foreign=of_others and bool(plan), is_copy=is_copy)


def _what(chosen: list[str] | None, directory: Path, checkpoint: Checkpoint) -> str:
    """Return the object of the sentence "Restore …"."""
    if chosen is None:
        return f"{one_line(directory)} to @{checkpoint.seq}"
    return f"{one_line(format_paths(chosen))} in {one_line(directory)} from @{checkpoint.seq}"


@contextmanager
def _made(into: str | None, location: StoreLocation) -> Iterator[None]:
    """Create the target directory, and remove it afterwards if it is still empty."""
    target = None if into is None else location.directory / into
    made: list[Path] = []
    if target is not None:
        made = [path for path in (target, *target.parents) if not path.exists()]
        create_directory(target)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty
            for path in made:
                path.rmdir()


def _check_empty(directory: Path, store: Store) -> None:
    """Check that a target directory has no files that the restore would delete.

    Raises:
        UnsafeWorkspaceError: the directory has files.
    """
    own = Path(os.path.realpath(store.backend.properties.path or "/"))
    if any(path != own for path in directory.iterdir()):
        raise UnsafeWorkspaceError(
            f"{one_line(directory)} is not empty, and the restore would delete its files. "
            "Choose another directory, or pass --force."
        )


def _target(args: Args, location: StoreLocation, store: Any, checkpoint: Checkpoint) -> Path:
    if args.into is not None:
        return existing_directory(args.into, location.directory)
    directory = directory_of_files(store, checkpoint, location.directory)
    if directory is None or not directory.is_dir():
        raise InvalidInputError(
            f"{location.directory} is not the directory of {short_repr(checkpoint.key)}"
            f"{_why(store, checkpoint)}. Change to its directory, or pass --into DIR."
        )
    return directory


def _why(store: Store, checkpoint: Checkpoint) -> str:
    why = why_not_owned(store, newest_readable(store, checkpoint.key) or checkpoint)
    return "" if why is None else f" ({why})"


def _data(
    plan: Plan, checkpoint: Checkpoint, directory: Path, of_others: bool, *, done: bool
) -> dict[str, Any]:
    found = {"id": checkpoint.id, "directory": str(directory), "done": done, "foreign": of_others}
    return {**found, **plan_json(plan)}
