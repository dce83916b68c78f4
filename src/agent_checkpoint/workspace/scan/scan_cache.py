"""What is remembered of a directory between two looks. Owns the folders and the index of them.

It is about one store at a time, since it says which objects that store has.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.scan.stat_index import Index, open_index, write_index
from agent_checkpoint.workspace.tree.dir_state import Folder
from agent_checkpoint.workspace.tree.snapshot import objects_from
from agent_checkpoint.workspace.tree.tree_format import put_directory

_WORTH_AN_INDEX = 64
"""So many files have to be read again by a new process before the index is written anew."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python from looking for garbage among the many objects that a look makes at once."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


class Memory:
    """The folders of one directory as they were last seen."""

    def __init__(self, path: Path, rules: Rules) -> None:
        """Remember nothing yet.

        Args:
            path: the directory.
            rules: what is left out of it.
        """
        self.folder: Folder | None = None
        """What was seen last."""
        self.is_copy = False
        """Whether that was in the directory that this one was copied from."""
        self._path = path
        self._rules = rules
        self._backend: Any = None
        self._index_read: Index | None = None
        self._not_in_index = 0
        self._has_index = True
        """Whether it is written down: of a layer it is not, which may be seen at another's path."""

    def is_for(self, writer: Writer) -> bool:
        """Tell whether it is about the store of a writer."""
        return writer.backend is self._backend and writer.trust_cache

    def begin(self, writer: Writer) -> None:
        """Remember only what the index has for the store of a writer."""
        self.folder = self._index_read = None
        self._backend = writer.backend
        index = self._index()
        if writer.trust_cache and index is not None:
            with collection_paused():
                self._index_read = open_index(index)
            if self._index_read is not None:
                self.folder = self._index_read.root
        self._not_in_index = 0 if self.folder is not None else _WORTH_AN_INDEX

    def adopt(self, folder: Folder, backend: Any, *, is_copy: bool) -> None:
        """Take for known what was seen in the directory that this one was made from."""
        self.folder = folder
        self.is_copy = is_copy
        self._backend = backend
        self._has_index = is_copy

    def keep(self, folder: Folder, writer: Writer, *, read: int) -> None:
        """Remember what was seen; the writer gets what its store lacks of it.

        Args:
            folder: what was seen.
            writer: of the store that it is for.
            read: how many files had to be read.

        Raises:
            StorageError: the store failed.
        """
        self._not_in_index += read
        self._put_again(folder, writer)
        self.folder = folder
        writer.on_commit(lambda: self._committed(folder))

    @property
    def index(self) -> Index | None:
        """The index that was read, if it is what is remembered."""
        index = self._index_read
        return index if index is not None and index.root is self.folder else None

    def forget_index(self) -> None:
        """Remove the index, of a directory that is to be no more."""
        index = self._index()
        if index is not None:
            index.unlink(missing_ok=True)

    def own_places(self) -> set[tuple[int, int]]:
        """Return where the store and the indexes are, which may be below the directory."""
        places = set()
        index = self._index()
        for path in (getattr(self._backend, "path", None), index and index.parent):
            try:
                found = os.stat(path) if path is not None else None
            except OSError:
                continue  # not made yet
            if found is not None:
                places.add((found.st_dev, found.st_ino))
        return places

    def _put_again(self, folder: Folder, writer: Writer) -> None:
        """Put the objects of directories that were made for a checkpoint that came to nothing."""
        stack = [folder]
        while stack:
            folder = stack.pop()
            if folder.is_stored or writer.backend is None:
                continue
            if not writer.holds(folder.stored.ref):
                put_directory(folder.items(objects_from(writer.backend)), writer.put)
            stack += folder.folders.values()

    def _committed(self, folder: Folder) -> None:
        stack = [folder]
        while stack:
            below = stack.pop()
            if not below.is_stored:
                below.is_stored = True
                stack += below.folders.values()
        if self._not_in_index < _WORTH_AN_INDEX or not self._has_index:
            return
        index = self._index()
        if index is not None:
            try:
                write_index(index, folder)
            except OSError:  # it only saves time; the checkpoint is durable without it
                return
            self._not_in_index = 0

    def _index(self) -> Path | None:
        """Return where the index is; None if the store ends with the process."""
        place = getattr(self._backend, "path", None)
        if place is None:
            return None
        try:
            home = data_home()
        except (InvalidInputError, StorageError):
            return None
        # By other rules other files are known.
        whose = os.fsencode(place), os.fsencode(self._path), self._rules.key
        return home / "index" / hashlib.sha256(b"\0".join(whose)).hexdigest()[:32]
