"""A thread that packs and stores objects while the walk goes on. Owns it, and what waits for it.

Python runs one thread at a time, but for what is done outside of it: packing much at once, and the
work of a database. So only that is handed over. Two threads that both open, read and hash files
wait for each other longer than they work.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import Queue

from agent_checkpoint.store.objects.object_format import PlainObject
from agent_checkpoint.store.objects.writer import Writer

_WAITING = 2
_PACKED_HERE = 4096
"""Shorter ones are packed sooner than they are handed over."""


class Storing:
    """Stores batches of objects that refer to nothing ahead of the entry, in order."""

    def __init__(self, writer: Writer) -> None:
        """Start the thread.

        Args:
            writer: of the store that it is for.

        Raises:
            FormatError: this installation may not write there.
            StorageError: the medium failed.
        """
        self._writer = writer
        self._compression = writer.compression()
        self._batches: Queue[Mapping[str, bytes | PlainObject] | None] = Queue(_WAITING)
        self._error: BaseException | None = None
        self._is_over = False
        self._thread = threading.Thread(
            target=self._run, name="agent-checkpoint-storing", daemon=True
        )
        self._thread.start()

    def store(self, objects: Mapping[str, PlainObject]) -> None:
        """Have the store take those of the objects that it lacks, now or later.

        Raises:
            StorageError: the medium failed, for these or for earlier ones.
        """
        self._check()
        lost = self._writer.missing_from_store(objects)
        self._batches.put(
            {
                name: packed.stored(self._compression) if packed.size < _PACKED_HERE else packed
                for name, packed in objects.items()
                if name in lost
            }
        )

    def finish(self) -> None:
        """Wait until everything is stored. Raises as `store` does."""
        self.close()
        self._check()

    def drop(self) -> None:
        """Store nothing more, and wait for the thread to end."""
        self._is_over = True
        self.close()

    def close(self) -> None:
        """Wait for the thread to end. Twice is fine."""
        if self._thread.is_alive():
            self._batches.put(None)
            self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            if self._error is not None or self._is_over:
                continue  # whoever hands over must not wait for ever
            try:
                self._writer.put_early(
                    {
                        name: found if isinstance(found, bytes) else found.stored(self._compression)
                        for name, found in batch.items()
                    }
                )
            except BaseException as error:  # for the thread that handed it over
                self._error = error
