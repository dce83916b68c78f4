"""`run`: run a command and save checkpoints of its directory before, during and after it."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from argparse import REMAINDER
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.hints import command_line
from agent_checkpoint.cli.output import CommandResult, escape_text
from agent_checkpoint.cli.store_location import StoreLocation, existing_directory
from agent_checkpoint.errors import CheckpointError, InvalidInputError
from agent_checkpoint.formatting import shell_quote

EXAMPLES = """
agent-checkpoint run -- python agent.py         save before, on changes every 10 seconds, after
agent-checkpoint run --every 60 -- make test    check for changes once a minute
agent-checkpoint run --key nightly -- ./agent   save to a given key
"""
_EVERY = 10.0


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.usage = "agent-checkpoint run [OPTIONS] [--] COMMAND …"
    parser.add("argv", "COMMAND", "the command and its arguments", nargs=REMAINDER)
    parser.add("--key", "NAME", "the key (default: that of the directory)")
    parser.add(
        "--every",
        "SECONDS",
        "interval between checks for changes (default: 10)",
        type=float,
        default=_EVERY,
    )
    parser.add("--dir", "DIR", "working directory (default: the current directory)")
    parser.repeatable("--ignore", "PATTERN", "exclude matching files; repeatable")
    parser.flag("--gitignore", "honor .gitignore files")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Run the command and save; the exit status is that of the command."""
    from agent_checkpoint.agents.directory_keys import directory_key
    from agent_checkpoint.cli.child_process import CannotStartError, ChildProcess
    from agent_checkpoint.cli.run_recorder import RunRecorder
    from agent_checkpoint.workspace.workspace import Workspace

    command = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not command:
        raise InvalidInputError("No command given. Usage: agent-checkpoint run -- COMMAND")
    every = checked_seconds(args.every)
    directory = existing_directory(args.dir, location.directory)
    options: dict[str, Any] = {"ignore": args.ignore, "gitignore": args.gitignore}
    with location.manager() as manager, Workspace(directory, manager.store, **options) as workspace:
        own_key = directory_key(manager.store, directory)
        key = args.key or own_key
        recorder = RunRecorder(manager.store, workspace, key, own_key, command)
        words = shlex.join(command)
        before = recorder.save(f"before {words}")
        child = ChildProcess(command, directory, recorder.output)
        ended = threading.Event()

        def save_changes() -> None:
            while not ended.wait(every):
                try:
                    recorder.save(f"during {words}", only_changes=True)
                except CheckpointError as error:
                    # The command continues, and the error may be temporary.
                    _tell(str(error))

        watcher = threading.Thread(target=save_changes, daemon=True)
        started = time.monotonic()
        try:
            status = child.run(on_start=watcher.start)
        except CannotStartError as error:
            if before is not None:  # delete the checkpoint of a run that did not start
                manager.delete(key, before.id)
            _tell(str(error))
            return CommandResult({}, lambda out: None, error.status)
        finally:
            ended.set()
            if watcher.ident is not None:
                watcher.join(60)
        took = time.monotonic() - started
        try:
            after = recorder.save(f"after {words}", status=status, seconds=took, full=True)
            if after is not None:
                history = command_line(f"log {shell_quote(key)}", args.store or None)
                _tell(f"saved {after.id}; history: {history}")
        except CheckpointError as error:
            _tell(str(error))
            status = status or 1
    return CommandResult({}, lambda out: None, status)


def _tell(text: str) -> None:
    """Write a line to stderr, separate from the output of the command."""
    sys.stderr.write(f"agent-checkpoint: {escape_text(text)}\n")


def checked_seconds(value: float) -> float:
    """Return a valid value of --every. Raises InvalidInputError."""
    if not 0.05 <= value <= 86_400:
        raise InvalidInputError(f"--every must be from 0.05 to 86,400 seconds, not {value:g}.")
    return value
