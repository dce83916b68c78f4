"""`diff`: changes between two checkpoints, or from a checkpoint to the working tree."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.directory_keys import directory_of_files
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.hints import command_line
from agent_checkpoint.cli.output import CommandResult, Output, format_count, masked, one_line
from agent_checkpoint.cli.paths import RelativePaths, below, git_above, holds, without_git
from agent_checkpoint.cli.store_location import HERE, StoreLocation
from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.formatting import shell_quote, value_summary
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.message_line import message_line
from agent_checkpoint.present.state_json import (
    compare_logs,
    compare_states,
    logs_in,
    read_parts,
)
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.lookup import short_form
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff
from agent_checkpoint.workspace.workspace import Workspace

EXAMPLES = """
agent-checkpoint diff                    changes since the last checkpoint
agent-checkpoint diff @3                 changes since checkpoint 3
agent-checkpoint diff fix-bug-42@3 fix-bug-42   between two checkpoints of a session
agent-checkpoint diff @3 --stat          list changed files only
agent-checkpoint diff @3 --path src      restrict to a directory
"""
ONLY = ("files", "state", "messages")
_SHOWN = 50
_SIGNS = (("-", "removed", "red"), ("+", "added", "green"), ("~", "changed", "yellow"))


class _Sides(NamedTuple):
    before: Checkpoint
    after: Checkpoint
    directory: Path | None
    """The directory, if the files are compared with the working tree."""
    root: Path | None
    """The directory that the files belong to, if known."""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("a", "A", "old checkpoint (default: the latest of the current directory)")
    parser.optional(
        "b", "B", "new checkpoint (default: the working tree, else the latest of the key)"
    )
    parser.add_argument(
        "--only", action="append", choices=ONLY, help="compare only this; repeatable"
    )
    parser.repeatable("--path", "PATH", "restrict to a file or directory; repeatable", dest="paths")
    parser.flag("--stat", "list changed files and values without contents, and count messages")
    parser.flag("--exit-code", "exit with status 1 if there are differences")
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Compare the two sides."""
    only = args.only or (("files",) if args.paths else ONLY)
    with location.manager() as manager:
        sides = _sides(args, location, manager)
        paths = RelativePaths(sides.root, location.directory)
        files = _files(manager, sides) if "files" in only else None
        if files is not None:
            files = _restricted(files, args.paths, paths, manager, sides)
        data: dict[str, Any] = {
            "from": sides.before.id,
            "to": sides.after.id,
            "directory": None if sides.directory is None else str(sides.directory),
            "files": None if files is None else files.to_dict(),
        }
        if sides.before.id != sides.after.id:
            data.update(_states(manager, sides, only))
        # The text output omits the internal files of git.
        shown = None if files is None else files.only(lambda path: git_above(path) is None)
        text = "" if shown is None or args.stat or args.json else shown.text()
        if args.json and files is not None and not args.stat:
            data["files"]["text"] = files.text()
    data, text = masked(args, data), masked(args, text)
    differs = bool(files) or any(
        any(data.get(name, {}).values()) for name in ("state", *logs_in(data))
    )
    status = 1 if args.exit_code and differs else 0
    if not differs:
        return CommandResult(data, partial(_show_same, args=args, sides=sides), status)
    show = _show_stat if args.stat else _show

    def tell(out: Output) -> None:
        show(out, data)
        if files:
            _show_files(out, files, text, paths)

    return CommandResult(data, tell, status)


def _restricted(
    files: WorkspaceDiff,
    typed: list[str],
    paths: RelativePaths,
    manager: CheckpointManager,
    sides: _Sides,
) -> WorkspaceDiff:
    """Return the differences below the given paths. Raises NotFoundError."""
    chosen = paths.resolve(typed) if typed else None
    if chosen is None:
        return files
    trees = [tree_in(manager.store, side) for side in (sides.before, sides.after)]
    for name, path in zip(typed, chosen):
        is_there = sides.directory is not None and os.path.lexists(sides.directory / path)
        if not is_there and not any(tree is not None and holds(tree, path) for tree in trees):
            raise paths.not_found(name, path, trees[0], sides.before)
    return files.only(below(chosen))


def _sides(args: Args, location: StoreLocation, manager: CheckpointManager) -> _Sides:
    before = _checkpoint(args, location, manager, args.a)
    root = directory_of_files(manager.store, before, location.directory)
    if args.b is not None:
        return _Sides(before, _checkpoint(args, location, manager, args.b), None, root)
    head = manager.store.head(before.key) or before
    is_there = root is not None and root.is_dir() and FILES in before.parts
    return _Sides(before, head, root if is_there else None, root)


def _checkpoint(
    args: Args, location: StoreLocation, manager: CheckpointManager, name: str | None
) -> Checkpoint:
    """Return a checkpoint. Raises NotFoundError, with a hint if the name is that of a directory."""
    try:
        return location.checkpoint(manager, name)
    except NotFoundError as error:
        # Path.is_dir() raises an error if the name is too long.
        if not name or not os.path.isdir(location.directory / name):  # noqa: PTH112
            raise
        command = f"cd {shell_quote(name)} && {command_line('diff', args.store)}"
        hint = f"To compare a directory: `{command}`."
        raise NotFoundError(error.with_hint(hint)) from None


def _files(manager: CheckpointManager, sides: _Sides) -> WorkspaceDiff | None:
    before = tree_in(manager.store, sides.before)
    if before is None:
        return None
    if sides.directory is not None:
        rules: dict[str, Any] = {"ignore": before.ignore, "gitignore": before.gitignore}
        options: dict[str, Any] = {"watch": False, "force": True, "limit": None, **rules}
        with Workspace(sides.directory, manager.store, **options) as workspace:
            return workspace.diff(before)
    after = tree_in(manager.store, sides.after)
    return None if after is None else _between(before, after)


def _between(before: Tree, after: Tree) -> WorkspaceDiff:
    from agent_checkpoint.workspace.tree.compare import Side
    from agent_checkpoint.workspace.tree.workspace_diff import compare

    return compare(Side(before.root.ref, before.get), Side(after.root.ref, after.get))


def _states(manager: CheckpointManager, sides: _Sides, only: Any) -> dict[str, Any]:
    before = read_parts(manager.store, sides.before)
    after = read_parts(manager.store, sides.after)
    found: dict[str, Any] = {}
    if "state" in only:
        found["state"] = compare_states(before, after)
    if "messages" in only:
        for name in logs_in(before, after):
            found[name] = compare_logs(before.get(name), after.get(name))
    return found


def _show_same(out: Output, args: Args, sides: _Sides) -> None:
    before = _name(sides.before, args.a)
    after = sides.directory or _name(sides.after, args.a if args.b is None else args.b)
    out.line(f"No differences between {one_line(before)} and {one_line(after)}.")


def _name(checkpoint: Checkpoint, typed: str | None) -> str:
    """Return the short form of a checkpoint, with its key if one was typed."""
    is_here = typed is None or typed == HERE or short_form(typed) is not None
    return f"@{checkpoint.seq}" if is_here else f"{checkpoint.key}@{checkpoint.seq}"


def _show_stat(out: Output, data: dict[str, Any]) -> None:
    """Show the numbers of messages and calls, and the names of changed values."""
    for name in logs_in(data):
        counts = [f"{len(items):,} {how}" for how, items in data[name].items() if items]
        if counts:
            out.line(f"{name}: {', '.join(counts)}", style="bold")
    rows = [
        (f"{sign} {one_line(at, out.limit(120))}", style)
        for sign, how, style in _SIGNS
        for at in data.get("state", {}).get(how, {})
    ]
    _show_rows(out, "state", rows)


def _show(out: Output, data: dict[str, Any]) -> None:
    room = out.limit(max((out.columns or 0) - 30, 40))
    for name in logs_in(data):
        for sign, how, style in _SIGNS[:2]:
            items = data.get(name, {}).get(how, [])
            rows = [(f"{sign} {message_line(item, room, out.limit)}", style) for item in items]
            _show_rows(out, f"{name}: {len(rows):,} {how}", rows)
    _show_rows(out, "state", _state_rows(out, data.get("state", {}), room))


def _state_rows(out: Output, state: dict[str, Any], room: int) -> list[tuple[str, str]]:
    long, half = out.limit(120), room // 2
    rows = [
        (f"{sign} {one_line(at, long)}: {value_summary(value, room)}", style)
        for sign, how, style in _SIGNS[:2]
        for at, value in state.get(how, {}).items()
    ]
    for at, (old, new) in state.get("changed", {}).items():
        both = f"{value_summary(old, half)} -> {value_summary(new, half)}"
        rows.append((f"~ {one_line(at, long)}: {both}", "yellow"))
    return rows


def _show_rows(out: Output, heading: str, rows: list[tuple[str, str]]) -> None:
    """Show (text, style) pairs below a heading; nothing if there are none."""
    if rows:
        out.line(heading, style="bold")
    shown = out.limit(_SHOWN)
    for line, style in rows[:shown]:
        out.pieces((f"  {line}", style))
    if len(rows) > shown:
        out.line(f"  and {len(rows) - shown:,} more (use --json)")


def _show_files(out: Output, files: WorkspaceDiff, text: str, paths: RelativePaths) -> None:
    names = [*files.added, *files.removed, *files.changed, *files.renamed]
    out.line(f"files: {len(names):,} changed", style="bold")
    _, of_git = without_git(names)
    if not text:
        shown = files.only(lambda path: git_above(path) is None)
        for sign, changed, style in (("+", shown.added, "green"), ("-", shown.removed, "red")):
            for path in changed:
                out.line(f"  {sign} {one_line(paths.display(path))}", style=style)
        for path, what in shown.changed.items():
            out.line(f"  ~ {one_line(paths.display(path))} ({', '.join(what)})", style="yellow")
        for old, new in shown.renamed.items():
            both = f"{one_line(paths.display(old))} -> {one_line(paths.display(new))}"
            out.line(f"  > {both}", style="yellow")
    for path, number in of_git.items():
        out.line(
            f"  ~ {one_line(paths.display(path))} ({format_count(number, 'file')})", style="yellow"
        )
    for line in text.split("\n")[:-1]:
        heading = line.startswith(("diff ", "--- ", "+++ ", "renamed "))
        style = "bold" if heading else "cyan" if line.startswith("@@") else ""
        style = style or {"+": "green", "-": "red"}.get(line[:1], "")
        out.line(one_line(line), style=style)
