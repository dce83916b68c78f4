"""`log`: what was saved, newest first, as a tree of branches."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any

from agent_checkpoint.cli.out import Answer, Out, when
from agent_checkpoint.cli.places import Places
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import parse_checkpoint_id

EXAMPLES = """
agent-checkpoint log                  of this directory
agent-checkpoint log fix-bug-42 -n 5  the last five of a session
agent-checkpoint log --all            every branch to its beginning
"""
_SIGNS = {"rollback": "↶", "restore": "↶", "adopt": "⇐", "fork": "⑂", "safety": "·"}


def arguments(parser: ArgumentParser) -> None:
    """Add what it takes."""
    parser.add_argument("key", nargs="?", metavar="KEY", help="of which; this directory's if none")
    parser.add_argument("-n", type=int, default=20, metavar="N", help="how many of each (20)")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: Namespace, places: Places) -> Answer:
    """List them."""
    with places.manager() as manager:
        key = places.key(manager, args.key)
        limit = None if args.all else max(args.n, 1)
        line = _line(manager, key, limit, _forks(manager), {key})
    return Answer(line, lambda out: _show(out, line, ""))


def _line(
    manager: CheckpointManager,
    key: str,
    limit: int | None,
    forks: dict[str, list[tuple[int, str]]],
    seen: set[str],
) -> dict[str, Any]:
    rows = manager.history(key, limit)
    branches = []
    for seq, name in forks.get(key, []):
        if name not in seen:
            seen.add(name)
            branches.append({"at": seq, **_line(manager, name, limit, forks, seen)})
    return {"key": key, "checkpoints": rows, "branches": branches}


def _forks(manager: CheckpointManager) -> dict[str, list[tuple[int, str]]]:
    """Return the keys that begin as forks, by the key that they come from, and where there."""
    found: dict[str, list[tuple[int, str]]] = {}
    for key in manager.list_keys():
        for entry in islice(_oldest(manager, key), 1):
            place = parse_checkpoint_id(entry["parents"][0]) if entry.get("parents") else None
            if entry.get("kind") == "fork" and place is not None and place.key != key:
                found.setdefault(place.key, []).append((place.seq, key))
    return found


def _oldest(manager: CheckpointManager, key: str) -> Iterator[dict[str, Any]]:
    rows = manager.history(key)
    yield from reversed(rows)


def _show(out: Out, line: dict[str, Any], indent: str) -> None:
    out.line(f"{indent}{line['key']}", style="bold")
    branches = sorted(line["branches"], key=lambda branch: -branch["at"])
    for row in line["checkpoints"]:
        place = parse_checkpoint_id(row["id"])
        seq = 0 if place is None else place.seq
        while branches and branches[0]["at"] >= seq:
            _show(out, branches.pop(0), f"{indent}│ ")
        sign = _SIGNS.get(row["kind"], "●")
        label = f"  {row['label']}" if row.get("label") else ""
        kind = "" if row["kind"] == "save" else f"  {row['kind']}"
        style = "dim" if row["kind"] in ("safety", "open", "close") else ""
        out.line(f"{indent}{sign} @{seq}  {when(row['ts'])}{kind}{label}", style=style)
    for branch in branches:
        _show(out, branch, f"{indent}│ ")
