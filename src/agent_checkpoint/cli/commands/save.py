"""`save`: save a checkpoint of a directory."""

from __future__ import annotations

import os
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.hints import with_store
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    files_read,
    format_count,
    format_size,
    one_line,
)
from agent_checkpoint.cli.store_location import StoreLocation, existing_directory
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr as quoted_name

EXAMPLES = """
agent-checkpoint save                      save the current directory
agent-checkpoint save ~/repo -m "it works"   save another directory, with a label
agent-checkpoint save --ignore '*.log'     exclude files
agent-checkpoint save --moved-from ~/old   continue the history of a directory that was moved here
agent-checkpoint save --mine workspace:/home/ann/repo   continue an imported key
"""
_GB = 1 << 30
_SHOWN = 10
_NAMED = 5


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "directory",
        "DIR",
        "the directory (default: the nearest saved directory, upwards from the current "
        "one; else the current one)",
    )
    parser.add_argument("-m", "--label", metavar="TEXT", help="label of the checkpoint")
    parser.repeatable(
        "--ignore",
        "PATTERN",
        "exclude matching files, as a line of .checkpointignore does; repeatable",
    )
    parser.flag("--gitignore", "honor .gitignore files")
    parser.add(
        "--limit",
        "GIB",
        "maximum size of new data in GiB (default: 10); 0 for no limit",
        type=float,
        default=10.0,
    )
    parser.flag("--force", "allow / or a home directory")
    parser.add(
        "--mine",
        "KEY",
        "continue this key of the directory and sign it with your secret, although it "
        "was imported, or signed with another secret or on another host",
    )
    parser.add(
        "--moved-from",
        "DIR",
        "continue the history of this directory, which is now here; needed only if it was moved "
        "to another file system",
    )
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Save the directory."""
    from agent_checkpoint.agents.directory_keys import (
        bind_moved,
        directory_key,
        nearest_tracked_dir,
        unverified_keys,
        unverified_notice,
    )
    from agent_checkpoint.agents.tracked_dir import open_tracked

    if not 0 <= args.limit < 1e9:
        raise InvalidInputError("--limit must be a size in GiB, or 0 for no limit.")
    directory = existing_directory(args.directory, location.directory)
    is_around = False
    with location.manager() as manager, args.out.progress("Saving") as tell:
        options: dict[str, Any] = {
            "ignore": args.ignore,
            "gitignore": args.gitignore,
            "force": args.force,
            "limit": int(args.limit * _GB) or None,
            "progress": files_read(tell),
        }
        if args.moved_from is not None:
            old = os.path.realpath(location.directory / args.moved_from)
            bind_moved(manager.store, old, directory)
        others = unverified_keys(manager.store, directory)
        if args.mine is not None:
            if args.mine not in [unverified.key for unverified in others]:
                raise InvalidInputError(
                    f"{quoted_name(args.mine)} is not an unverified key of {one_line(directory)}. "
                    "Run `agent-checkpoint save` without --mine."
                )
            key = args.mine
        elif args.directory is None:
            # `log`, `diff` and `restore` use the same directory.
            directory, key = nearest_tracked_dir(manager.store, directory)
            is_around = directory != location.directory
        else:
            key = directory_key(manager.store, directory)
        with open_tracked(directory, manager.store, key, **options) as workspace:
            tree = workspace.snapshot(label=args.label, full=True)
            # The head may be a checkpoint that another process wrote meanwhile.
            written, left_out = workspace.written, workspace.left_out
            head = written or manager.store.head(workspace.key)
    if head is None:
        raise AssertionError("unreachable: snapshot() writes a checkpoint if there is none")
    is_new = written is not None
    notes = [{"path": note.path, "kind": note.kind, "text": note.text} for note in tree.notes]
    data = {
        "id": head.id,
        "key": head.key,
        "tree": tree.id,
        "files": tree.files,
        "bytes": tree.bytes,
        "new": is_new,
        "incomplete": tree.incomplete,
        "notes": notes,
        "left_out": left_out,
        "notices": workspace.notices,
    }

    def show(out: Output) -> None:
        what = f"{format_count(tree.files, 'file')}, {format_size(tree.bytes)}"
        words = "Saved" if is_new else "No changes since"
        out.line(f"{words} @{head.seq}: {one_line(directory)} ({what})")
        for notice in workspace.notices:
            out.line(one_line(notice), style="yellow")
        if tree.incomplete:
            out.line("Incomplete: some files could not be captured.", style="yellow")
        rows = []
        for note in notes:
            why = f" ({one_line(note['text'])})" if note["text"] else ""
            rows.append(f"  {one_line(note['path'])}: {one_line(note['kind'])}{why}")
        out.some(rows, out.limit(_SHOWN), "  and {:,} more (use --json)", style="yellow")
        if left_out:
            some = ", ".join(one_line(name) for name in left_out[:_NAMED])
            more = "" if len(left_out) <= _NAMED else f" and {len(left_out) - _NAMED:,} more"
            out.line(f"Excluded by ignore rules, not restored: {some}{more}", style="yellow")
        if is_around:
            out.hint("To save only the current directory", "save .")
        if is_new:
            out.hint("To restore", f"restore @{head.seq}")
        for unverified in others:
            if unverified.key != head.key:
                out.line(with_store(unverified_notice(unverified), args.store), style="yellow")

    return CommandResult(data, show)
