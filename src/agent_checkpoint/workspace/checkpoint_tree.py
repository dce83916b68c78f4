"""Finds the tree in a checkpoint, and paths in it."""

from __future__ import annotations

import os
from pathlib import Path

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.tree.snapshot import Tree, read_record

PART = "workspace"
"""The name of the part of a checkpoint that holds its files."""


def tree_in(store: Store, checkpoint: Checkpoint) -> Tree | None:
    """Return the tree of a checkpoint; None if it has no files.

    Raises:
        IntegrityError: the snapshot is missing or damaged.
        StorageError: the medium failed.
    """
    tag = checkpoint.parts.get(PART)
    if not isinstance(tag, dict) or OBJECT not in tag:
        return None
    return read_record(str(tag[OBJECT]), store.backend)


def relative_path(root: Path, path: str | os.PathLike[str]) -> bytes:
    """Return a path relative to the root of a workspace, as bytes. Raises InvalidInputError."""
    absolute = Path(os.path.normpath(root / Path(path)))
    if root not in absolute.parents:
        raise InvalidInputError(f"{short_repr(str(path))} is not within {root}.")
    return os.fsencode(absolute.relative_to(root))
