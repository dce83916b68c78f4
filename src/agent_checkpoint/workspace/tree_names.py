"""What is meant by a tree or a path of a workspace. Owns telling it, also of a checkpoint."""

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
"""The name of the part that the files of a checkpoint are."""
WORKSPACE = "workspace:"
"""How the key of a directory begins that it has by its path."""
_NUMBERED = "//"
"""What no path has: a numbered key is that of no other directory."""


def key_of(place: Path, number: int = 1) -> str:
    """Return the key that a directory has by its path.

    Args:
        place: the directory.
        number: which, if keys before it are taken by lines of others.
    """
    end = "" if number == 1 else f"{_NUMBERED}{number}"
    key = f"{WORKSPACE}{path_text(place)}{end}"
    if len(key.encode()) > MAX_KEY_BYTES:
        key = f"{WORKSPACE}{hashlib.sha256(os.fsencode(place)).hexdigest()}{end}"
    return key


def natural_key(key: str) -> str:
    """Return a key of a directory without its number."""
    plain, mark, number = key.rpartition(_NUMBERED)
    return plain if mark and number.isdecimal() else key


def own_key(store: Store, place: Path) -> str:
    """Return the key of a directory's own snapshots and safety checkpoints.

    That is the key that it has by its path. Where this belongs to somebody else, by an import, on
    another host or under another secret in a shared store, it is the first numbered one that does
    not.

    Raises:
        StateError: the secret cannot be read just now.
        StorageError: the medium failed.
    """
    for number in count(1):
        key = key_of(place, number)
        newest = newest_readable(store, key)
        if newest is None:
            is_own = not any(isinstance(entry.data, ForeignEntry) for entry in store.entries(key))
        else:
            is_own = is_owned_by_directory(store, newest, place, key)
        if is_own:
            return key
    raise AssertionError("unreachable: numbers do not end")


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


def resolve_tree(workspace: Workspace, tree: Any) -> Tree:
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
            raise InvalidInputError(f"The checkpoint {short_repr(tree, 120)} has no workspace.")
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
        raise InvalidInputError(f"{short_repr(str(path))} is no path within {root}.")
    return os.fsencode(whole.relative_to(root))
