"""`purge`: remove a leaked secret from all checkpoints.

The secret is read from a prompt or stdin, because other processes can read command lines.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.state_dir import log_file
from agent_checkpoint.backends.os_support.posix import (
    is_regular,
    read_regular,
    wrap_os_errors,
    write_new,
)
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, one_line
from agent_checkpoint.cli.prompts import confirmed, declined
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.store.maintenance.purge import PurgeReport

EXAMPLES = """
agent-checkpoint purge                            prompt for the secret, without echo
agent-checkpoint purge --dry-run < secret.txt     list the checkpoints that contain it
pass show api-key | agent-checkpoint purge --yes
"""
_SHOWN = 20


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.previewed("list affected checkpoints, change nothing")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Show the preview, ask for confirmation, and purge."""
    secret = _secret()
    with location.manager() as manager:
        found = manager.purge(secret, dry_run=True)

        def preview(out: Output) -> None:
            if not (found.checkpoints or found.objects):
                out.line("No checkpoint contains the secret.")
                return
            number = format_count(len(found.checkpoints), "checkpoint")
            out.line(f"The secret is in {number}, to be deleted:")
            rows = [f"  {one_line(name)}" for name in found.checkpoints]
            out.some(rows, _SHOWN, "  and {:,} more")

        if args.dry_run or not (found.checkpoints or found.objects):
            return CommandResult(_data(found, done=False), preview)
        if not confirmed(args, preview, "Delete permanently?"):
            return declined(_data(found, done=False))
        with args.out.progress("Purging"):
            done = manager.purge(secret)
            _forget_in_log(secret.encode() if isinstance(secret, str) else secret)

    def show(out: Output) -> None:
        out.line(f"Removed {format_count(len(done.checkpoints), 'checkpoint')}.", style="green")
        for key, name in done.replaced.items():
            out.line(f"  {one_line(key)} continues at {one_line(name)}, with the secret redacted")
        out.line(
            "Revoke the secret: copies of the store, archives and agents may still contain it."
        )

    return CommandResult(_data(done, done=True), show)


def _forget_in_log(secret: bytes) -> None:
    """Delete the lines of the hook log that contain the secret. Raises StorageError."""
    found = log_file()
    for path in () if found is None else (Path(found), Path(f"{found}.1")):
        with wrap_os_errors(f"rewrite {path}"):
            lines = (read_regular(path) or b"").splitlines(True) if is_regular(path) else []
            if not any(secret in line for line in lines):
                continue
            fresh = write_new(path.parent, b"".join(line for line in lines if secret not in line))
            fresh.replace(path)


def _secret() -> str:
    """Read the secret from a prompt or from stdin. Raises InvalidInputError."""
    try:
        is_person = sys.stdin.isatty()
    except (AttributeError, ValueError):
        is_person = False
    try:
        text = getpass.getpass("Secret (not shown): ") if is_person else sys.stdin.read()
    except (EOFError, UnicodeDecodeError) as error:
        raise InvalidInputError("The secret must be one line of text.") from error
    text = text.rstrip("\r\n")
    if not text:
        raise InvalidInputError("No secret given. Type it at the prompt, or pipe it to stdin.")
    return text


def _data(report: PurgeReport, *, done: bool) -> dict[str, Any]:
    return {
        "done": done,
        "checkpoints": list(report.checkpoints),
        "objects": report.objects,
        "replaced": dict(report.replaced),
    }
