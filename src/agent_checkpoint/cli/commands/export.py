"""`export`: write a key to an archive, or its conversation as a trajectory, with secrets masked."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_checkpoint.adapters.atif import export_trajectory
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_count, format_size, one_line
from agent_checkpoint.cli.progress_backend import progress_manager
from agent_checkpoint.cli.prompts import confirmed, declined
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.core.codec.redacted_tree import mask_tree
from agent_checkpoint.errors import StorageError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.store.archive.archive_file import ExportReport, export_archive

EXAMPLES = """
agent-checkpoint export fix-bug-42 fix.ckpt        write an archive
agent-checkpoint export fix-bug-42 fix.ckpt --yes  overwrite an existing file
agent-checkpoint export fix-bug-42 fix.ckpt --no-mask   write an exact copy
agent-checkpoint export fix-bug-42 fix.json --format atif   write the conversation as a trajectory
"""


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add("key", "KEY", "the key")
    parser.add("file", "FILE", "the file to write")
    parser.add_argument(
        "--format",
        choices=("archive", "atif"),
        default="archive",
        help="archive: all checkpoints (default); atif: the conversation, as an ATIF trajectory",
    )
    parser.no_mask("write")
    parser.yes()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Write the file."""
    file = Path(location.directory, args.file)
    data: dict[str, Any] = {"key": args.key, "file": str(file), "done": False, "bytes": 0}
    data.update(asdict(ExportReport()))
    with location.manager() as manager:
        key = location.key(manager, args.key)
    exists = f"{one_line(file)} exists."
    if file.exists() and not confirmed(args, lambda out: out.line(exists), "Overwrite?"):
        return declined(data)
    if args.format == "atif":
        return _write_trajectory(args, location, file, key)
    with progress_manager(location, args.out, "Exporting") as manager:
        report = export_archive(manager.store, file, key, None if args.no_mask else mask_tree)
    data.update(done=True, bytes=file.stat().st_size, **asdict(report))

    def show(out: Output) -> None:
        what = f"{format_count(report.checkpoints, 'checkpoint')}, {format_size(data['bytes'])}"
        out.line(f"Wrote {one_line(file)}: {what}.", style="green")
        if report.masked:
            where = format_count(report.masked_checkpoints, "checkpoint")
            if report.masked_records:
                where += f" and {format_count(report.masked_records, 'record')}"
            values = format_count(report.masked, "value")
            out.line(f"Masked {values} in {where}; --no-mask keeps them.", style="yellow")
        if report.files_with_secrets:
            files = format_count(report.files_with_secrets, "file")
            verbs = ("contains", "is") if report.files_with_secrets == 1 else ("contain", "are")
            words = f"{files} {verbs[0]} secrets and {verbs[1]} written unchanged."
            out.line(words, style="yellow")
        # Without --store, because the archive is imported into another store.
        out.line(f"To import: agent-checkpoint import {shell_quote(file.name)}", style="dim")

    return CommandResult(data, show)


def _write_trajectory(args: Args, location: StoreLocation, file: Path, key: str) -> CommandResult:
    with location.manager() as manager:
        trajectory = export_trajectory(manager, key, mask=not args.no_mask)
    text = json.dumps(trajectory, ensure_ascii=False, indent=1)
    try:
        file.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"{one_line(file)} cannot be written ({error.strerror}).") from error
    steps = len(trajectory["steps"])
    data = {"key": key, "file": str(file), "done": True, "bytes": file.stat().st_size}
    words = f"Wrote {one_line(file)}: {format_count(steps, 'step')}."
    return CommandResult({**data, "steps": steps}, lambda out: out.line(words, style="green"))
