"""`log`: the checkpoints of a key, newest first, as a graph with its branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_checkpoint.agents.directory_keys import RESTORED
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.cli.args import Args, Parser
from agent_checkpoint.cli.output import (
    CommandResult,
    Output,
    display_width,
    format_time,
    masked,
    one_line,
)
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.formatting import shell_quote, truncate_to_width
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.fork_points import Fork, find_forks, origin_of
from agent_checkpoint.present.graph_lanes import ASCII, UNICODE, LaneNode, NodeId, draw_lanes
from agent_checkpoint.present.model_usage import model_words
from agent_checkpoint.records import ROLLBACK_KINDS, Kind, parse_checkpoint_id
from agent_checkpoint.session.steps.line import REVERTED

EXAMPLES = """
agent-checkpoint log                    history of the current directory
agent-checkpoint log fix-bug-42 -n 5    last five checkpoints of a session
agent-checkpoint log --all              complete history of every branch
agent-checkpoint log --json | jq -r '.checkpoints[].id'
"""
_SIGNS = {
    Kind.ROLLBACK: "↶<",
    Kind.RESTORE: "↶<",
    Kind.ADOPT: "⇐<",
    Kind.FORK: "⑂Y",
    Kind.SAFETY: "·.",
    Kind.UNREADABLE: "!!",
}
"""The sign of each kind: with and without Unicode."""
_QUIET = (Kind.SAFETY, Kind.OPEN, Kind.CLOSE, Kind.DRIFT, Kind.OUTSIDE, Kind.IN_FLIGHT)
_MOST_LANES = 8
_LONGEST = 120


def arguments(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.optional("key", "KEY", "the key (default: that of the current directory)")
    parser.add("-n", "N", "checkpoints per branch (default: 20)", type=int, default=20)
    parser.flag("--all", "show all checkpoints")
    parser.flag("--no-branches", "do not show forked keys")
    parser.no_mask()
    parser.json()


def run(args: Args, location: StoreLocation) -> CommandResult:
    """List the checkpoints."""
    if args.n < 1:
        raise InvalidInputError("-n must be at least 1; use --all for all checkpoints.")
    with location.manager() as manager:
        key = location.key(manager, args.key)
        limit = None if args.all else args.n
        forks = {} if args.no_branches else find_forks(manager.store)
        origin = origin_of(manager.store, key)
        line = _line(manager, key, limit, forks, {key})
    line["from"] = None if origin is None else f"{origin.key}@{origin.seq}"
    line = masked(args, line)
    return CommandResult(line, lambda out: _show(out, line))


def _line(
    manager: CheckpointManager,
    key: str,
    limit: int | None,
    forks: dict[str, list[Fork]],
    seen: set[str],
) -> dict[str, Any]:
    rows = manager.history(key, None if limit is None else limit + 1)
    has_more = limit is not None and len(rows) > limit
    branches = []
    for at, name in forks.get(key, []):
        if name not in seen:
            seen.add(name)
            below = _line(manager, name, limit, forks, seen)
            branches.append({"at": at, **below})
    return {
        "key": key,
        "head": rows[0]["id"],
        "checkpoints": rows[:limit],
        "more": has_more,
        "branches": branches,
    }


def _show(out: Output, line: dict[str, Any]) -> None:
    lines = list(_lines(line))
    shown = sorted(lines[1:], key=lambda item: item["checkpoints"][0]["ts"] or 0, reverse=True)
    shown = [line, *shown[: _MOST_LANES - 1]]
    rows = {(item["key"], _number(row["id"])): row for item in shown for row in item["checkpoints"]}
    nodes = _nodes(shown, rows, out.has_unicode)
    current = _current(nodes, line["key"])
    head = (line["key"], _number(line["head"]))
    for before, node in draw_lanes(nodes, UNICODE if out.has_unicode else ASCII, main=head):
        if node is None:
            out.pieces((before, "dim"))
        else:
            _show_row(out, before, node, rows[node.place], line["key"], node.place in current)
    _show_rest(out, line, lines, shown)


def _show_rest(
    out: Output, line: dict[str, Any], lines: list[dict[str, Any]], shown: list[dict[str, Any]]
) -> None:
    if line["more"]:
        out.hint("Older checkpoints", f"log {shell_quote(line['key'])} --all")
    if line["from"]:
        out.line(f"Forked from {one_line(line['from'])}.", style="dim")
    hidden = [item for item in lines if item not in shown]
    rows = [f"Also forked at @{item['at']}: {shell_quote(item['key'])}" for item in hidden]
    out.some(rows, out.limit(20), "and {:,} more (use --json)", style="dim")


def _show_row(
    out: Output, before: str, node: LaneNode, row: dict[str, Any], key: str, is_current: bool
) -> None:
    own, number = node.place
    short = out.limit(60)
    name = f"@{number}" if own == key else f"{one_line(own, short)}@{number}"
    quiet = "dim" if row["kind"] in _QUIET or not is_current else ""
    label = row["label"] or row.get("error") or ""
    # The tags of the hook repeat the label; `--json` has them.
    tags = () if HOOK in (row.get("parts") or ()) else row["tags"]
    arrow = "←" if out.has_unicode else "<-"
    mark = (
        f"  {arrow} {'now' if own == key else one_line(own, short)}" if row.get("is_head") else ""
    )
    pieces = [
        (before, "" if is_current else "dim"),
        (f" {name}", "cyan" if is_current else "dim"),
        (f"  {format_time(row['ts'])}", "dim"),
        (one_line(_kind_words(row, own, short)), quiet or "magenta"),
        ("".join(f"  #{one_line(tag, out.limit(40))}" for tag in tags), "yellow"),
        ("".join(f"  {word}" for word in model_words(row.get("metrics") or {})), "dim"),
    ]
    if row.get("redacted"):
        pieces.append((f"  {row['redacted']:,} redacted", "yellow"))
    if label:
        label = f"  {one_line(label, out.limit(_LONGEST))}"
        if out.columns is not None:
            # The label is truncated, so that the head marker stays visible.
            used = sum(display_width(text) for text, _ in pieces) + display_width(mark)
            label = truncate_to_width(label, max(out.columns - used, 0))
        pieces.append((label, quiet))
    out.pieces(*pieces, (mark, "bold green"))


def _kind_words(row: dict[str, Any], own: str, short: int) -> str:
    """Return the kind and the related checkpoint; empty for a save, or if the label has both."""
    kind = row["kind"]
    is_told = kind in ROLLBACK_KINDS and (row["label"] or "").startswith((RESTORED, REVERTED))
    if kind == Kind.SAVE or is_told:
        return ""
    if kind in (*ROLLBACK_KINDS, Kind.FORK) and row["parents"]:
        place = parse_checkpoint_id(row["parents"][-1])
        if place is not None:
            target = (
                f"@{place.seq}" if place.key == own else f"{one_line(place.key, short)}@{place.seq}"
            )
            return f"  {kind} {'of' if kind in (Kind.ADOPT, Kind.FORK) else 'to'} {target}"
    return f"  {kind}"


def _lines(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over a key and all of its branches, breadth first."""
    queue = [line]
    for item in queue:
        yield item
        queue += item["branches"]


def _nodes(
    shown: list[dict[str, Any]], rows: dict[NodeId, dict[str, Any]], rich: bool
) -> list[LaneNode]:
    """Return the nodes to draw, newest first; within a key by number, not by clock."""
    left = [list(reversed(item["checkpoints"])) for item in shown]
    keys = [item["key"] for item in shown]
    for item in shown:
        item["checkpoints"][0]["is_head"] = True
    older = {
        item["key"]: sorted(_number(row["id"]) for row in item["checkpoints"]) for item in shown
    }
    hidden = {item["key"] for item in shown if item["more"]}
    found = []
    while any(left):
        chosen = max(
            (number for number, item in enumerate(left) if item),
            key=lambda number: (left[number][-1]["ts"] or float("inf"), -number),
        )
        row = left[chosen].pop()
        place = (keys[chosen], _number(row["id"]))
        sign = _SIGNS.get(row["kind"], "●*")[0 if rich else 1]
        found.append(LaneNode(place, _parent(place, row, rows, older, hidden), sign))
    return found


def _parent(
    place: NodeId,
    row: dict[str, Any],
    rows: dict[NodeId, Any],
    older: dict[str, list[int]],
    hidden: set[str],
) -> NodeId | None:
    """Return the parent of a checkpoint, or its nearest remaining ancestor."""
    from bisect import bisect_left

    parent = parse_checkpoint_id(row["parents"][0]) if row["parents"] else None
    if parent is not None and (parent.key, parent.seq) in rows:
        return parent.key, parent.seq
    key, before = (parent.key, parent.seq) if parent is not None else place
    if parent is None and row["kind"] != Kind.UNREADABLE:
        return None
    numbers = older.get(key, [])
    at = bisect_left(numbers, before)
    if at == 0 and parent is not None and key in hidden:
        return key, before  # the lane continues below the last row shown
    return (key, numbers[at - 1]) if at > 0 and (key, numbers[at - 1]) != place else None


def _current(nodes: list[LaneNode], key: str) -> set[NodeId]:
    """Return the ancestors of a key's head."""
    parents = {node.place: node.parent for node in nodes}
    heads = [node.place for node in nodes if node.place[0] == key]
    found: set[NodeId] = set()
    place = heads[0] if heads else None
    while place is not None and place not in found:
        found.add(place)
        place = parents.get(place)
    return found


def _number(name: str) -> int:
    place = parse_checkpoint_id(name)
    return int(name.rpartition("@")[2]) if place is None else place.seq
