"""What is seen to before a directory is taken for a workspace. Owns which may be one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.backends.disk.posix import wrap_os_errors
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.errors import (
    InvalidInputError,
    StorageError,
    UnsafeWorkspaceError,
    WorkspaceError,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.store import Store


def clean_up_forks() -> None:
    """Take away what forks of killed processes have left, if there may be any."""
    try:
        forks = data_home() / "forks"
        if not any(forks.iterdir()):
            return
    except (OSError, InvalidInputError, StorageError):
        return  # nobody ever made one here, or they are another user's
    with block_forks():
        from agent_checkpoint.workspace.fork.workspace_fork import clean_up_all  # costly to import

    clean_up_all()


def drop_caches() -> None:
    """Remove what is kept of files outside of every store: indexes, and bases that no fork uses.

    Raises:
        StorageError: some of it cannot be removed.
    """
    with block_forks():
        from agent_checkpoint.workspace.fork.materialized import (
            remove_unused_trees,
        )  # costly to import
        from agent_checkpoint.workspace.scan.stat_index import remove_indexes

    try:
        home = data_home()
    except InvalidInputError:
        return  # there is no place for it
    with wrap_os_errors(f"remove the indexes in {home}"):
        remove_indexes(home / "index")
        remove_unused_trees(home / "bases")


def as_store(store: Any) -> Store:
    """Return what a user calls a store as one: a store itself, a manager, a path or a URL.

    Raises:
        InvalidInputError: it is none of these.
    """
    if isinstance(store, (str, os.PathLike)):
        return Store(open_named(store))
    found = getattr(store, "store", store)  # a manager has its store by that name
    if not isinstance(found, Store):
        raise InvalidInputError(
            f"A workspace goes to a store, such as manager.store, not to {type(store).__name__}."
        )
    return found


def checked_root(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Return the real path of a directory that may be a workspace.

    Raises:
        InvalidInputError: it is no path at all.
        UnsafeWorkspaceError: it is `/`, a home directory, or holds one.
        WorkspaceError: there is no such directory.
    """
    try:
        place = Path(os.path.realpath(path))
    except ValueError as error:  # a NUL in it
        raise InvalidInputError(f"{short_repr(str(path))} is no path ({error}).") from None
    if place.exists() and not place.is_dir():
        raise WorkspaceError(f"{short_repr(str(place))} is no directory: name the one it is in.")
    if not place.is_dir():
        raise WorkspaceError(f"There is no directory {short_repr(str(place))}.")
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if not force and (place == Path(place.anchor) or place == home or place in home.parents):
        raise UnsafeWorkspaceError(
            f"{place} holds a whole home directory or system, which a restore would set back. "
            "Name the directory of one project, or pass Workspace(path, force=True)."
        )
    return place
