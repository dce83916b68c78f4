"""A backend wrapper that counts and reports reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.cli.output import Output, ProgressCallback, format_count
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Entry

_PAUSE = 0.1
"""Seconds between two reports; the first read is reported immediately."""


class ProgressBackend(WrapperBackend):
    """A backend whose reads are counted."""

    def __init__(self, inner: Backend, tell: ProgressCallback) -> None:
        super().__init__(inner)
        self._tell = tell
        self._checkpoints = self._objects = 0
        self._told = 0.0

    def __repr__(self) -> str:
        return repr(self.inner)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return objects, and count them."""
        found = self.inner.get_objects(ids)
        self._count(objects=len(found))
        return found

    def read(self, stream: str, **which: Any) -> list[Entry]:
        """Return entries, and count those of key streams."""
        found = self.inner.read(stream, **which)
        self._count(checkpoints=len(found) if stream.startswith("key/") else 0)
        return found

    def _count(self, *, checkpoints: int = 0, objects: int = 0) -> None:
        self._checkpoints += checkpoints
        self._objects += objects
        now = time.monotonic()
        if checkpoints + objects and now - self._told >= _PAUSE:
            self._told = now
            read = (
                f"{format_count(self._checkpoints, 'checkpoint')}, "
                f"{format_count(self._objects, 'object')}"
            )
            self._tell(self._objects, read)


def describe_store(backend: Backend) -> str:
    """Return the location of a store for display: its directory, URL or repr."""
    return str(backend.properties.path or backend.properties.url or repr(backend))


@contextmanager
def progress_manager(
    location: StoreLocation,
    out: Output,
    words: str,
    *,
    counts_all: bool = False,
    must_exist: bool = False,
) -> Iterator[CheckpointManager]:
    """Open the store for a long operation, with progress on a terminal.

    Args:
        location: the location of the store.
        out: the output.
        words: the operation.
        counts_all: whether every object will be read; then the total is known.
        must_exist: as for `StoreLocation.manager`.

    Raises:
        CheckpointError: the store cannot be opened.
    """
    with location.manager(must_exist=must_exist) as manager:
        backend = manager.store.backend
        total = (lambda: sum(1 for _ in backend.list_objects())) if counts_all else None
        with out.progress(words, total) as tell:
            yield CheckpointManager(ProgressBackend(backend, tell))
