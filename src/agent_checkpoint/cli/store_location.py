"""The store and the directory of a command. Resolves keys and ids in them; prints nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.formatting import one_line
from agent_checkpoint.records import Checkpoint, short_repr

if TYPE_CHECKING:
    from agent_checkpoint.agents.directory_keys import DirectoryKey
    from agent_checkpoint.manager.manager import CheckpointManager

STORE = "AGENT_CHECKPOINT_STORE"
HERE = "."
"""The name of the key of the current directory."""


class StoreLocation:
    """The store and the directory of one command."""

    def __init__(
        self, store: str | None, directory: Path | None = None, *, makes_store: bool = False
    ) -> None:
        """Set the location; opens nothing.

        Args:
            store: a path or URL; if None, $AGENT_CHECKPOINT_STORE, or the default store.
            directory: the working directory; the current one if None.
            makes_store: whether a store given by name is created if it is missing.
        """
        self._store = store or os.environ.get(STORE) or None
        self._given = directory
        self._makes_store = makes_store

    def at(self, directory: Path) -> StoreLocation:
        """Return the same store with another directory."""
        return StoreLocation(self._store, directory, makes_store=self._makes_store)

    @property
    def directory(self) -> Path:
        """The working directory. Raises InvalidInputError if it was removed."""
        try:
            return Path(os.path.realpath(self._given or Path.cwd()))
        except OSError as error:
            raise InvalidInputError("The current directory no longer exists.") from error

    @contextmanager
    def manager(self, *, must_exist: bool = False) -> Iterator[CheckpointManager]:
        """Open the store for the duration of the block.

        Args:
            must_exist: whether the default store must also exist.

        Raises:
            NotFoundError: the given store does not exist. It is not created, because a typo would
                look like an empty store.
            CheckpointError: the store cannot be opened.
        """
        from agent_checkpoint.backends.registry import open_named
        from agent_checkpoint.manager.manager import CheckpointManager

        backend = open_named(self._store)
        if must_exist or (self._store is not None and not self._makes_store):
            properties = backend.properties
            # Without a marker the store is remote or in memory: the backend reports a missing one.
            if properties.marker is not None and not properties.marker.exists():
                raise NotFoundError(f"No store at {short_repr(str(properties.path), 200)}.")
        with CheckpointManager(backend) as manager:
            yield manager

    def key(self, manager: CheckpointManager, name: str | None, *, sessions: bool = False) -> str:
        """Return the given key if it exists, or the key of the directory.

        Args:
            manager: the manager of the store.
            name: the key; if None or `.`, the key of the directory or of its nearest parent that
                has one.
            sessions: whether the key must be a session.

        Raises:
            NotFoundError: there is no such key.
            InvalidInputError: the key is not a session.
        """
        if name is not None and name != HERE:
            return self._named(manager, name, sessions)
        for entries in self.directory_keys(manager).values():
            for entry in entries:
                if entry.is_session or not sessions:
                    return entry.key
        here = self.directory
        if sessions:
            raise NotFoundError(
                f"{one_line(here)} has no session. Pass the key of a session; "
                "`agent-checkpoint tasks --all` lists them."
            )
        from agent_checkpoint.agents.directory_keys import (
            gone_notice,
            unverified_keys,
            unverified_notice,
        )

        others = unverified_keys(manager.store, here)
        if others:
            raise NotFoundError(
                f"{one_line(here)} has no verified checkpoints. {unverified_notice(others[0])}"
            )
        raise NotFoundError(
            f"{one_line(here)} has no checkpoints yet. Run `agent-checkpoint save`, or pass a "
            f"key; `agent-checkpoint keys` lists them.{gone_notice(manager.store)}"
        )

    def directory_keys(self, manager: CheckpointManager) -> dict[Path, list[DirectoryKey]]:
        """Return the keys of the directory and of its parents, the nearest directory first.

        Raises:
            StorageError: the medium failed.
        """
        from agent_checkpoint.agents.directory_keys import find_directory_keys

        here = self.directory
        around = [here, *here.parents]
        found = find_directory_keys(manager.store, around)
        return {directory: found[directory] for directory in around if directory in found}

    def _named(self, manager: CheckpointManager, name: str, sessions: bool) -> str:
        from agent_checkpoint.session.session_record import SESSION_PART
        from agent_checkpoint.store.store import key_not_found

        if not name or next(manager.store.entries(name, page=1), None) is None:
            raise key_not_found(name, manager.store)
        if sessions:
            head = manager.store.head(name)
            if head is not None and SESSION_PART not in head.parts:
                raise InvalidInputError(
                    f"{short_repr(name)} is not a session. Use `agent-checkpoint restore` to "
                    "restore files, or `agent-checkpoint fork` to branch from a checkpoint."
                )
        return name

    def checkpoint(
        self, manager: CheckpointManager, name: str | None, key: str | None = None
    ) -> Checkpoint:
        """Return a checkpoint by id, by key, or by a short form such as `@~2` or `@17`.

        Args:
            manager: the manager of the store.
            name: the id, key or short form; if None, the latest checkpoint of the key; `.` is the
                latest one of the directory.
            key: the key of a short form; the key of the directory if None.

        Raises:
            NotFoundError: there is no such checkpoint.
            InvalidInputError: `name` is not a valid id.
        """
        from agent_checkpoint.store.lookup import find, short_form

        if name == HERE or (key is None and (name is None or short_form(name) is not None)):
            key = self.key(manager, None)
        named = key if name is None or name == HERE else name
        try:
            return find(manager.store, named or "", base=key)
        except NotFoundError as error:
            hint = _meant(name or "")
            if not hint:
                raise
            raise NotFoundError(error.with_hint(hint), hint=error.hint) from None


def shared_name(name: str | None) -> str:
    """Return the URL that opens a store as shared, that is, writable by other users.

    Raises:
        InvalidInputError: `name` is not a path or URL of a store.
    """
    from agent_checkpoint.backends.default_paths import default_store
    from agent_checkpoint.backends.registry import as_shared

    return as_shared(name or os.environ.get(STORE) or str(default_store()))


def _meant(name: str) -> str:
    """Return a hint for a name that is not a checkpoint; empty if there is none."""
    if name.isdecimal():
        return f"For checkpoint number {name} of this directory use @{name}."
    if name.startswith("/"):
        return "If you typed ~1, the shell expanded it to a directory: use @~1, or quote it: '~1'."
    return ""


def create_directory(path: Path) -> None:
    """Create a directory and its parents, if missing. Raises InvalidInputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"Cannot create the directory {one_line(path)}: {error.strerror}."
        ) from error


def existing_directory(text: str | None, base: Path) -> Path:
    """Return the directory at a path relative to `base`; the base if the path is empty.

    Raises:
        InvalidInputError: there is no such directory.
    """
    path = Path(os.path.realpath(base / text)) if text else base
    if path.is_file():
        raise InvalidInputError(f"{short_repr(str(path), 200)} is a file, not a directory.")
    if not path.is_dir():
        raise InvalidInputError(f"No such directory: {short_repr(str(path), 200)}.")
    return path
