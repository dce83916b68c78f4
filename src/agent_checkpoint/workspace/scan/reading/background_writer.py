"""A background thread that compresses and stores objects during the walk. Owns its queue.

Compression of large objects and database writes release the GIL, so only these run in the thread.
Two threads that both open, read and hash files would mostly wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from threading import Semaphore, Thread

from agent_checkpoint.store.objects.object_format import PlainObject
from agent_checkpoint.store.objects.writer import Writer

_QUEUED_BATCHES = 2
_COMPRESSED_IN_THREAD_FROM = 4096
"""Smaller objects are compressed by the caller, because passing them to the thread costs more."""


class BackgroundWriter:
    """Stores batches of objects without references, in order, before the checkpoint."""

    def __init__(self, writer: Writer) -> None:
        """Start the thread.

        Args:
            writer: the writer of the store.

        Raises:
            FormatError: this version cannot write the format of the store.
            StorageError: the medium failed.
        """
        self._writer = writer
        self.compression = writer.compression()
        """The compression of the stored objects."""
        self._batches: SimpleQueue[Mapping[str, bytes | PlainObject] | None] = SimpleQueue()
        self._room = Semaphore(_QUEUED_BATCHES)
        self._error: BaseException | None = None
        self._is_dropped = False
        self._thread = Thread(target=self._run, name="agent-checkpoint-storing", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # as by Ctrl-C, when it may run already
            self.end()
            raise

    def store(self, objects: Mapping[str, PlainObject]) -> None:
        """Queue the objects that the store lacks.

        Raises:
            StorageError: the medium failed, for these objects or for earlier ones.
        """
        self._check()
        missing = self._writer.missing_from_store(objects)
        self._put(
            {
                name: packed.stored(self.compression)
                if packed.size < _COMPRESSED_IN_THREAD_FROM
                else packed
                for name, packed in objects.items()
                if name in missing
            }
        )

    def store_packed(self, objects: Mapping[str, bytes]) -> None:
        """Queue objects in stored form that the store lacks. Raises the same errors as `store`."""
        self._check()
        missing = self._writer.missing_from_store(objects)
        self._put({name: objects[name] for name in objects if name in missing})

    def end(self) -> None:
        """Have the thread end when all batches are stored. May be called twice."""
        self._batches.put(None)

    def finish(self) -> None:
        """Wait until all batches are stored; raises the same errors as `store`, each time."""
        self.close()
        self._check()

    def drop(self) -> None:
        """Discard the queued batches and wait for the thread to end."""
        self._is_dropped = True
        self.close()

    def close(self) -> None:
        """Wait for the thread to end. May be called twice."""
        self.end()
        self._thread.join()

    def _put(self, batch: Mapping[str, bytes | PlainObject]) -> None:
        self._room.acquire()  # the queue has no limit: `end` must not wait
        self._batches.put(batch)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._room.release()
            if self._error is not None or self._is_dropped:
                continue  # keep draining, or the caller blocks on a full queue
            try:
                self._writer.put_early(
                    {
                        name: each if isinstance(each, bytes) else each.stored(self.compression)
                        for name, each in batch.items()
                    }
                )
            except BaseException as error:  # raised in the thread of the caller
                self._error = error
