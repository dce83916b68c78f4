"""`rewind`: rewind the files and conversation of a coding agent to a tool call, together."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.directory_keys import keys_of
from agent_checkpoint.agents.rewind.rewind import Rewinding, make_good
from agent_checkpoint.agents.session_note import Note, read_note
from agent_checkpoint.cli.output import Answer, Out, format_time, one_line
from agent_checkpoint.cli.paths import Paths
from agent_checkpoint.cli.plan_output import show_plan, show_since
from agent_checkpoint.cli.prompts import add_json, add_yes, again, agreed, refused
from agent_checkpoint.cli.store_location import Places, short_form
from agent_checkpoint.errors import UNUSABLE, InvalidInputError, NotFoundError
from agent_checkpoint.formatting import shell_quote
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.lookup import find
from agent_checkpoint.workspace.restore.plan import PlanChangedError

EXAMPLES = """
agent-checkpoint rewind                  list the tool calls of the session, newest first
agent-checkpoint rewind @17              rewind files and conversation to checkpoint 17
agent-checkpoint rewind @17 --dry-run    show what would change
agent-checkpoint rewind @17 --only files   keep the conversation
"""
_RESUME = {
    "claude-code": "claude --resume {}",
    "codex": "codex resume {}",
    "gemini": "gemini --resume {}",
}


def arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "id",
        nargs="?",
        metavar="ID",
        help="the target: @17, @~2, a tool call id or a checkpoint id (default: list tool calls)",
    )
    parser.add_argument(
        "--session",
        metavar="KEY",
        help="the session (default: the latest in the current directory)",
    )
    parser.add_argument("--only", choices=("files", "conversation"), help="rewind only this")
    parser.add_argument("--keep-git", action="store_true", help="do not change .git")
    parser.add_argument(
        "-N", type=int, default=20, metavar="N", help="number of rows to list (default: 20)"
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show the plan, change nothing"
    )
    add_yes(parser)
    add_json(parser, needs_yes=True)


def run(args: Namespace, places: Places) -> Answer:
    """List the tool calls, or rewind to one."""
    if args.N < 1:
        raise InvalidInputError("-N must be at least 1.")
    with places.manager() as manager:
        key = _key_meant(args, places, manager)
        finished = make_good(manager.store, key)
        if args.id is None:
            return _list(manager, key, args.N, finished)
        target = _target(args.id, places, manager, key)
        note = read_note(manager.store, target)
        if note is None:
            raise InvalidInputError(
                f"{short_repr(target.id, 120)} is not a checkpoint of a coding agent. Use "
                "`restore`."
            )
        if not note.is_ours:
            raise InvalidInputError(
                f"{short_repr(target.id, 120)} was imported or is not sealed with your secret: its "
                "paths "
                "are not trusted. Use `restore --into DIR` to write its files to another directory."
            )
        work = Rewinding(
            manager.store,
            target,
            note,
            files=args.only != "conversation",
            conversation=args.only != "files",
            exclude=(".git",) if args.keep_git else (),
        )
        with work:
            paths = Paths(Path(note.root), places.directory)
            question = f"Rewind {one_line(work.directory)} to @{target.seq}?"
            is_done = False
            while not is_done:
                work.preview()
                plan, data = work.plan, _data(work, target, finished, done=False)
                preview = Answer(data, lambda out: _preview(out, work, paths, finished))
                if args.dry_run:
                    return preview
                if not agreed(args, preview.show, question):
                    return refused(data)
                try:
                    work.run(None if args.yes else plan)
                    is_done = True
                except PlanChangedError as error:
                    again(args, error)

    def tell(out: Out) -> None:
        if args.yes:
            _preview(out, work, paths, finished)
        else:
            show_since(out, plan, work.plan, paths)
        out.line(f"Rewound to @{target.seq}: {one_line(target.label)}", style="green")
        if work.kept is not None:
            out.line(
                f"The previous transcript is kept as {one_line(work.kept)}; an agent that is still "
                "running keeps writing to it."
            )
        out.hint("To undo", f"rewind {shell_quote(str(work.safety_id))}", style="")
        _tell_limits(out, note)

    return Answer(_data(work, target, finished, done=True), tell)


def _key_meant(args: Namespace, places: Places, manager: CheckpointManager) -> str:
    """Return the key of the named checkpoint, else that of the session of the directory."""
    said: str | None = args.id
    if said is not None and short_form(said) is None:
        with suppress(NotFoundError):
            return find(manager.store, said).key
    return _key(args, places, manager)


def _key(args: Namespace, places: Places, manager: CheckpointManager) -> str:
    if args.session is not None:
        return places.key(manager, args.session)
    for place in (places.directory, *places.directory.parents):
        for key in keys_of(manager.store, place):
            head = manager.store.head(key)
            note = None if head is None else read_note(manager.store, head)
            if note is not None and note.agent in AGENTS:
                return key
    raise NotFoundError(
        f"No checkpoints of a coding agent in {one_line(places.directory)}. Run "
        "`agent-checkpoint hook status` to check that the hook is installed."
    )


def _target(said: str, places: Places, manager: CheckpointManager, key: str) -> Checkpoint:
    short = short_form(said)
    if short is not None:
        return find(manager.store, key + short, key=key)
    try:
        return places.checkpoint(manager, said)
    except NotFoundError:
        for checkpoint, note in _rows(manager, key):
            if any(call.id == said for call in note.calls) and not note.event.startswith("Pre"):
                return checkpoint
        raise


def _rows(manager: CheckpointManager, key: str) -> Iterator[tuple[Checkpoint, Note]]:
    for entry in manager.store.entries(key):
        try:
            checkpoint = read_checkpoint(key, entry.seq, entry.data)
            note = read_note(manager.store, checkpoint)
        except UNUSABLE:
            continue  # `verify` reports it
        if note is not None:
            yield checkpoint, note


def _list(manager: CheckpointManager, key: str, limit: int, finished: str | None) -> Answer:
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

    def tell(out: Out) -> None:
        _tell_finished(out, finished)
        out.line(one_line(key), style="bold")
        out.table(
            ["", "when", "what", "lines"],
            (
                [
                    f"@{row['seq']}",
                    format_time(row["ts"]),
                    f"{'' if row['kind'] == 'save' else row['kind'] + ' '}{row['label'] or ''}",
                    row["lines"],
                ]
                for row in rows
            ),
        )
        if any(row["lines"] is not None for row in rows):
            out.line("lines: length of the transcript", style="dim")
        out.hint("To rewind", "rewind @N")

    return Answer({"key": key, "checkpoints": rows, "finished": finished}, tell)


def _preview(out: Out, work: Rewinding, paths: Paths, finished: str | None) -> None:
    _tell_finished(out, finished)
    plan = work.plan
    if plan is not None and (plan or plan.leave):
        out.line(f"In {one_line(work.directory)}:")
        show_plan(out, plan, paths)
    elif work.words is None:
        out.line("Nothing to do: files and conversation match the checkpoint.")
    if work.words is not None:
        out.line(f"  {one_line(work.words)}", style="yellow")
    if work.missing is not None:
        why = one_line(work.missing)
        out.line(f"The checkpoint has no conversation; it is not rewound: {why}", style="yellow")


def _tell_finished(out: Out, finished: str | None) -> None:
    if finished is not None:
        out.line(one_line(finished), style="yellow")


def _tell_limits(out: Out, note: Note) -> None:
    out.line(
        "Effects outside of the directory are not undone. A running agent keeps its conversation "
        "in memory: exit it, then resume the session.",
        style="dim",
    )
    if note.agent in _RESUME:
        out.line(f"  {_RESUME[note.agent].format(shell_quote(note.session))}", style="dim")


def _data(
    work: Rewinding, target: Checkpoint, finished: str | None, *, done: bool
) -> dict[str, Any]:
    plan = work.plan
    return {
        "id": target.id,
        "directory": work.directory,
        "done": done,
        "write": [] if plan is None else plan.write,
        "delete": [] if plan is None else plan.delete,
        "mode": [] if plan is None else plan.mode,
        "leave": {} if plan is None else plan.leave,
        "kept": {} if plan is None else plan.kept,
        "open": [] if plan is None else plan.open,
        "transcript": work.words,
        "transcript_missing": work.missing,
        "transcript_before": None if work.kept is None else str(Path(work.kept)),
        "safety_id": work.safety_id,
        "finished": finished,
    }
