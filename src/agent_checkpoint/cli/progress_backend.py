"""A backend wrapper that reports how much was read. Owns the counts; forwards everything."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.base import NO_OBJECTS, Backend, SupportsRepack
from agent_checkpoint.cli.output import Output, ProgressCallback, format_count
from agent_checkpoint.cli.store_location import StoreLocation
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Entry, ObjectInfo

_PAUSE = 0.1
"""Seconds between two reports; the first read is reported at once."""


class ProgressBackend(Backend):
    """A backend whose reads are counted."""

    def __init__(self, inner: Backend, tell: ProgressCallback) -> None:
        self._inner = inner
        self._tell = tell
        self._checkpoints = self._objects = 0
        self._told = 0.0

    @property
    def readable(self) -> bool:  # type: ignore[override]
        """As of the wrapped backend."""
        return self._inner.readable

    @property
    def compression(self) -> str | None:  # type: ignore[override]
        """As of the wrapped backend."""
        return self._inner.compression

    @property
    def repacks(self) -> SupportsRepack | None:  # type: ignore[override]
        """As of the wrapped backend."""
        return self._inner.repacks

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """As of the wrapped backend."""
        return self._inner.shared

    @property
    def path(self) -> Path | None:
        """The directory of the wrapped backend, if it has one."""
        return getattr(self._inner, "path", None)

    def __repr__(self) -> str:
        return repr(self._inner)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return objects, and count them."""
        found = self._inner.get_objects(ids)
        self._count(objects=len(found))
        return found

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Pass on."""
        self._inner.put_objects(objects)

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Pass on."""
        return self._inner.missing_objects(ids)

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Pass on."""
        return self._inner.list_objects()

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Pass on."""
        self._inner.delete_objects(ids)

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Pass on."""
        return self._inner.append(stream, entry, after=after, objects=objects, requires=requires)

    def read(self, stream: str, **which: Any) -> list[Entry]:
        """Return entries, and count those of keys."""
        found = self._inner.read(stream, **which)
        self._count(checkpoints=len(found) if stream.startswith("key/") else 0)
        return found

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Pass on."""
        self._inner.remove(stream, seqs)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Pass on."""
        return self._inner.streams(prefix)

    def close(self) -> None:
        """Pass on."""
        self._inner.close()

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
    """Return the location of a store for display: its directory, or its repr."""
    return str(getattr(backend, "path", None) or repr(backend))


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
