"""Lists the sub-agents of a checkpoint, without opening its session."""

from __future__ import annotations

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.agent_scope import STATUS, split_part
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.store import Store


class SubagentRow(NamedTuple):
    """One sub-agent in a list."""

    path: str
    """The names of the sub-agents around it and its own, such as `researcher/reader`."""
    status: str
    parts: dict[str, str]
    """The names of its parts in the checkpoint, by their names in the sub-agent."""


def list_subagents(store: Store, checkpoint: Checkpoint) -> list[SubagentRow]:
    """Return the sub-agents of a checkpoint, each followed by its own sub-agents.

    Raises:
        IntegrityError: a part is missing or damaged.
        StorageError: the medium failed.
    """
    found: dict[str, dict[str, str]] = {}
    for name in checkpoint.parts:
        path, kind = split_part(name)
        if path:
            found.setdefault(path, {})[kind] = name
    return [
        SubagentRow(path, _status(store, checkpoint, found[path].get(STATUS)), found[path])
        for path in sorted(found, key=lambda path: path.split("/"))
    ]


def _status(store: Store, checkpoint: Checkpoint, name: str | None) -> str:
    fields = checkpoint.parts.get(name or "")
    if not isinstance(fields, dict) or "status" not in fields:  # stored out of line
        reader = store.reader(checkpoint)
        reader.fetch([fields])
        fields = resolve_tree(fields, reader)
    word = fields.get("status") if isinstance(fields, dict) else None
    return word if isinstance(word, str) else ""
