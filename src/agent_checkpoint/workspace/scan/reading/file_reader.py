"""Reads, hashes and batches the contents of files for a store.

The first batch is committed together with the checkpoint; it is usually the only one, because a
step of an agent changes few files. A background thread stores further batches while the scan
continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.store.objects.object_format import PlainObject
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.scan.reading.entry_reader import (
    DirectoryRequest,
    EntryReader,
    ReadRequest,
    ReadResult,
)
from agent_checkpoint.workspace.scan.snapshot_limit import SnapshotLimit

if TYPE_CHECKING:
    from agent_checkpoint.workspace.scan.reading.background_writer import BackgroundWriter
    from agent_checkpoint.workspace.scan.reading.read_pool import ReadPool

_STRIDE = 64
_BATCH_FILES = 1024
_BATCHES = 16
"""A large scan is stored in batches of this share of the files read so far."""
_BATCH_BYTES = 8 << 20
PARALLEL_FROM_FILES = 400
PARALLEL_FROM_BYTES = 32 << 20
"""A scan that has read or queued this many files or bytes starts reader processes."""


class FileReader:
    """Reads files below a root and passes their objects to a writer in batches."""

    def __init__(self, root: int, writer: Writer, limit: SnapshotLimit, *, ahead: bool) -> None:
        """Start with an empty batch.

        Args:
            root: the descriptor of the root directory.
            writer: receives the objects.
            limit: counts the bytes about to be read; may raise WorkspaceError.
            ahead: whether to store the first batch immediately, because a checkpoint may not
                follow.
        """
        self._root = root
        self._ahead = ahead
        self._writer = writer
        self._limit = limit
        self._entries = EntryReader(self._add, writer.put)
        self._objects: dict[str, PlainObject] = {}
        self._size = 0
        self._packed: dict[str, bytes] = {}
        self._packed_size = 0
        self._packed_lock = Lock()
        self._background: BackgroundWriter | None = None
        self._pool: ReadPool | None = None
        self._has_processes = False
        self._is_handed_over = False
        self.count = 0
        """The number of files read."""

    def read(
        self,
        fd: int,
        directory: bytes,
        requests: Sequence[ReadRequest],
        results: dict[bytes, ReadResult],
        *,
        later: bool = False,
    ) -> int:
        """Read files and links of an open directory.

        Args:
            fd: the directory.
            directory: its path.
            requests: the files and links.
            results: receives the results by name.
            later: whether to queue them, because many more are likely to follow.

        Returns:
            the number to `wait` for until all results are there.

        Raises:
            WorkspaceError: the limit of bytes is exceeded, or a reader process has died.
            StorageError: the store failed.
        """
        batch = 0
        for start in range(0, len(requests), _STRIDE):
            some = requests[start : start + _STRIDE]
            self._limit.count(directory, len(some), sum([each.size for each in some]))
            self.count += len(some)
            if not self._has_processes and (
                self.count >= PARALLEL_FROM_FILES or self._limit.bytes >= PARALLEL_FROM_BYTES
            ):
                self._start_processes()
            if later or self._has_processes:
                some, number = self._queue().take(directory, some, results)
                batch = number or batch
            for each in some:
                results[each.name] = self._entries.read(fd, each)
            if len(self._objects) >= self._batch_files:
                self._hand_over()
        return batch

    def wait(self, batch: int) -> None:
        """Wait for the results of files that were read up to a number.

        Raises the same errors as `read`.
        """
        if self._pool is not None:
            self._pool.wait(batch, self._read_batch)
            is_stored_early = self._background is not None and not self._is_handed_over
            if is_stored_early and self._pool.is_done:
                self._is_handed_over = True
                self._hand_over_all()  # now: they are stored while directories are assembled

    def finish(self) -> None:
        """Store all batches, except a first batch that is committed with the checkpoint.

        The last ones may still be on their way; the writer waits for them.

        Raises StorageError.
        """
        self._limit.report()
        self._end_pool()
        if self._background is None and not self._ahead:
            self._writer.adopt(self._objects)
            self._objects, self._size = {}, 0
            return
        self._hand_over_all()
        if self._background is not None:
            self._background.end()
            if self._ahead:
                self._background.finish()
            else:
                self._writer.wait_for(self._background.finish)
            self._background = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_pool()  # first: it may wait for the background thread
        if self._background is not None:
            self._background.drop()

    def _read_batch(self, directories: Sequence[DirectoryRequest]) -> list[ReadResult]:
        if len(self._objects) >= self._batch_files:
            self._hand_over()
        return self._entries.read_below(self._root, directories)

    def _add(self, name: str, packed: PlainObject) -> None:
        self._objects[name] = packed
        self._size += packed.size
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        objects, self._objects, self._size = self._objects, {}, 0
        self._writer_thread().store(objects)

    def _hand_over_all(self) -> None:
        if self._objects:
            self._hand_over()
        self._hand_over_packed()

    def _writer_thread(self) -> BackgroundWriter:
        if self._background is None:
            with block_forks():
                from agent_checkpoint.workspace.scan.reading.background_writer import (
                    BackgroundWriter,  # slow to load, seldom needed
                )

            self._background = BackgroundWriter(self._writer)
        return self._background

    def _queue(self) -> ReadPool:
        if self._pool is None:
            with block_forks():
                from agent_checkpoint.workspace.scan.reading.read_pool import (
                    ReadPool,  # slow to load, seldom needed
                )

            self._pool = ReadPool(self._receive)
        return self._pool

    def _start_processes(self) -> None:
        self._has_processes = True
        self._queue().start(self._root, lambda: self._writer_thread().compression)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _receive(self, objects: Mapping[str, bytes]) -> None:
        """Store objects of a reader process; called by threads of the pool."""
        with self._packed_lock:
            self._packed.update(objects)
            self._packed_size += sum(map(len, objects.values()))
            if len(self._packed) < self._batch_files and self._packed_size < _BATCH_BYTES:
                return
        self._hand_over_packed()

    def _hand_over_packed(self) -> None:
        with self._packed_lock:
            batch, self._packed, self._packed_size = self._packed, {}, 0
        if batch:
            self._writer_thread().store_packed(batch)

    @property
    def _batch_files(self) -> int:
        """The size of a batch: each one rewrites much of the index of a database."""
        return max(_BATCH_FILES, self.count // _BATCHES)
