"""The base class of backends that wrap another one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Append,
    Backend,
    BackendProperties,
    Changes,
    ObjectScan,
)
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import Entry, ObjectInfo


def _forwarded(name: str) -> Any:
    """Return a read-only attribute with the value of a property of the wrapped backend."""
    return property(lambda self: getattr(self.properties, name), doc="As in `properties`.")


class WrapperBackend(Backend):
    """Forwards everything to another backend; a subclass overrides what it changes.

    A wrapper that changes contents, ids or stream names overrides every method that takes or
    returns them, and `properties`: with `url=None` or a URL that opens the wrapper, since other
    processes open the store by it, and with `can_repack=False` unless it overrides `find_objects`.
    """

    def __init__(self, inner: Backend) -> None:
        """Wrap a backend, which the wrapper closes."""
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def properties(self) -> BackendProperties:
        """The properties of the wrapped backend."""
        return self.inner.properties

    readable = _forwarded("readable")
    shared = _forwarded("shared")
    url = _forwarded("url")
    path = _forwarded("path")
    durability = _forwarded("durability")
    compression = _forwarded("compression")

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward."""
        self.inner.put_objects(objects)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Forward."""
        return self.inner.get_objects(ids)

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Forward."""
        return self.inner.missing_objects(ids)

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Forward."""
        return self.inner.list_objects()

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Forward."""
        self.inner.delete_objects(ids)

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Forward."""
        return self.inner.append(stream, entry, after=after, objects=objects, requires=requires)

    def append_all(self, appends: Sequence[Append]) -> list[int | CheckpointError]:
        """Forward; but one by one if a subclass has its own `append`."""
        if type(self).append is not WrapperBackend.append:
            return super().append_all(appends)
        return self.inner.append_all(appends)

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Forward."""
        return self.inner.read(
            stream, before=before, after=after, limit=limit, newest_first=newest_first
        )

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Forward."""
        self.inner.remove(stream, seqs)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Forward."""
        return self.inner.streams(prefix)

    def close(self) -> None:
        """Forward."""
        self.inner.close()

    def scrub(self) -> None:
        """Forward."""
        self.inner.scrub()

    def is_replaced(self) -> bool:
        """Forward."""
        return self.inner.is_replaced()

    def uncached(self) -> Backend:
        """Return this wrapper around the wrapped backend without its cache."""
        inner = self.inner.uncached()
        if inner is self.inner:
            return self
        wrapper = copy(self)
        wrapper.inner = inner
        return wrapper

    def changes(self, position: Any = None) -> Changes:
        """Forward; but everything if a subclass has its own `streams` or `list_objects`."""
        for name in ("streams", "list_objects"):
            if getattr(type(self), name) is not getattr(WrapperBackend, name):
                return super().changes()
        return self.inner.changes(position)

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Forward."""
        return self.inner.find_objects(first, position)

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Forward."""
        self.inner.replace_objects(objects)
