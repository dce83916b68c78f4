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
        self.directory = Path(os.path.realpath(directory or Path.cwd()))

    @contextmanager
    def manager(self) -> Iterator[CheckpointManager]:
        """Open the store, for as long as it is used.

        Raises:
            CheckpointError: it cannot be opened.
        """
        from agent_checkpoint.session.opening import manager_of

        manager, _ = manager_of(self._said)
        with manager:
            yield manager

    def key(self, manager: CheckpointManager, said: str | None) -> str:
        """Return the key that is meant: the one that was said, or that of the directory.

        Raises:
            NotFoundError: there is none.
        """
        if said is not None:
            if next(manager.store.entries(said, page=1), None) is None:
                raise NotFoundError(
                    f"There is no key {show(said)}. `agent-checkpoint keys` lists those there are."
                )
            return said
        for place in (self.directory, *self.directory.parents):
            found = self._keys_of(manager, place)
            if found:
                return found[0]
        raise NotFoundError(
            f"Nothing was saved of {self.directory} yet: `agent-checkpoint save` does. Or name a "
            "key: `agent-checkpoint keys` lists them."
        )

    def checkpoint(self, manager: CheckpointManager, said: str | None) -> Checkpoint:
        """Return the checkpoint that is meant: an id, a key, or `~2` and `@17` of the directory.

        Raises:
            NotFoundError: there is none.
            InvalidInputError: it is no id.
        """
        from agent_checkpoint.store.lookup import find

        if said is None:
            said = self.key(manager, None)
        elif _SHORT.fullmatch(said):
            said = self.key(manager, None) + said
        return find(manager.store, said)

    def _keys_of(self, manager: CheckpointManager, place: Path) -> list[str]:
        """Return the keys that belong to a directory, the latest first."""
        from agent_checkpoint.cli.ownership import keys_of

        return keys_of(manager.store, place)


def existing_directory(text: str | None, base: Path) -> Path:
    """Return a directory that was named, or the base.

    Raises:
        InvalidInputError: there is no such directory.
    """
    place = Path(os.path.realpath(base / text)) if text else base
    if not place.is_dir():
        raise InvalidInputError(f"There is no directory {show(str(place), 200)}.")
    return place
