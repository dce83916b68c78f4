"""`rotate-key`: change the key of an encrypted store.

The keys are named, not given: other processes can read command lines.
"""

from __future__ import annotations

from pathlib import Path

from agent_checkpoint.backends.wrappers.encryption_keys import EnvironmentKey
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError

EXAMPLES = """
agent-checkpoint rotate-key --to-file new.key --store 'sqlite:///srv/store?encryption_key_file=/etc/old.key'
agent-checkpoint rotate-key --to-env NEW_KEY --store 'sqlite:///srv/store?encryption_key_env=OLD_KEY'
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("--to-file", "PATH", "the file with the new key, readable by you alone")
    parser.add("--to-env", "NAME", "the environment variable with the new key")
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Rotate the key."""
    if (args.to_file is None) == (args.to_env is None):
        raise InvalidInputError("Name the new key: --to-file PATH or --to-env NAME.")
    new = EnvironmentKey(args.to_env) if args.to_env else Path(args.to_file).absolute()
    with location.manager() as manager:
        manager.rotate_key(new)

    def show(out: Output) -> None:
        out.line("Only the new key opens the store now.", style="green")
        out.line("Name it in the store URL. Running processes can go on; the data is unchanged.")

    return CommandResult({"done": True}, show)
