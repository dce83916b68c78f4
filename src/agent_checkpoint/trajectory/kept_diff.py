"""A diff of two checkpoints that can be read after the store is closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.objects.object_format import Object
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import Get
from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff, compare


def kept_diff(store: Store, before: Checkpoint, after: Checkpoint) -> WorkspaceDiff:
    """Return the file changes between two checkpoints, with the contents that their text needs.

    Raises:
        IntegrityError: an object is missing or damaged.
        StorageError: the medium failed.
    """
    old, new = tree_in(store, before), tree_in(store, after)
    kept: dict[str, Object] = {}
    diff = compare(_side(old, new, kept), _side(new, old, kept))
    diff.text()
    return diff


def _side(tree: Tree | None, other: Tree | None, kept: dict[str, Object]) -> Side:
    source = tree or other
    if source is None:
        return Side(None, lambda names: [])
    return Side(None if tree is None else tree.root.ref, _keeping(source.get, kept))


def _keeping(get: Get, kept: dict[str, Object]) -> Get:
    def read(names: Sequence[str]) -> Iterable[Object]:
        missing = [name for name in dict.fromkeys(names) if name not in kept]
        kept.update(zip(missing, get(missing) if missing else ()))
        return [kept[name] for name in names]

    return read
