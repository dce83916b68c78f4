"""The in-memory backend. Its data is lost when the process ends."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping

from agent_checkpoint.backends.base import NO_OBJECTS, Backend, BackendProperties, check_newest
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Entry, ObjectInfo, check_object_id, check_stream


class MemoryBackend(Backend):
    """Objects and streams in dicts, protected by one lock."""

    _properties: BackendProperties | None = None

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._streams: dict[str, dict[int, bytes]] = {}
        self._last: dict[str, int] = {}
        _backends.add(self)

    @property
    def properties(self) -> BackendProperties:
        """Built once: every save reads it several times."""
        if self._properties is None:
            self._properties = super().properties._replace(is_local=True)
        return self._properties

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store the objects. Raises InvalidInputError for a malformed id."""
        now = time.time()
        checked = {check_object_id(name): bytes(data) for name, data in objects.items()}
        with self._lock:
            for name, data in checked.items():
                self._objects.setdefault(name, (data, now))

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects."""
        with self._lock:
            return {name: self._objects[name][0] for name in ids if name in self._objects}

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored."""
        with self._lock:
            return {name for name in ids if name not in self._objects}

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over a snapshot of the objects."""
        with self._lock:
            found = [ObjectInfo(name, len(data), ts) for name, (data, ts) in self._objects.items()]
        return iter(found)

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects under the lock."""
        with self._lock:
            for name in list(ids):  # consume it first: if it raises, nothing is deleted
                self._objects.pop(name, None)

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Append under the lock. Raises ConflictError and MissingObjectsError."""
        check_stream(stream)
        with self._lock:
            present = self._streams.get(stream, {})
            check_newest(stream, next(reversed(present), 0), after)
            missing = self.missing_objects(requires)
            if missing:
                raise MissingObjectsError(missing)
            self.put_objects(objects)
            seq = self._last.get(stream, 0) + 1
            # Number first: a process forked in between must not reuse it.
            self._last[stream] = seq
            self._streams.setdefault(stream, {})[seq] = bytes(entry)
            return seq

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the selected entries."""
        with self._lock:
            present = self._streams.get(stream, {})
            # Numbers only rise, so insertion order is numeric order.
            seqs = reversed(present) if newest_first else iter(present)
            found: list[Entry] = []
            for seq in seqs:
                if limit is not None and len(found) >= limit:
                    break
                if (before is None or seq < before) and (after is None or seq > after):
                    found.append(Entry(seq, present[seq]))
            return found

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove the entries."""
        with self._lock:
            present = self._streams.get(stream, {})
            for seq in seqs:
                present.pop(seq, None)
            if not present:
                self._streams.pop(stream, None)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over a snapshot of the stream names."""
        with self._lock:
            # A process forked during an append or a removal may have an empty stream.
            return iter(
                [name for name, has in self._streams.items() if has and name.startswith(prefix)]
            )

    def close(self) -> None:
        """Do nothing. The memory is freed with the backend object."""


_backends: weakref.WeakSet[MemoryBackend] = weakref.WeakSet()


def _renew_locks() -> None:
    # A lock that another thread held at the fork would stay locked in the child. The dicts are
    # consistent at every step of every method.
    for backend in list(_backends):
        backend._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
