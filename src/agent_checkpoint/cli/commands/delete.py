"""`delete`: delete keys or single checkpoints permanently, after a preview."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any, NamedTuple

from agent_checkpoint.cli.output import Answer, Out, format_count, format_time, one_line
from agent_checkpoint.cli.prompts import add_json, add_yes, agreed, refused
from agent_checkpoint.cli.store_location import Places
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.session.session_record import SESSION_PART

EXAMPLES = """
agent-checkpoint delete fix-bug-42             delete a key and all its checkpoints
agent-checkpoint delete fix-bug-42@3 fix-bug-42@4   delete two checkpoints
agent-checkpoint delete try-a try-b --dry-run  show what would be deleted
"""


class _Doomed(NamedTuple):
    """A key or a checkpoint to delete."""

    key: str
    id: str | None
    words: str
    """A description for the preview."""
    checkpoints: int


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="KEY|ID",
        help="a key, with all its checkpoints; or a checkpoint: an id, KEY@17, KEY~2",
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show what would be deleted, delete nothing"
    )
    add_yes(parser)
    add_json(parser, needs_yes=True)


def run(args: Namespace, places: Places) -> Answer:
    """Show the preview, ask, and delete."""
    with places.manager() as manager:
        # Duplicates, and checkpoints of keys that are deleted anyway, count once.
        found = dict.fromkeys(_doomed(places, manager, said) for said in args.names)
        keys = {item.key for item in found if item.id is None}
        doomed = [item for item in found if item.id is None or item.key not in keys]
        data: dict[str, Any] = {
            "done": False,
            "keys": sorted(keys),
            "checkpoints": sum(item.checkpoints for item in doomed),
            "ids": [item.id for item in doomed if item.id is not None],
        }

        def preview(out: Out) -> None:
            for item in doomed:
                out.line(f"  delete {item.words}")

        if args.dry_run:
            return Answer(data, preview)
        if not agreed(args, preview, "Delete permanently?"):
            return refused(data)
        for item in doomed:
            manager.delete(item.key, item.id)

    def show(out: Out) -> None:
        out.line(f"Deleted {format_count(data['checkpoints'], 'checkpoint')}.", style="green")
        out.hint("To reclaim space", "gc")

    return Answer({**data, "done": True}, show)


def _doomed(places: Places, manager: CheckpointManager, said: str) -> _Doomed:
    """Return the key, or the checkpoint, with a name. Raises CheckpointError."""
    total = sum(1 for _ in manager.store.entries(said)) if said else 0
    if total:
        words = f"{one_line(said)}, {format_count(total, 'checkpoint')}"
        with suppress(*UNUSABLE):  # damaged checkpoints can be deleted, too
            head = manager.store.head(said)
            if head is not None and SESSION_PART in head.parts:
                words += " (a session: a running agent can no longer save to it)"
        return _Doomed(said, None, words, total)
    try:
        found = places.checkpoint(manager, said)
    except UNUSABLE:
        place = parse_checkpoint_id(said)
        if place is None:
            raise
        return _Doomed(place.key, said, f"{one_line(said)} (unreadable)", 1)
    label = f"  {one_line(found.label, 100)}" if found.label else ""
    return _Doomed(
        found.key, found.id, f"{one_line(found.id)}  {format_time(found.ts_ns / 1e9)}{label}", 1
    )
