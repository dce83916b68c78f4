"""`rewind`: rewind the files and the conversation of a coding agent to a tool call."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.directory_keys import gone_notice, keys_of_directory
from agent_checkpoint.agents.rewind.rewind import Rewind, recover_rewind, trusted_note
from agent_checkpoint.agents.session_note import SessionNote, read_note
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import CommandResult, Output, format_time, json_fields, one_line
from agent_checkpoint.cli.paths import RelativePaths
from agent_checkpoint.cli.plan_output import show_plan, show_plan_changes, show_plan_heading
from agent_checkpoint.cli.prompts import confirmed, declined, show_plan_changed
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import UNUSABLE, ConflictError, InvalidInputError, NotFoundError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.rewind_words import (
    LIMITS,
    others_notice,
    resume_command,
    running_agent,
    sessions_since,
)
from agent_checkpoint.records import Checkpoint, Kind
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.lookup import find, short_form
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.plan import PlanChangedError

EXAMPLES = """
agent-checkpoint rewind                  list the tool calls of the session, newest first
agent-checkpoint rewind @17              rewind files and conversation to checkpoint 17
agent-checkpoint rewind @17 --dry-run    show what would change
agent-checkpoint rewind @17 --only files   keep the conversation
"""
_POLL_SECONDS = 0.2


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional(
        "id",
        "ID",
        "the target: @17, @~2, a tool call id or a checkpoint id (default: list tool calls)",
    )
    parser.add("--session", "KEY", "the session (default: the latest in the current directory)")
    parser.add_argument("--only", choices=("files", "conversation"), help="rewind only this")
    parser.flag("--keep-git", "do not change .git")
    parser.flag("--mine", "keep files that others changed, too; not .git")
    running = parser.add_mutually_exclusive_group()
    running.add_argument(
        "--wait", action="store_true", help="wait until the agent has ended the session"
    )
    running.add_argument(
        "--while-running", action="store_true", help="rewind although the agent is running"
    )
    parser.add("-N", "N", "number of rows to list (default: 20)", type=int, default=20)
    parser.previewed("show the plan, change nothing")


def run(args: Args, location: StoreLocation, about: str = "") -> CommandResult:
    """List the tool calls, or rewind to one; the line `about` is above the plan."""
    if args.N < 1:
        raise InvalidInputError("-N must be at least 1.")
    with location.manager() as manager:
        key = _session_key(args, location, manager)
        finished = recover_rewind(manager.store, key)
        notices = [text for text in (about, finished) if text]
        if args.id is None:
            return _list(manager, key, args.N, finished)
        target = _target(args.id, location, manager, key)
        here = location.directory
        note = trusted_note(manager.store, target, (here, *here.parents))
        rewind = Rewind(
            manager.store,
            target,
            note,
            files=args.only != "conversation",
            conversation=args.only != "files",
            exclude=(".git",) if args.keep_git else (),
            mine=args.mine,
        )
        notices += _other_sessions(manager.store, rewind, target, is_mine=args.mine)
        with rewind:
            notices += _check_ended(args, key, rewind)
            paths = RelativePaths(Path(note.root), location.directory)
            question = f"Rewind {one_line(rewind.directory)} to @{target.seq}?"
            is_done = False
            while not is_done:
                rewind.preview()
                plan, data = rewind.plan, _data(rewind, target, finished, done=False)
                preview = CommandResult(data, lambda out: _preview(out, rewind, paths, notices))
                if args.dry_run:
                    return preview
                if not confirmed(args, preview.show, question):
                    return declined(data)
                if not args.yes:
                    _check_ended(args, key, rewind)  # it may have been started meanwhile
                try:
                    rewind.run(None if args.yes else plan, as_previewed=not args.yes)
                    is_done = True
                except PlanChangedError as error:
                    show_plan_changed(args, error)

    def tell(out: Output) -> None:
        if args.yes:
            _preview(out, rewind, paths, notices)
        else:
            show_plan_changes(out, plan, rewind.plan, paths)
        out.line(f"Rewound to @{target.seq}: {one_line(target.label)}", style="green")
        if rewind.previous_transcript is not None:
            out.line(
                f"The previous transcript is kept as {one_line(rewind.previous_transcript)}; an "
                "agent that is still running keeps writing to it."
            )
        out.hint("To undo", f"rewind {shell_quote(str(rewind.safety_id))}", style="")
        _show_limits(out, note, starts_anew=rewind.starts_anew)

    return CommandResult(_data(rewind, target, finished, done=True), tell)


def _check_ended(args: Args, key: str, rewind: Rewind) -> list[str]:
    """Return a notice if the agent is running; wait for its end if asked.

    Raises ConflictError if it is running, and would get another conversation.
    """
    found = running_agent(key, changes_conversation=rewind.changes_conversation)
    if found is not None and args.wait and not args.dry_run:
        print(f"Waiting: {found.who}.", file=sys.stderr)
        while found is not None:
            time.sleep(_POLL_SECONDS)
            found = running_agent(key, changes_conversation=rewind.changes_conversation)
    if found is None:
        return []
    if not found.is_blocking or args.dry_run or args.while_running:
        return [found.words]
    raise ConflictError(
        f"{found.words} Nothing was changed. {found.how_to_end}, or use `--wait` to rewind when it "
        "has ended, `--while-running` to rewind now, or `--only files`."
    )


def _other_sessions(
    store: Store, rewind: Rewind, target: Checkpoint, *, is_mine: bool
) -> list[str]:
    """Return a notice about other sessions whose changes the rewind reverts too."""
    if not rewind.changes_files or is_mine:
        return []
    names = sessions_since(store, rewind, target)
    return [f"{others_notice(names)} `--mine` keeps them."] if names else []


def _session_key(args: Args, location: StoreLocation, manager: CheckpointManager) -> str:
    """Return the key of the given checkpoint, or that of the session of the directory."""
    name: str | None = args.id
    if name is not None and short_form(name) is None:
        with suppress(NotFoundError):
            return find(manager.store, name).key
    return _key(args, location, manager)


def _key(args: Args, location: StoreLocation, manager: CheckpointManager) -> str:
    if args.session is not None:
        return location.key(manager, args.session)
    for place in (location.directory, *location.directory.parents):
        for key in keys_of_directory(manager.store, place):
            head = manager.store.head(key)
            note = None if head is None else read_note(manager.store, head)
            if note is not None and note.agent in AGENTS:
                return key
    raise NotFoundError(
        f"No checkpoints of a coding agent in {one_line(location.directory)}. Run "
        "`agent-checkpoint hook status` to check that the hook is installed."
        f"{gone_notice(manager.store)}"
    )


def _target(name: str, location: StoreLocation, manager: CheckpointManager, key: str) -> Checkpoint:
    try:
        return location.checkpoint(manager, name, key)
    except NotFoundError:
        for checkpoint, note in _rows(manager, key):
            if any(call.id == name for call in note.calls) and not note.event.startswith("Pre"):
                return checkpoint
        raise


def _rows(manager: CheckpointManager, key: str) -> Iterator[tuple[Checkpoint, SessionNote]]:
    for entry in manager.store.entries(key):
        try:
            checkpoint = read_checkpoint(key, entry.seq, entry.data)
            note = read_note(manager.store, checkpoint)
        except UNUSABLE:
            continue  # `verify` reports it
        if note is not None:
            yield checkpoint, note


def _list(manager: CheckpointManager, key: str, limit: int, finished: str | None) -> CommandResult:
    rows: list[dict[str, Any]] = []
    for checkpoint, note in _rows(manager, key):
        if len(rows) >= limit:
            break
        lines = None if note.transcript is None else note.transcript["lines"]
        rows.append(
            {
                "id": checkpoint.id,
                "seq": checkpoint.seq,
                "ts": checkpoint.ts_ns / 1e9,
                "kind": checkpoint.kind,
                "label": checkpoint.label,
                "event": note.event,
                "tool_use_ids": [call.id for call in note.calls if call.id],
                "lines": lines,
            }
        )

    def tell(out: Output) -> None:
        _show_notices(out, [finished] if finished else [])
        out.line(one_line(key), style="bold")
        cells = []
        for row in rows:
            kind = "" if row["kind"] == Kind.SAVE else f"{row['kind']} "
            what = f"{kind}{row['label'] or ''}"
            cells.append([f"@{row['seq']}", format_time(row["ts"]), what, row["lines"]])
        out.table(["", "when", "what", "lines"], cells)
        if any(row["lines"] is not None for row in rows):
            out.line("lines: length of the transcript", style="dim")
        out.hint("To rewind", "rewind @N")

    return CommandResult({"key": key, "checkpoints": rows, "finished": finished}, tell)


def _preview(out: Output, rewind: Rewind, paths: RelativePaths, notices: list[str]) -> None:
    _show_notices(out, notices)
    plan = rewind.plan
    if plan is not None and (plan or plan.leave):
        show_plan_heading(out, plan, rewind.directory)
        show_plan(out, plan, paths)
    elif rewind.transcript_change is None:
        out.line("Nothing to do: files and conversation match the checkpoint.")
    for path, why in rewind.not_mine.items():
        out.line(f"  keep {one_line(paths.display(path))}: {why}", style="dim")
    if rewind.transcript_change is not None:
        out.line(f"  {one_line(rewind.transcript_change)}", style="yellow")
    if rewind.warning is not None:
        out.line(rewind.warning, style="yellow")
    if rewind.transcript_missing is not None:
        why = one_line(rewind.transcript_missing)
        out.line(f"The checkpoint has no conversation, so it is not rewound: {why}", style="yellow")


def _show_notices(out: Output, notices: list[str]) -> None:
    for notice in notices:
        out.line(one_line(notice), style="yellow")


def _show_limits(out: Output, note: SessionNote, *, starts_anew: bool) -> None:
    out.line(LIMITS, style="dim")
    command = resume_command(note, starts_anew=starts_anew)
    if command is not None:
        out.line(f"  {command}", style="dim")


def _data(
    rewind: Rewind, target: Checkpoint, finished: str | None, *, done: bool
) -> dict[str, Any]:
    nothing: dict[str, Any] = {"write": [], "delete": [], "mode": [], "leave": {}}
    nothing.update(kept={}, open=[])
    return {
        "id": target.id,
        "directory": rewind.directory,
        "done": done,
        **(nothing if rewind.plan is None else json_fields(rewind.plan, " ".join(nothing))),
        "transcript": rewind.transcript_change,
        "transcript_missing": rewind.transcript_missing,
        "transcript_before": rewind.previous_transcript,
        "not_mine": rewind.not_mine,
        "warning": rewind.warning,
        "starts_anew": rewind.starts_anew,
        "safety_id": rewind.safety_id,
        "finished": finished,
    }
