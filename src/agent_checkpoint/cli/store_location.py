"""Where a command works: the store, the directory, and what short names mean there.

Owns finding them; prints nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr

if TYPE_CHECKING:
    from agent_checkpoint.backends.base import Backend
    from agent_checkpoint.manager.manager import CheckpointManager

STORE = "AGENT_CHECKPOINT_STORE"
_SHORT = re.compile(r"(?:@?(~)|@)([0-9]{1,18})")


class Places:
    """The store and the directory of one command."""

    def __init__(
        self, store: str | None, directory: Path | None = None, *, makes_store: bool = False
    ) -> None:
        """Take what was said; nothing is opened yet.

        Args:
            store: a path or a URL; what the environment says, or the user's own, if None.
            directory: where the command was given; the current one if None.
            makes_store: whether a store that was named is made if it is not there.
        """
        self._said = store or os.environ.get(STORE) or None
        self._given = directory
        self._makes_store = makes_store

    @property
    def directory(self) -> Path:
        """Where the command was given. Raises InvalidInputError if that is gone."""
        try:
            return Path(os.path.realpath(self._given or Path.cwd()))
        except OSError as error:
            raise InvalidInputError("The current directory is not there any more.") from error

    @contextmanager
    def manager(self, *, must_exist: bool = False) -> Iterator[CheckpointManager]:
        """Open the store, for as long as it is used.

        Args:
            must_exist: whether also the user's own has to be there by now.

        Raises:
            NotFoundError: it was named, and is not there; a typo would look like an empty store.
            CheckpointError: it cannot be opened.
        """
        from agent_checkpoint.backends.registry import open_named
        from agent_checkpoint.manager.manager import CheckpointManager

        backend = open_named(self._said)
        if must_exist or (self._said is not None and not self._makes_store):
            _check_exists(backend)
        with CheckpointManager(backend) as manager:
            yield manager

    def key(self, manager: CheckpointManager, said: str | None, *, sessions: bool = False) -> str:
        """Return the key that is meant: the one that was said, or that of the directory.

        Args:
            manager: of the store.
            said: a key; that of the directory, or of one above, if None.
            sessions: whether it has to be a session.

        Raises:
            NotFoundError: there is none.
            InvalidInputError: it is no session.
        """
        if said is not None:
            return self._named(manager, said, sessions)
        from agent_checkpoint.agents.directory_keys import foreign_lines, foreign_words, owned_by
        from agent_checkpoint.formatting import one_line

        here = self.directory
        around = [here, *here.parents]
        found = owned_by(manager.store, around)
        for place in around:
            for owned in found.get(place, ()):
                if owned.is_session or not sessions:
                    return owned.key
        if sessions:
            raise NotFoundError(
                f"No session works in {one_line(here)}. Name one: `agent-checkpoint tasks --all` "
                "lists them."
            )
        others = foreign_lines(manager.store, here)
        if others:
            raise NotFoundError(
                f"{one_line(here)} has no checkpoints of yours. {foreign_words(others[0])}"
            )
        raise NotFoundError(
            f"Nothing was saved of {one_line(here)} yet: `agent-checkpoint save` does. Or name a "
            "key: `agent-checkpoint keys` lists them."
        )

    def _named(self, manager: CheckpointManager, said: str, sessions: bool) -> str:
        from agent_checkpoint.session.session_record import SESSION_PART
        from agent_checkpoint.store.store import key_not_found

        if not said or next(manager.store.entries(said, page=1), None) is None:
            raise key_not_found(said, manager.store)
        if sessions:
            head = manager.store.head(said)
            if head is not None and SESSION_PART not in head.parts:
                raise InvalidInputError(
                    f"{short_repr(said)} is no session. `agent-checkpoint restore` takes files "
                    "back, and `agent-checkpoint fork` goes on from a checkpoint."
                )
        return said

    def checkpoint(self, manager: CheckpointManager, said: str | None) -> Checkpoint:
        """Return the checkpoint that is meant: an id, a key, or `@~2` and `@17` of here.

        Raises:
            NotFoundError: there is none.
            InvalidInputError: it is no id.
        """
        from agent_checkpoint.store.lookup import find

        is_short = said is not None and short_form(said) is not None
        key = self.key(manager, None) if is_short else None
        try:
            return find(manager.store, self.id_of(manager, said, key), key=key)
        except NotFoundError as error:
            hint = _meant(said or "")
            raise NotFoundError(f"{error} {hint}") if hint else error from None

    def id_of(self, manager: CheckpointManager, said: str | None, key: str | None = None) -> str:
        """Return an id or a short form in which the key is named. Raises NotFoundError."""
        if said is None:
            return key or self.key(manager, None)
        short = short_form(said)
        return said if short is None else (key or self.key(manager, None)) + short


def shared_name(said: str | None) -> str:
    """Return the URL of the store that was meant, to be used although others may write it.

    Raises:
        InvalidInputError: there is no such place.
    """
    from agent_checkpoint.backends.default_paths import default_store
    from agent_checkpoint.backends.registry import as_shared

    return as_shared(said or os.environ.get(STORE) or str(default_store()))


def short_form(said: str) -> str | None:
    """Return what follows a key, `~2` or `@17`, if that alone was said.

    `@~2` is `~2`, which some shells take for a directory.
    """
    found = _SHORT.fullmatch(said)
    return None if found is None else f"{found[1] or '@'}{found[2]}"


def _meant(said: str) -> str:
    """Return what may have been meant by something that is no checkpoint."""
    if said.isdecimal():
        return f"Number {said} of this directory is @{said}."
    if said.startswith("/"):
        return "If you typed ~1, the shell took it for a directory: say @~1, or '~1' in quotes."
    return ""


def _check_exists(backend: Backend) -> None:
    """See to it that a store on this machine is there. Raises NotFoundError."""
    from agent_checkpoint.backends.sqlite import SQLiteBackend

    place = getattr(backend, "path", None)
    if place is None:
        return  # elsewhere, or in memory: that is for the backend to say
    mark = place / "store.db" if isinstance(backend, SQLiteBackend) else place
    if not mark.exists():
        raise NotFoundError(f"There is no store at {short_repr(str(place), 200)}.")


def existing_directory(text: str | None, base: Path) -> Path:
    """Return a directory that was named, or the base.

    Raises:
        InvalidInputError: there is no such directory.
    """
    place = Path(os.path.realpath(base / text)) if text else base
    if place.is_file():
        raise InvalidInputError(f"{short_repr(str(place), 200)} is a file: name a directory.")
    if not place.is_dir():
        raise InvalidInputError(f"There is no directory {short_repr(str(place), 200)}.")
    return place
