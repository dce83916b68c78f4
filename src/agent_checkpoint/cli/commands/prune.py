"""`prune`: delete old checkpoints of a key by a retention policy, after a preview."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, one_line
from agent_checkpoint.cli.prompts import confirmed, declined
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.store.maintenance.retention import (
    KeepEvery,
    KeepLatest,
    KeepNewerThan,
    KeepTagged,
    Policy,
)

EXAMPLES = """
agent-checkpoint prune fix-bug-42 --keep-latest 20 --dry-run   show what would be deleted
agent-checkpoint prune fix-bug-42 --keep-latest 20 --keep-every 10 --yes
agent-checkpoint prune fix-bug-42 --keep-newer-than 7 --keep-tagged release
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("key", "KEY", "the key")
    parser.add("--keep-latest", "N", "keep the N newest checkpoints", type=int)
    parser.add("--keep-every", "N", "keep checkpoints whose number is divisible by N", type=int)
    parser.add("--keep-newer-than", "DAYS", "keep checkpoints newer than DAYS days", type=float)
    parser.repeatable(
        "--keep-tagged",
        "TAG",
        "keep checkpoints with this tag; repeatable; an empty TAG keeps all tagged checkpoints",
        default=None,
    )
    parser.previewed("show what would be deleted, delete nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Show the preview, ask for confirmation, and prune."""
    policy = _policy(args)
    with location.manager() as manager:
        key = location.key(manager, args.key)
        to_delete = manager.prune(key, policy, dry_run=True)
        total = sum(1 for _ in manager.store.entries(key))
        data: dict[str, Any] = {
            "key": key,
            "done": False,
            "deleted": to_delete,
            "kept": total - len(to_delete),
        }

        def preview(out: Output) -> None:
            if to_delete:
                kept = total - len(to_delete)
                out.line(
                    f"{one_line(key)}: {format_count(len(to_delete), 'checkpoint')} to delete, "
                    f"{kept:,} to keep."
                )
            else:
                out.line(
                    f"{one_line(key)}: nothing to delete, {format_count(total, 'checkpoint')} kept."
                )

        if args.dry_run or not to_delete:
            return CommandResult(data, preview)
        if not confirmed(args, preview, "Delete permanently?"):
            return declined(data)
        deleted = manager.prune(key, policy)
    data = {**data, "done": True, "deleted": deleted, "kept": total - len(deleted)}

    def show(out: Output) -> None:
        out.line(
            f"Deleted {format_count(len(deleted), 'checkpoint')} of {one_line(key)}.", style="green"
        )
        out.hint("To reclaim space", "gc")

    return CommandResult(data, show)


def _policy(args: Args) -> Policy:
    kinds: Any = ((KeepLatest, args.keep_latest), (KeepEvery, args.keep_every))
    policies: list[Policy] = [keep(number) for keep, number in kinds if number is not None]
    if args.keep_newer_than is not None:
        try:
            policies.append(KeepNewerThan(timedelta(days=args.keep_newer_than)))
        except (OverflowError, ValueError):
            raise InvalidInputError(
                f"--keep-newer-than: {args.keep_newer_than} days is out of range."
            ) from None
    if args.keep_tagged is not None:
        policies.append(KeepTagged(*(tag for tag in args.keep_tagged if tag)))
    if not policies:
        raise InvalidInputError("No retention policy given. Pass one, such as --keep-latest 20.")
    return reduce(or_, policies)
