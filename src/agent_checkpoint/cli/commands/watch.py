"""`watch`: save a checkpoint whenever files change, until interrupted."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.commands.run import checked_seconds
from agent_checkpoint.cli.output import CommandResult, escape_text, files_read, one_line
from agent_checkpoint.cli.store_location import StoreLocation, existing_directory
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.workspace.scan.snapshot_limit import Progress

EXAMPLES = """
agent-checkpoint watch                     watch the current directory until Ctrl-C
agent-checkpoint watch ~/repo --every 10   check another directory every ten seconds
agent-checkpoint watch --budget 2GB        remove old checkpoints when the store is larger
"""
_EVERY = 2.0
_UPKEEP_EVERY = 60.0


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("directory", "DIR", "the directory (default: the current one)")
    parser.add(
        "--every",
        "SECONDS",
        "interval between checks for changes (default: 2)",
        type=float,
        default=_EVERY,
    )
    parser.repeatable("--ignore", "PATTERN", "exclude matching files; repeatable")
    parser.flag("--gitignore", "honor .gitignore files")
    parser.add(
        "--budget",
        "SIZE",
        "disk budget of the store, such as 5GB; 0 for none (default: $AGENT_CHECKPOINT_BUDGET, "
        "the budget given to `hook install`, or 5 GB)",
    )
    parser.flag("--json", "print JSON at the end")


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Save on every change until interrupted, then save a last time."""
    from agent_checkpoint.agents.directory_keys import directory_key
    from agent_checkpoint.agents.hook.upkeep_process import UpkeepProcess
    from agent_checkpoint.agents.tracked_dir import open_tracked
    from agent_checkpoint.agents.upkeep.automatic_retention import WATCH
    from agent_checkpoint.agents.upkeep.disk_budget import BUDGET, parse_size
    from agent_checkpoint.workspace.changes.service import ChangeService

    every = checked_seconds(args.every)
    if args.budget is not None:
        parse_size(args.budget)
    upkeep = UpkeepProcess(**({} if args.budget is None else {BUDGET: args.budget}))
    directory = existing_directory(args.directory, location.directory)
    changes = ChangeService()
    ended = threading.Event()
    saved: list[str] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    options: dict[str, Any] = {"ignore": args.ignore, "gitignore": args.gitignore, "watch": True}
    shown: list[Progress] = []
    options["progress"] = lambda files, size: [show(files, size) for show in shown]
    try:
        with (
            location.manager() as manager,
            open_tracked(
                directory, manager.store, directory_key(manager.store, directory), **options
            ) as workspace,
        ):
            is_first = True
            next_upkeep = 0.0
            while True:
                changes.ensure()
                is_last = ended.is_set()
                try:
                    with ExitStack() as first:
                        if is_first:
                            _tell(args, f"Taking the first snapshot of {one_line(directory)}.")
                            tell = first.enter_context(args.out.progress("Saving"))
                            shown.append(files_read(tell))
                        workspace.snapshot(tags=(WATCH,), full=is_last)
                    shown.clear()
                    written = workspace.written
                    if written is not None:
                        saved.append(written.id)
                        upkeep.saved(manager.store.backend.properties.url or "")
                        _tell(args, f"Saved @{written.seq}")
                except CheckpointError as error:
                    if is_first or is_last:
                        raise
                    # Errors such as a full disk may be temporary; the next save includes all
                    # changes.
                    sys.stderr.write(f"agent-checkpoint: {escape_text(str(error))}\n")
                if is_first:
                    _tell(args, f"Watching {one_line(directory)}. Press Ctrl-C to stop.")
                is_first = False
                if is_last:
                    break
                if time.monotonic() > next_upkeep:
                    upkeep.start()
                    next_upkeep = time.monotonic() + _UPKEEP_EVERY
                ended.wait(every)
            key = workspace.key
    finally:
        changes.close()
        upkeep.interrupt()
        for number, handler in before.items():
            signal.signal(number, handler)
    data = {"key": key, "directory": str(directory), "saved": saved}
    return CommandResult(data, lambda out: None)


def _tell(args: Args, text: str) -> None:
    if not args.json:
        args.out.line(text)
        args.out.flush()
