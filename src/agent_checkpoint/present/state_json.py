"""Reads and compares stored states as JSON. Does not need the classes of the agent.

States are not decoded into objects, so no stored code can run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_checkpoint.core.state_diff import diff_states
from agent_checkpoint.records import Changes, ChangeTable, Checkpoint
from agent_checkpoint.session.agent_scope import split_part
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.lookup import retry_if_pruned
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES

LOGS = ("messages", "calls", "model_calls")
"""Append-only parts; compared from the first differing item on."""


def logs_in(*checkpoints: Iterable[str]) -> list[str]:
    """Return the names of the logs among parts: of the session first, then of sub-agents."""
    names = dict.fromkeys([*LOGS, *(name for parts in checkpoints for name in parts)])
    return [
        name
        for name in names
        if split_part(name)[1] in LOGS and any(name in parts for parts in checkpoints)
    ]


def read_parts(store: Store, checkpoint: Checkpoint, names: Any = None) -> dict[str, Any]:
    """Return parts of a checkpoint as JSON; all parts if no names are given.

    Raises:
        IntegrityError: a part is missing or damaged.
        StorageError: the medium failed.
    """

    def read(found: Checkpoint) -> dict[str, Any]:
        chosen = {
            name: tree for name, tree in found.parts.items() if names is None or name in names
        }
        reader = store.reader(found)
        reader.fetch(chosen.values())
        return {name: resolve_tree(tree, reader) for name, tree in chosen.items()}

    return retry_if_pruned(store, lambda: [checkpoint], read)


def plain(tree: Any) -> Any:
    """Return a state without the tags of objects, logs and tuples, classes and versions."""
    if isinstance(tree, list):
        return [plain(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, inner),) = tree.items()
        if tag in ("$log", "$tuple") and isinstance(inner, list):
            return [plain(item) for item in inner]
        if tag == "$state" and isinstance(inner, dict):
            return {name: plain(item) for name, item in inner.items() if name not in _NAMES}
    return {name: plain(item) for name, item in tree.items()}


_NAMES = ("__class__", "__version__")


def class_name_in(tree: Any) -> str | None:
    """Return the class name recorded in a state."""
    inner = tree.get("$state", tree) if isinstance(tree, dict) else None
    name = inner.get("__class__") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else None


def compare_states(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """Return the changes of all parts but files and logs, by path."""
    changes = ChangeTable()
    skipped = {FILES, SESSION_PART, *logs_in(before, after)}
    for name in dict.fromkeys([*before, *after]):
        if name in skipped:
            continue
        if name not in before:
            changes["added"][name] = plain(after[name])
        elif name not in after:
            changes["removed"][name] = plain(before[name])
        else:
            found = diff_states(
                _by_task(plain(before[name])), _by_task(plain(after[name])), deep=True
            )
            for how, rows in found.items():
                changes[how].update({_below(name, at): value for at, value in rows.items()})
    return changes


def _by_task(state: Any) -> Any:
    """Return the tasks of a session by id; any other state unchanged."""
    rows = state.get("tasks") if isinstance(state, dict) and len(state) == 1 else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "id" in row for row in rows):
        return state
    kept = ("status", "attempt", "note", "result")
    return {str(row["id"]): {name: row.get(name) for name in kept} for row in rows}


def compare_logs(before: Any, after: Any) -> dict[str, list[Any]]:
    """Return the removed and added items of two logs, from the first difference on."""
    old, new = plain(before), plain(after)
    old, new = old if isinstance(old, list) else [], new if isinstance(new, list) else []
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return {"removed": old[same:], "added": new[same:]}


def _below(part: str, path: str) -> str:
    if not path:
        return part
    return part + path if path.startswith("[") else f"{part}.{path}"
