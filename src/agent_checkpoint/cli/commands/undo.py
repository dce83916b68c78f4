"""`undo`: takes back the last rollback, restore, revert or adopt of a session or directory."""

from __future__ import annotations

from agent_checkpoint.agents.directory_keys import RESTORED
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.commands import restore, rewind, rollback
from agent_checkpoint.cli.output import CommandResult, format_time, one_line
from agent_checkpoint.cli.store_location import HERE, StoreLocation
from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, Kind, parse_checkpoint_id, short_repr
from agent_checkpoint.session.rollback.rollback_target import LastOperation, last_operation
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.steps.line import REVERTED

EXAMPLES = """
agent-checkpoint undo                 take back the last operation of this directory
agent-checkpoint undo --dry-run       show what it was, and what would change
agent-checkpoint undo fix-bug-42 --yes   take back the last rollback or adopt of a session
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "key", "KEY", "only operations of this key (default: the last one of the current directory)"
    )
    rollback.effects_arguments(parser)
    parser.add("--workspace", "DIR", "directory for the files, if the session is not bound to one")
    parser.previewed("show the plan, change nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Return to the safety checkpoint, as `rollback`, `restore` or `rewind` would.

    Undone by another undo.
    """
    with location.manager() as manager:
        last = _last_of(args.key, location, manager)
    target = last.safety
    if target is None:
        raise _not_undoable(last.done)
    about = f"Last operation: {_what(last.done)}"
    if SESSION_PART in target.parts:
        args.key, args.to = target.key, target.id
        args.steps, args.parts, args.keep_unseen = 1, None, False
        result = rollback.run(args, location, about)
    elif HOOK in target.parts:
        args.id, args.session, args.only, args.keep_git, args.N = target.id, None, None, False, 1
        args.wait, args.while_running, args.mine = False, False, False
        result = rewind.run(args, location, about)
    else:
        args.id, args.paths, args.into = target.id, [], None
        args.force, args.keep_git, args.keep_unseen = False, False, False
        result = restore.run(args, location, about)
    return result._replace(data={"undoes": last.done.id, **result.data})


def _last_of(
    name: str | None, location: StoreLocation, manager: CheckpointManager
) -> LastOperation:
    """Return the last operation of a key, or of all keys of the nearest saved directory.

    Raises:
        NotFoundError: there is no such key, or no operation.
    """
    near = location.directory_keys(manager) if name in (None, HERE) else {}
    if near:
        # A restore is recorded under the key of the directory, a rollback under that of a session.
        # All of them count: an older operation must not be undone before a later one.
        directory, entries = next(iter(near.items()))
        who = one_line(directory)
        found = [
            last_operation(manager.store, entry.key, unrecorded=entry.is_directory_key)
            for entry in entries
        ]
    else:
        key = location.key(manager, name)
        who = f"The key {short_repr(key)}"
        found = [last_operation(manager.store, key)]
    operations = [last for last in found if last is not None]
    if not operations:
        raise NotFoundError(f"{who} has no rollback, restore, revert or adopt to undo.")
    return max(operations, key=lambda last: last.done.ts_ns)


def _what(done: Checkpoint) -> str:
    """Return what an operation did, to which checkpoint, and when."""
    key, when = one_line(done.key, 200), format_time(done.ts_ns / 1e9)
    if (done.label or "").startswith((RESTORED, REVERTED)):
        return f"{one_line(done.label, 200)}, {when}"
    place = parse_checkpoint_id(done.parents[-1]) if done.parents else None
    if place is None:
        return f"{done.kind} of {key}, {when}"
    at = f"@{place.seq}" if place.key == done.key else f"{one_line(place.key, 200)}@{place.seq}"
    if done.kind == Kind.ADOPT:
        return f"adopt of {at} in {key}, {when}"
    return f"{done.kind} of {key} to {at}, {when}"


def _not_undoable(done: Checkpoint) -> NotFoundError:
    if done.kind != Kind.SAFETY:
        return NotFoundError(
            f"The last operation cannot be undone, because its safety checkpoint was removed: "
            f"{_what(done)}."
        )
    command = f"agent-checkpoint restore {shell_quote(done.id)}"
    return NotFoundError(
        f"The files were replaced without a record, {format_time(done.ts_ns / 1e9)}, by a program "
        f"or an earlier version. To restore the files before that, run `{command}`."
    )
