"""Caches the result of the last scan of a directory, in memory and as a stat index on disk.

The cache belongs to one store at a time, because it implies which objects that store has.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import IntegrityError, InvalidInputError, StorageError
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.scan.stat_index import (
    Encoded,
    Index,
    IndexFile,
    encode_records,
    read_index,
    update_path,
    write_index,
    write_update,
)
from agent_checkpoint.workspace.tree.dir_state import Copied, DirState
from agent_checkpoint.workspace.tree.snapshot import objects_from
from agent_checkpoint.workspace.tree.tree_format import put_directory

if TYPE_CHECKING:
    from agent_checkpoint.workspace.scan.index_position import Position

_MANY_OBJECTS = 100_000
_FILES_PER_LEARNED = 50
"""An index is rewritten for the times of one directory per this many files.

Listing a directory takes 10 µs more than looking up its names, and writing an index 2 µs per file:
it pays after ten passes.
"""
_REWRITE_AFTER = 64
"""A process that watches rewrites the index when a new process would read this many files again."""


class collection_paused:  # a class: a generator costs more
    """Pause Python's garbage collector, which is slow while a scan creates many objects."""

    __slots__ = ("_is_on",)

    def __enter__(self) -> None:
        self._is_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._is_on:
            if gc.get_count()[0] > _MANY_OBJECTS and not gc.get_freeze_count():
                # To the oldest generation: enabled, the collector would visit each object now.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _rewrite_after(files: int) -> int:
    """Return after how many reads a process that cannot update its index rewrites it.

    If every n-th change rewrites the index, a new process reads n / 2 files again on average: the
    sum is least at an n that grows with the root of the size. The factor is measured.
    """
    return max(8, math.isqrt(files) // 6)


class ScanCache:
    """The state of one directory at its last scan."""

    def __init__(self, path: Path, rules: Rules) -> None:
        """Start empty.

        Args:
            path: the directory.
            rules: its ignore rules.
        """
        self.dir_state: DirState | None = None
        """The state found by the last scan."""
        self.has_contents = True
        """Whether the store has the contents of its files.

        Not before the commit, and never if it fails.
        """
        self.position: Position | None = None
        """The moment in a change journal after which that scan began, if a service watches."""
        self.copied: Copied | None = None
        """The signatures of the copied files, if `dir_state` is that of the original directory."""
        self.directory: tuple[int, int] | None = None
        """Device and inode of the scanned directory; None for a fork that was not scanned yet."""
        self._path = path
        self._rules = rules
        self._backend: Backend | None = None
        self._own_paths: list[str] | None = None
        self._reads_since_index = 0
        self._is_index_due = False
        self._is_rewrite_due = False
        self._index: Index | None = None
        self._index_position: Position | None = None
        """What the files on disk have."""
        self._writes_index = True
        """Whether an index is written.

        False for an overlay, which may be mounted at another path.
        """

    def is_for(self, writer: Writer, directory: tuple[int, int]) -> bool:
        """Return whether the cache belongs to the store of a writer, and to an open directory."""
        is_here = self.directory in (None, directory)
        return is_here and writer.backend is self._backend and writer.trust_cache

    def begin(self, writer: Writer, directory: tuple[int, int]) -> None:
        """Load the stat index of a directory for the store of a writer; drop the cached state.

        Another directory at the same path has other files, even if names and times are the same.
        """
        self.dir_state = self.position = self._index = self._index_position = None
        self._backend = writer.backend
        self._own_paths = None
        self.has_contents = True
        path = self._index_path()
        if writer.trust_cache and path is not None:
            with collection_paused():
                found = read_index(path)
            if found is not None and found.directory == directory:
                self._index = found
            if self._index is not None:
                self.dir_state = self._index.root
                if self._index.position:
                    with block_forks():
                        from agent_checkpoint.workspace.scan.index_position import decode_position

                    self.position = decode_position(self._index.position)
                self._index_position = self.position
        self._reads_since_index = 0
        self._is_index_due = self.dir_state is None
        writer.asks_all = self.dir_state is None  # every file is read: lost objects are stored

    def drop(self, writer: Writer) -> None:
        """Drop the cached state, as if there were no index."""
        self._forget()
        writer.asks_all = True

    def adopt(self, state: DirState, backend: Backend, copied: Copied | None) -> None:
        """Cache the state of the directory from which this one was forked.

        Args:
            state: the state of that directory.
            backend: the store that holds it.
            copied: the signatures of the copied files; None for an overlay.
        """
        self.dir_state = state
        self.has_contents = True
        self.position = None
        self.copied = copied
        self._backend = backend
        self.directory = None
        self._own_paths = None
        self._writes_index = copied is not None

    def keep(
        self,
        state: DirState,
        writer: Writer,
        *,
        read: int,
        ahead: bool,
        is_watching: bool,
        position: Position | None,
    ) -> None:
        """Cache the result of a scan; write directory objects that the store lacks.

        Args:
            state: the result.
            writer: the writer of the store.
            read: the number of files that were read.
            ahead: whether their contents are stored already.
            is_watching: whether this process will know the changed paths.
            position: the moment in a change journal after which the scan began.

        Raises:
            StorageError: the store failed.
        """
        self._reads_since_index += read
        limit = _REWRITE_AFTER if is_watching else _rewrite_after(state.files)
        if self._reads_since_index >= limit:
            self._is_index_due = True
        not_stored = list(_not_stored(state))
        self._put_again(not_stored, writer)
        self.dir_state = state
        self.has_contents = ahead or (self.has_contents and not read)
        self.position = position
        encoded = None
        is_first = self._is_index_due and self._index is None and 0 < state.files <= read
        if is_first and not ahead and self._writes_index and self._index_path() is not None:
            with suppress(IntegrityError):  # of directories in a damaged index: at the commit again
                encoded = encode_records(state)  # now: another thread stores its last files
        writer.on_commit(lambda: self._committed(state, not_stored, is_watching, position, encoded))

    def note_learned(self, directories: int) -> None:
        """Have the next commit write a new index if the times of many directories are not in it."""
        files = 0 if self.dir_state is None else self.dir_state.files
        if directories >= max(_REWRITE_AFTER, files // _FILES_PER_LEARNED):
            self._is_rewrite_due = True

    def forget_index(self) -> None:
        """Remove the stat index of a directory that is about to be deleted."""
        path = self._index_path()
        if path is not None:
            path.unlink(missing_ok=True)
            update_path(path).unlink(missing_ok=True)

    def index_file(self, state: DirState) -> IndexFile | None:
        """Return the index file, if it has this state."""
        path = self._index_path()
        index = self._index
        if path is None or index is None or not index.is_read or index.root is not state:
            return None
        return IndexFile(path, index)

    def own_inodes(self) -> set[tuple[int, int]]:
        """Return device and inode of the store and the indexes, which may be in the workspace."""
        if self._own_paths is None:
            index = self._index_path()
            paths = (self._store_path(), index and index.parent)
            self._own_paths = [str(path) for path in paths if path is not None]
        inodes = set()
        for path in self._own_paths:
            with suppress(OSError):  # not created yet
                stat = os.stat(path)
                inodes.add((stat.st_dev, stat.st_ino))
        return inodes

    def _put_again(self, not_stored: Iterable[DirState], writer: Writer) -> None:
        """Write again the directory objects of a checkpoint that was not committed."""
        for each in not_stored:
            if writer.backend is not None and not writer.holds(each.stored.ref):
                put_directory(each.items(objects_from(writer.backend)), writer.put)

    def _committed(
        self,
        state: DirState,
        not_stored: Iterable[DirState],
        is_watching: bool,
        position: Position | None,
        encoded: Encoded | None,
    ) -> None:
        for each in not_stored:
            each.is_stored = True
        if state is self.dir_state:
            self.has_contents = True
        index = self._index
        is_same = index is not None and index.root is state
        can_update = index is not None and index.records.is_read
        # The next process may be new, too, and have to read the changed files again. But a process
        # without a position keeps that of the index, which tells served ones what changed.
        is_update_due = (
            can_update
            and not is_same
            and not is_watching
            and (position is not None or self._index_position is None)
        )
        is_due = self._is_index_due or self._is_rewrite_due or is_update_due
        if not is_due and not self._is_position_due(position, is_same=is_same):
            return
        path = self._index_path() if self._writes_index else None
        if path is None:
            return
        try:
            self._write(path, state, position, encoded, can_update=is_same or can_update)
        except OSError:  # the index only saves time; the checkpoint is durable
            return
        except IntegrityError:  # a damaged index: the next scan must not use it
            self._forget()
            return
        self._index_position = position
        self._reads_since_index = 0
        self._is_index_due = self._is_rewrite_due = False

    def _write(
        self,
        path: Path,
        state: DirState,
        position: Position | None,
        encoded: Encoded | None,
        *,
        can_update: bool,
    ) -> None:
        """Write the state and its position: as an update of the index if possible."""
        place = b""
        if position is not None:
            with block_forks():
                from agent_checkpoint.workspace.scan.index_position import encode_position

            place = encode_position(position)
        updated = None
        if self._index is not None and can_update and not self._is_rewrite_due:
            updated = write_update(path, self._index, state, place)
        directory = self.directory or (0, 0)
        self._index = updated or write_index(path, state, place, directory, encoded)

    def _is_position_due(self, position: Position | None, *, is_same: bool) -> bool:
        """Return whether a new process should find this position and not that of the index."""
        saved = self._index_position
        if position is None:
            return False
        if saved is None or saved.full_scan != position.full_scan:
            return True  # else it would compare every file
        # The same tree: the journal need not report the same changes again, as of ignored files.
        return is_same and saved.token != position.token

    def _forget(self) -> None:
        self.dir_state = self.position = self._index = self._index_position = None
        self.has_contents = self._is_index_due = True

    def _store_path(self) -> Path | None:
        return None if self._backend is None else self._backend.properties.path

    def _index_path(self) -> Path | None:
        """Return the path of the index; None if the store is in memory."""
        store_path = self._store_path()
        if store_path is None:
            return None
        try:
            home = data_home()
        except (InvalidInputError, StorageError):
            return None
        # Indexes for other rules contain other files.
        identity = os.fsencode(store_path), os.fsencode(self._path), self._rules.key
        return home / "index" / hashlib.sha256(b"\0".join(identity)).hexdigest()[:32]


def _not_stored(state: DirState) -> Iterator[DirState]:
    """Iterate over the directories that no durable checkpoint refers to, parents first."""
    stack = [] if state.is_stored else [state]
    while stack:
        state = stack.pop()
        yield state
        stack += [each for each in state.subdirs.values() if not each.is_stored]
