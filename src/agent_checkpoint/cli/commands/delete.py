"""`delete`: delete keys or single checkpoints permanently, after a preview."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_time, one_line
from agent_checkpoint.cli.prompts import confirmed, declined
from agent_checkpoint.cli.store_location import HERE, StoreLocation
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.session.session_record import SESSION_PART

EXAMPLES = """
agent-checkpoint delete fix-bug-42             delete a key and all its checkpoints
agent-checkpoint delete fix-bug-42@3 fix-bug-42@4   delete two checkpoints
agent-checkpoint delete try-a try-b --dry-run  show what would be deleted
"""


class _Deletion(NamedTuple):
    """A key or a checkpoint to delete."""

    key: str
    id: str | None
    words: str
    """A description for the preview."""
    checkpoints: int


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add(
        "names",
        "KEY|ID",
        "a key, with all its checkpoints; or a checkpoint: an id, KEY@17, KEY~2",
        nargs="+",
    )
    parser.previewed("show what would be deleted, delete nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Show the preview, ask for confirmation, and delete."""
    with location.manager() as manager:
        # Drop duplicates, and checkpoints of keys that are deleted as a whole.
        found = dict.fromkeys(_find_deletion(location, manager, name) for name in args.names)
        keys = {item.key for item in found if item.id is None}
        deletions = [item for item in found if item.id is None or item.key not in keys]
        data: dict[str, Any] = {
            "done": False,
            "keys": sorted(keys),
            "checkpoints": sum(item.checkpoints for item in deletions),
            "ids": [item.id for item in deletions if item.id is not None],
        }

        def preview(out: Output) -> None:
            for item in deletions:
                out.line(f"  delete {item.words}")

        if args.dry_run:
            return CommandResult(data, preview)
        if not confirmed(args, preview, "Delete permanently?"):
            return declined(data)
        for item in deletions:
            manager.delete(item.key, item.id)

    def show(out: Output) -> None:
        out.line(f"Deleted {format_count(data['checkpoints'], 'checkpoint')}.", style="green")
        out.hint("To reclaim space", "gc")

    return CommandResult({**data, "done": True}, show)


def _find_deletion(location: StoreLocation, manager: CheckpointManager, name: str) -> _Deletion:
    """Return the key or checkpoint to delete. Raises CheckpointError."""
    name = location.key(manager, None) if name == HERE else name
    total = sum(1 for _ in manager.store.entries(name)) if name else 0
    if total:
        words = f"{one_line(name)}, {format_count(total, 'checkpoint')}"
        with suppress(*UNUSABLE):  # damaged checkpoints can also be deleted
            head = manager.store.head(name)
            if head is not None and SESSION_PART in head.parts:
                words += " (a session: a running agent can no longer save to it)"
        return _Deletion(name, None, words, total)
    try:
        found = location.checkpoint(manager, name)
    except UNUSABLE:
        parsed = parse_checkpoint_id(name)
        if parsed is None:
            raise
        return _Deletion(parsed.key, name, f"{one_line(name)} (unreadable)", 1)
    label = f"  {one_line(found.label, 100)}" if found.label else ""
    return _Deletion(
        found.key, found.id, f"{one_line(found.id)}  {format_time(found.ts_ns / 1e9)}{label}", 1
    )
