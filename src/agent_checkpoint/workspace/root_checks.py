"""Checks before a directory is opened as a workspace. Owns the rules for allowed directories."""

from __future__ import annotations

import os
from pathlib import Path

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.os_support.posix import wrap_os_errors
from agent_checkpoint.errors import (
    Hint,
    InvalidInputError,
    StorageError,
    UnsafeWorkspaceError,
    WorkspaceError,
)
from agent_checkpoint.records import short_repr


def clean_up_forks() -> None:
    """Remove forks, and directories of probes, left behind by killed processes."""
    try:
        home = data_home()
    except (InvalidInputError, StorageError):
        return
    if not any(_has_entries(home / name) for name in ("forks", "branches")):
        return
    with block_forks():
        from agent_checkpoint.workspace.fork.fork_directory import clean_up_all  # costly to import

    clean_up_all()


def _has_entries(directory: Path) -> bool:
    try:
        return any(directory.iterdir())
    except OSError:  # there is none, or it belongs to another user
        return False


def drop_caches() -> None:
    """Remove file data kept outside of stores: stat indexes and unused lower directories of forks.

    Raises:
        StorageError: an index or a directory cannot be removed.
    """
    with block_forks():
        # Slow to load.
        from agent_checkpoint.workspace.fork.lowerdir import remove_unused_trees
        from agent_checkpoint.workspace.scan.stat_index import remove_indexes

    try:
        home = data_home()
    except InvalidInputError:
        return  # without a data directory there are no caches
    with wrap_os_errors(f"remove the indexes in {home}"):
        remove_indexes(home / "index")
        remove_unused_trees(home / "bases")


def checked_root(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Return the real path of a directory that may be a workspace.

    Raises:
        InvalidInputError: the path is invalid.
        UnsafeWorkspaceError: the directory is `/`, a home directory, or contains one.
        WorkspaceError: there is no such directory.
    """
    try:
        root = Path(os.path.realpath(path))
    except ValueError as error:  # the path contains a NUL
        raise InvalidInputError(f"{short_repr(str(path))} is not a valid path ({error}).") from None
    if root.exists() and not root.is_dir():
        raise WorkspaceError(
            f"{short_repr(str(root))} is not a directory. Pass a directory, for example its parent."
        )
    if not root.is_dir():
        raise WorkspaceError(f"The directory {short_repr(str(root))} does not exist.")
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if not force and (root == Path(root.anchor) or root == home or root in home.parents):
        raise UnsafeWorkspaceError(
            f"{root} contains a home directory or the whole system, which a restore would "
            "overwrite.",
            hint=Hint(
                "Use the directory of one project, or pass Workspace(path, force=True).", "force"
            ),
        )
    return root
