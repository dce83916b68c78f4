"""What is meant by a tree or a path of a workspace. Owns telling it, also of a checkpoint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import MAX_KEY_BYTES, Checkpoint, show
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.reading import OBJECT
from agent_checkpoint.store.references import ObjectRef
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.snapshots import Tree, read_record, tree_of

if TYPE_CHECKING:
    from agent_checkpoint.workspace.workspace import Workspace

PART = "workspace"
"""The name of the part that the files of a checkpoint are."""


def key_of(place: Path) -> str:
    """Return the key of a directory's own snapshots and safety checkpoints."""
    path = os.fsencode(place)
    key = f"workspace:{path.decode(errors='backslashreplace')}"
    if len(key.encode()) > MAX_KEY_BYTES:
        key = f"workspace:{hashlib.sha256(path).hexdigest()}"
    return key


def tree_in(store: Store, checkpoint: Checkpoint) -> Tree | None:
    """Return the files of a checkpoint; None if it has none.

    Raises:
        IntegrityError: the snapshot is missing or damaged.
        StorageError: the medium failed.
    """
    tag = checkpoint.parts.get(PART)
    if not isinstance(tag, dict) or OBJECT not in tag:
        return None
    return read_record(str(tag[OBJECT]), store.backend)


def tree_named(workspace: Workspace, tree: Any) -> Tree:
    """Return a tree, also that of a checkpoint of the workspace's store.

    Raises:
        InvalidInputError: it is none.
        NotFoundError: there is no such checkpoint.
        IntegrityError: the snapshot is missing or damaged.
        StorageError: the medium failed.
    """
    if isinstance(tree, str):
        found = tree_in(workspace.store, find(workspace.store, tree))
        if found is None:
            raise InvalidInputError(f"The checkpoint {show(tree, 120)} has no workspace.")
        return found
    if not isinstance(tree, (Tree, ObjectRef)):
        raise InvalidInputError(
            "A tree is what snapshot() returned, or the id of a checkpoint with one, not "
            f"{type(tree).__name__}."
        )
    return tree_of(tree)


def within(root: Path, path: str | os.PathLike[str]) -> bytes:
    """Return a path within a workspace as bytes. Raises InvalidInputError."""
    whole = Path(os.path.normpath(root / Path(path)))
    if root not in whole.parents:
        raise InvalidInputError(f"{show(str(path))} is no path within {root}.")
    return os.fsencode(whole.relative_to(root))
