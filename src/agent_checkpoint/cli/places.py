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
from agent_checkpoint.records import Checkpoint, show

if TYPE_CHECKING:
    from agent_checkpoint.manager.manager import CheckpointManager

STORE = "AGENT_CHECKPOINT_STORE"
_SHORT = re.compile(r"[~@][0-9]{1,18}")


class Places:
    """The store and the directory of one command."""

    def __init__(self, store: str | None, directory: Path | None = None) -> None:
        """Take what was said; nothing is opened yet.

        Args:
            store: a path or a URL; what the environment says, or the user's own, if None.
            directory: where the command was given; the current one if None.
        """
        self._said = store or os.environ.get(STORE) or None
        self._given = directory

    @property
    def directory(self) -> Path:
        """Where the command was given. Raises InvalidInputError if that is gone."""
        try:
            return Path(os.path.realpath(self._given or Path.cwd()))
        except OSError as error:
            raise InvalidInputError("The current directory is not there any more.") from error

    @contextmanager
    def manager(self) -> Iterator[CheckpointManager]:
        """Open the store, for as long as it is used.

        Raises:
            CheckpointError: it cannot be opened.
        """
        from agent_checkpoint.backends.opening import open_named
        from agent_checkpoint.manager.manager import CheckpointManager

        with CheckpointManager(open_named(self._said)) as manager:
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
        from agent_checkpoint.cli.ownership import owned_by
        from agent_checkpoint.cli.text import inert

        here = self.directory
        around = [here, *here.parents]
        found = owned_by(manager.store, around)
        for place in around:
            for owned in found.get(place, ()):
                if owned.is_session or not sessions:
                    return owned.key
        if sessions:
            raise NotFoundError(
                f"No session works in {inert(here)}. Name one: `agent-checkpoint tasks --all` "
                "lists them."
            )
        raise NotFoundError(
            f"Nothing was saved of {inert(here)} yet: `agent-checkpoint save` does. Or name a key: "
            "`agent-checkpoint keys` lists them."
        )

    def _named(self, manager: CheckpointManager, said: str, sessions: bool) -> str:
        from agent_checkpoint.session.meta import PART
        from agent_checkpoint.store.store import unknown

        if not said or next(manager.store.entries(said, page=1), None) is None:
            raise unknown(said, manager.store)
        if sessions:
            head = manager.store.head(said)
            if head is not None and PART not in head.parts:
                raise InvalidInputError(
                    f"{show(said)} is no session. `agent-checkpoint restore` takes files back, and "
                    "`agent-checkpoint fork` goes on from a checkpoint."
                )
        return said

    def checkpoint(self, manager: CheckpointManager, said: str | None) -> Checkpoint:
        """Return the checkpoint that is meant: an id, a key, or `~2` and `@17` of the directory.

        Raises:
            NotFoundError: there is none.
            InvalidInputError: it is no id.
        """
        from agent_checkpoint.store.lookup import find

        return find(manager.store, self.id_of(manager, said))

    def id_of(self, manager: CheckpointManager, said: str | None, key: str | None = None) -> str:
        """Return an id or a short form in which the key is named. Raises NotFoundError."""
        if said is None:
            return key or self.key(manager, None)
        if _SHORT.fullmatch(said):
            return (key or self.key(manager, None)) + said
        return said


def existing_directory(text: str | None, base: Path) -> Path:
    """Return a directory that was named, or the base.

    Raises:
        InvalidInputError: there is no such directory.
    """
    place = Path(os.path.realpath(base / text)) if text else base
    if not place.is_dir():
        raise InvalidInputError(f"There is no directory {show(str(place), 200)}.")
    return place
