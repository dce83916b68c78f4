"""Keys, trees and paths of a workspace by name. Owns resolving them."""

from __future__ import annotations

import hashlib
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import MAX_KEY_BYTES, Checkpoint, short_repr
from agent_checkpoint.store.claims import is_owned_by_directory, newest_readable, path_text
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.sealed_streams import ForeignEntry
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.tree.snapshot import Tree, read_record, tree_of

if TYPE_CHECKING:
    from agent_checkpoint.workspace.workspace import Workspace

PART = "workspace"
"""The name of the part of a checkpoint that holds its files."""
WORKSPACE = "workspace:"
"""The prefix of keys that are derived from the path of a directory."""
_NUMBERED = "//"
"""Never part of a normalized path, so a numbered key belongs to no other directory."""


def key_of(directory: Path, number: int = 1) -> str:
    """Return the key that is derived from the path of a directory.

    Args:
        directory: its path.
        number: greater than 1 if the keys with lower numbers belong to others.
    """
    end = "" if number == 1 else f"{_NUMBERED}{number}"
    key = f"{WORKSPACE}{path_text(directory)}{end}"
    if len(key.encode()) > MAX_KEY_BYTES:
        key = f"{WORKSPACE}{hashlib.sha256(os.fsencode(directory)).hexdigest()}{end}"
    return key


def natural_key(key: str) -> str:
    """Return the key of a directory without its number."""
    plain, mark, number = key.rpartition(_NUMBERED)
    return plain if mark and number.isdecimal() else key


def own_key(store: Store, directory: Path) -> str:
    """Return the key of a directory's own snapshots and safety checkpoints.

    That is the key derived from its path. If that key belongs to someone else (imported, or written
    on another host or under another secret in a shared store), it is the first numbered key that
    does not.

    Raises:
        StateError: the secret cannot be read at the moment.
        StorageError: the medium failed.
    """
    for number in count(1):
        key = key_of(directory, number)
        newest = newest_readable(store, key)
        if newest is None:
            is_own = not any(isinstance(entry.data, ForeignEntry) for entry in store.entries(key))
        else:
            is_own = is_owned_by_directory(store, newest, directory, key)
        if is_own:
            return key
    raise AssertionError("unreachable: numbers do not end")


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


def resolve_tree(workspace: Workspace, tree: Any) -> Tree:
    """Return the tree that a user passed as a tree, a reference or a checkpoint id.

    Raises:
        InvalidInputError: it is none of these, or the checkpoint has no files.
        NotFoundError: the checkpoint does not exist.
        IntegrityError: the snapshot is missing or damaged.
        StorageError: the medium failed.
    """
    if isinstance(tree, str):
        resolved = tree_in(workspace.store, find(workspace.store, tree))
        if resolved is None:
            raise InvalidInputError(
                f"The checkpoint {short_repr(tree, 120)} contains no workspace."
            )
        return resolved
    if not isinstance(tree, (Tree, ObjectRef)):
        raise InvalidInputError(
            "Expected a tree returned by snapshot(), or the id of a checkpoint with one, not "
            f"{type(tree).__name__}."
        )
    return tree_of(tree)


def relative_path(root: Path, path: str | os.PathLike[str]) -> bytes:
    """Return a path relative to the root of a workspace, as bytes. Raises InvalidInputError."""
    absolute = Path(os.path.normpath(root / Path(path)))
    if root not in absolute.parents:
        raise InvalidInputError(f"{short_repr(str(path))} is not within {root}.")
    return os.fsencode(absolute.relative_to(root))
