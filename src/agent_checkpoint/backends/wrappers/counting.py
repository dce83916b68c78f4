"""A wrapper that counts calls, objects, entries and bytes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Backend,
    BackendProperties,
    Changes,
    ObjectScan,
)
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.backends.wrappers.url_options import with_options
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Entry, ObjectInfo

T = TypeVar("T")


class CallCount(NamedTuple):
    """What the calls of one method transferred."""

    calls: int = 0
    """The number of calls, also of those that raised: each is at least one round trip."""
    objects: int = 0
    """The number of objects and of ids, sent or returned."""
    entries: int = 0
    """The number of entries, sent or returned; for `streams` the number of names."""
    bytes: int = 0
    """The bytes of these objects and entries, as the wrapped backend has them."""


class CountingBackend(WrapperBackend):
    """Counts what passes through it, by method; all methods are thread-safe."""

    def __init__(self, inner: Backend) -> None:
        """Wrap a backend, with all counts at zero."""
        super().__init__(inner)
        self._lock = threading.Lock()
        self._counts: dict[str, CallCount] = {}

    @property
    def properties(self) -> BackendProperties:
        """Those of the wrapped backend, with `count=1` in the URL."""
        inner = self.inner.properties
        return inner._replace(url=with_options(inner.url, count=1))

    @property
    def counts(self) -> dict[str, CallCount]:
        """A copy of the counts, by the name of the method; a method without calls is missing."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> CallCount:
        """The sum of the counts of all methods."""
        return CallCount(*map(sum, zip(*self.counts.values())))

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._counts.clear()

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward, and count the objects."""
        self._count("put_objects", calls=1, objects=len(objects), bytes=_size(objects.values()))
        self.inner.put_objects(objects)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Forward, and count the returned objects."""
        self._count("get_objects", calls=1)
        found = self.inner.get_objects(ids)
        self._count("get_objects", objects=len(found), bytes=_size(found.values()))
        return found

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Forward, and count the ids."""
        wanted = list(ids)
        self._count("missing_objects", calls=1, objects=len(wanted))
        return self.inner.missing_objects(wanted)

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Forward, and count the objects of an iteration; their bytes are not transferred."""
        self._count("list_objects", calls=1)
        return self._each("list_objects", self.inner.list_objects(), "objects")

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Forward, and count the ids."""
        size = len(ids) if isinstance(ids, Collection) else 0
        self._count("delete_objects", calls=1, objects=size)
        if not size:
            ids = self._each("delete_objects", ids, "objects")
        self.inner.delete_objects(ids)

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Forward, and count the found ids."""
        self._count("find_objects", calls=1)
        scan = self.inner.find_objects(first, position)
        self._count("find_objects", objects=len(scan.ids))
        return scan

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward, and count the objects."""
        self._count("replace_objects", calls=1, objects=len(objects), bytes=_size(objects.values()))
        self.inner.replace_objects(objects)

    # -- streams ---------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Forward, and count the entry and its new objects."""
        size = len(entry) + _size(objects.values())
        self._count("append", calls=1, objects=len(objects), entries=1, bytes=size)
        return self.inner.append(stream, entry, after=after, objects=objects, requires=requires)

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Forward, and count the returned entries."""
        self._count("read", calls=1)
        found = self.inner.read(
            stream, before=before, after=after, limit=limit, newest_first=newest_first
        )
        self._count("read", entries=len(found), bytes=_size(entry.data for entry in found))
        return found

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Forward, and count the numbers."""
        doomed = list(seqs)
        self._count("remove", calls=1, entries=len(doomed))
        self.inner.remove(stream, doomed)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Forward, and count the names of an iteration."""
        self._count("streams", calls=1)
        return self._each("streams", self.inner.streams(prefix), "entries")

    # -- the rest --------------------------------------------------------------------------------

    def scrub(self) -> None:
        """Forward, and count the call."""
        self._count("scrub", calls=1)
        self.inner.scrub()

    def is_replaced(self) -> bool:
        """Forward, and count the call."""
        self._count("is_replaced", calls=1)
        return self.inner.is_replaced()

    def changes(self, position: Any = None) -> Changes:
        """Forward, and count the names and objects of the iterations."""
        self._count("changes", calls=1)
        found = self.inner.changes(position)
        return Changes(
            self._each("changes", found.streams, "entries"),
            self._each("changes", found.objects, "objects"),
            found.position,
        )

    def _each(self, method: str, items: Iterable[T], unit: str) -> Iterator[T]:
        """Iterate over items, and count them at the end."""
        number = 0
        try:
            for item in items:
                number += 1
                yield item
        finally:
            self._count(method, **{unit: number})

    def _count(
        self, method: str, *, calls: int = 0, objects: int = 0, entries: int = 0, bytes: int = 0
    ) -> None:
        with self._lock:
            so_far = self._counts.get(method, CallCount())
            added = (calls, objects, entries, bytes)
            self._counts[method] = CallCount(*map(sum, zip(so_far, added)))


def _size(contents: Iterable[bytes]) -> int:
    return sum(map(len, contents))
