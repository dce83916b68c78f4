"""`show`: the contents of a checkpoint, read without the code of the agent."""

from __future__ import annotations

import os
from typing import Any

from agent_checkpoint.agents.directory_keys import directory_of_files
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    format_count,
    format_size,
    format_time,
    json_fields,
    masked,
    one_line,
)
from agent_checkpoint.cli.paths import RelativePaths, files_of, holds
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.formatting import json_text, value_summary
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.message_line import message_line
from agent_checkpoint.present.model_usage import model_words, other_metrics, usage_totals
from agent_checkpoint.present.state_json import LOGS, class_name_in, plain, read_parts
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.records import short_repr as quoted_name
from agent_checkpoint.session.agent_scope import (
    MODEL_CALLS,
    OPEN_CALLS,
    STATUS,
    TASKS,
    split_part,
)
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER, LINK, Item
from agent_checkpoint.workspace.tree.tree_reader import find, pieces, walk

EXAMPLES = """
agent-checkpoint show                      latest checkpoint of the current directory
agent-checkpoint show fix-bug-42~1         second to last checkpoint of a session
agent-checkpoint show fix-bug-42 --part messages   one part in full
agent-checkpoint show @3 --json            print JSON
agent-checkpoint show @3 --files           list the files in the checkpoint
agent-checkpoint show @3 src/app.py > app.py   print one file
"""
_LAST = 3
_FILES_SHOWN = 200
_PROBE = 8000
_TYPES = {FOLDER: "directory", LINK: "link"}


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("id", "ID", "the checkpoint (default: the latest of the current directory)")
    parser.optional("path", "PATH", "print this file, or list this directory")
    parser.flag("--files", "list the files")
    parser.add("--part", "NAME", "print one part as JSON")
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """Read the checkpoint."""
    with location.manager() as manager:
        checkpoint = location.checkpoint(manager, args.id)
        if args.files or args.path is not None:
            if args.part is not None:
                raise InvalidInputError("--part and a file path cannot be combined.")
            return _files(args, location, manager.store, checkpoint)
        if args.part is not None:
            return _part(args, manager, checkpoint)
        parts = read_parts(manager.store, checkpoint)
        rows = [plain(tree) for name, tree in parts.items() if split_part(name)[1] == MODEL_CALLS]
        totals = usage_totals(row for log in rows if isinstance(log, list) for row in log)
        data = {
            **checkpoint.summary(),
            **json_fields(checkpoint, "key seq"),
            "bytes": checkpoint.size,
            "totals": totals,
            "parts": {
                name: _summary(manager, checkpoint, name, tree) for name, tree in parts.items()
            },
        }
    shown = masked(args, data)
    return CommandResult(shown, lambda out: _show(out, shown))


def _part(args: Args, manager: CheckpointManager, checkpoint: Checkpoint) -> CommandResult:
    name = args.part
    if name not in checkpoint.parts:
        raise NotFoundError(
            f"The checkpoint {quoted_name(checkpoint.id, 120)} has no part {quoted_name(name)}; it "
            f"has {', '.join(map(quoted_name, checkpoint.parts))}."
        )
    tree = read_parts(manager.store, checkpoint, [name])[name]
    text = json_text(masked(args, plain(tree)))
    return CommandResult(masked(args, tree), lambda out: out.line(text))


def _summary(
    manager: CheckpointManager, checkpoint: Checkpoint, name: str, tree: Any
) -> dict[str, Any]:
    """Return the summary of a part."""
    if name == FILES:
        found = tree_in(manager.store, checkpoint)
        if found is not None:
            notes = [note._asdict() for note in found.notes]
            data = json_fields(found, "files bytes incomplete")
            return {"type": "files", "tree": found.id, **data, "notes": notes}
    state, (path, kind) = plain(tree), split_part(name)
    if kind in LOGS and isinstance(state, list):
        return {"type": "log", "items": len(state), "last": state[-_LAST:]}
    if path and kind == STATUS and isinstance(state, dict):
        return {"type": "subagent", **state}
    if kind == TASKS and isinstance(state, dict) and isinstance(state.get("tasks"), list):
        rows = [row for row in state["tasks"] if isinstance(row, dict)]
        return {"type": "tasks", "tasks": {str(row.get("id")): row.get("status") for row in rows}}
    if name == SESSION_PART and isinstance(state, dict):
        kept = ("key", "family", "workspace", "point", "pending", "standing", "gone")
        return {"type": "session", **{item: state[item] for item in kept if item in state}}
    return {"type": "state", "class": class_name_in(tree), "value": state}


def _show(out: Output, data: dict[str, Any]) -> None:
    label = f"  {one_line(data['label'], out.limit(200))}" if data["label"] else ""
    out.line(
        f"{one_line(data['key'])}@{data['seq']}  {one_line(data['kind'], 40)}{label}", style="bold"
    )
    rows = [("id", one_line(data["id"])), ("when", format_time(data["ts"]))]
    rows += [("from", one_line(parent)) for parent in data["parents"]]
    if data["tags"]:
        rows.append(("tags", ", ".join(one_line(tag, out.limit(80)) for tag in data["tags"])))
    calls = model_words(data["metrics"])
    if calls:
        rows.append(("model", ", ".join(calls)))
    metrics = [
        f"{one_line(name, out.limit(80))}={value:g}"
        for name, value in other_metrics(data["metrics"]).items()
    ]
    if metrics:
        rows.append(("metrics", ", ".join(metrics)))
    totals = model_words(data["totals"])
    if totals:
        number = format_count(int(data["totals"]["model_calls"]), "model call")
        rows.append(("total", ", ".join([number, *totals])))
    if data.get("redacted"):
        rows.append(("redacted", format_count(data["redacted"], "value")))
    for name, text in rows:
        out.line(f"  {name:8} {text}")
    out.line()
    by_agent: dict[str, dict[str, Any]] = {"": {}}
    for name, part in data["parts"].items():
        path, kind = split_part(name)
        by_agent.setdefault(path, {})[kind] = part
    for path in sorted(by_agent, key=lambda path: path.split("/")):
        parts, indent = by_agent[path], "  " * (path.count("/") + bool(path))
        if path:
            status = parts.pop(STATUS, {}).get("status")
            words = f"{one_line(path, out.limit(60))}  {one_line(str(status or ''), 20)}"
            out.line(f"{indent[2:]}{words}", style="bold")
        for name, part in parts.items():
            if name != OPEN_CALLS or part.get("value"):  # nothing is left of ended calls
                _show_part(out, indent, one_line(name, out.limit(60)), part)


def _show_part(out: Output, indent: str, name: str, part: dict[str, Any]) -> None:
    room = out.limit(max((out.columns or 0) - 30, 40))
    short, some = out.limit(60), out.limit(5)
    kind = part["type"]
    lines: list[str] = []
    if kind == "files":
        words = f"{format_count(part['files'], 'file')}, {format_size(part['bytes'])}"
        words += ", incomplete" if part["incomplete"] else ""
        notes = [
            f"{one_line(note['path'], short)}: {one_line(note['kind'])}"
            + (f" ({one_line(note['text'], short)})" if note["text"] else "")
            for note in part["notes"]
        ]
        lines = notes[:some]
        if len(notes) > len(lines):
            lines.append(f"and {len(notes) - len(lines):,} more (use --json)")
    elif kind == "log":
        words = format_count(part["items"], "item")
        lines = [message_line(item, room, out.limit) for item in part["last"]]
    elif kind == "tasks":
        done = [status for status in part["tasks"].values() if status in ("completed", "skipped")]
        words = f"{len(done)} of {len(part['tasks'])} done"
        left = [
            f"{one_line(name, short)}: {one_line(status, 20)}"
            for name, status in part["tasks"].items()
            if status not in ("completed", "skipped")
        ]
        lines = left[:some]
    elif kind == "session":
        words = one_line(part.get("workspace") or "no directory", out.limit(200))
        waiting = part.get("pending") or []
        lines = [f"waits for {one_line(item, short)}" for item in waiting[:some]]
    elif name == OPEN_CALLS and isinstance(part.get("value"), dict):
        calls = part["value"].get("calls")
        rows = calls if isinstance(calls, list) else []
        rows = [row for row in rows if isinstance(row, list) and len(row) == 3]
        words = f"{format_count(len(rows), 'tool call')} without results"
        lines = [one_line(str(row[1]), short) for row in rows[:some]]
    else:
        words = one_line(part["class"] or "plain data", out.limit(80))
        value = part["value"]
        shown = out.limit(10)
        fields = list(value.items())[:shown] if isinstance(value, dict) else [("", value)]
        lines = [
            f"{one_line(key, short)}{': ' if key else ''}{value_summary(item, room)}"
            for key, item in fields
        ]
        if isinstance(value, dict) and len(value) > shown:
            lines.append(f"and {len(value) - shown:,} more (use --part)")
    out.line(f"{indent}{name:10} {words}", style="cyan")
    for line in lines:
        out.pieces((f"{indent}    {line}", ""))


def _files(
    args: Args, location: StoreLocation, store: Store, checkpoint: Checkpoint
) -> CommandResult:
    """Return the list of a checkpoint's files, or print the contents of one file."""
    tree = files_of(store, checkpoint)
    paths = RelativePaths(
        directory_of_files(store, checkpoint, location.directory), location.directory
    )
    chosen = None if args.path is None else paths.resolve([args.path])
    path = "" if chosen is None else chosen[0]
    if not holds(tree, path):
        raise paths.not_found(args.path, path, tree, checkpoint)
    item = find(tree, path)
    if item is None or item.type == FOLDER or args.files or args.json:
        return _list(tree, path, paths)
    return _content(tree, item, args.path, args.out)


def _list(tree: Tree, path: str, paths: RelativePaths) -> CommandResult:
    rows = [_file_row(place, item) for place, item in walk(tree, path)]
    files = [row for row in rows if row["type"] != "directory"]

    def tell(out: Output) -> None:
        shown = out.limit(_FILES_SHOWN)
        wide = max((len(str(row["size"])) for row in files[:shown]), default=0)
        for row in files[:shown]:
            link = f" -> {one_line(row['target'])}" if row["type"] == "link" else ""
            name = one_line(paths.display(row["path"]))
            out.line(f"{row['mode']}  {row['size']:>{wide}}  {name}{link}")
        if len(files) > shown:
            left = format_count(len(files) - shown, "file")
            out.line(f"and {left} more (pipe to less to see all)", style="dim")

    return CommandResult(rows, tell)


def _file_row(path: str, item: Item) -> dict[str, Any]:
    return {
        "path": path,
        "type": _TYPES.get(item.type, "file"),
        "mode": f"{item.mode:03o}",
        "size": item.size,
        "id": item.id or None,
        "target": os.fsdecode(item.target) if item.type == LINK else None,
    }


def _content(tree: Tree, item: Item, typed: str, out: Output) -> CommandResult:
    if item.type == LINK:
        target = os.fsdecode(item.target)
        return CommandResult(target, lambda out: out.line(one_line(target)))
    data = pieces(tree.get, item)
    if out.is_terminal:
        begin = next(data, b"")
        if b"\0" in begin[:_PROBE]:
            raise InvalidInputError(
                f"{quoted_name(typed, 200)} is a binary file ({format_size(item.size)}). "
                "Redirect the output to a file: > FILE"
            )
        text = b"".join([begin, *data]).decode("utf-8", "replace")
        return CommandResult(None, lambda out: out.line(text.removesuffix("\n")))
    out.write(data)  # streamed while the store is open, because a file may not fit in memory
    return CommandResult(None, lambda out: None)
