"""`undo`: takes back the last rollback, restore or adopt of a session or of the directory."""

from __future__ import annotations

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.commands import restore, rollback
from agent_checkpoint.cli.output import CommandResult
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.session.rollback.rollback_target import undo_target
from agent_checkpoint.session.session_record import SESSION_PART

EXAMPLES = """
agent-checkpoint undo                 take back the last restore or rollback of this directory
agent-checkpoint undo --dry-run       show what would change
agent-checkpoint undo fix-bug-42 --yes   take back the last rollback or adopt of a session
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("key", "KEY", "the key (default: that of the current directory)", nargs="?")
    parser.add("--workspace", "DIR", "directory for the files, if the session is not bound to one")
    parser.previewed("show the plan, change nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Return to the safety checkpoint, as `rollback` or `restore` would. Undone by another undo."""
    with location.manager() as manager:
        key = location.key(manager, args.key)
        target = undo_target(manager.store, key)
    if SESSION_PART in target.parts:
        args.key, args.to, args.effects = key, target.id, "warn"
        args.steps, args.parts, args.modules, args.keep_unseen = 1, None, [], False
        return rollback.run(args, location)
    args.id, args.paths, args.into = target.id, [], None
    args.force, args.keep_git, args.keep_unseen = False, False, False
    return restore.run(args, location)
