"""A backend that counts, and one that lets others in at chosen moments."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Optional

from agent_checkpoint import MemoryBackend
from agent_checkpoint.backends.base import NO_OBJECTS


class CountingBackend(MemoryBackend):
    """Counts calls, and the objects and bytes that each append brings."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.appended: list[tuple[int, int]] = []
        """For each append to a key: the number of new objects, and the bytes of all of it."""

    def get_objects(self, ids: Iterable[str]) -> "dict[str, bytes]":
        self.calls.append("get_objects")
        return super().get_objects(ids)

    def missing_objects(self, ids: Iterable[str]) -> "set[str]":
        self.calls.append("missing_objects")
        return super().missing_objects(ids)

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: Optional[int] = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        calls = list(self.calls)
        seq = super().append(stream, entry, after=after, objects=objects, requires=requires)
        self.calls = calls  # what the memory backend asks itself costs nothing
        if stream.startswith("key/"):
            self.appended.append((len(objects), len(entry) + sum(map(len, objects.values()))))
        return seq


class HookedBackend(MemoryBackend):
    """Calls something once, just before an append or after objects were put, or fails there."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.before_append: Optional[Callable[[], Any]] = None
        self.after_put: Optional[Callable[[], Any]] = None
        self.in_sweep: Optional[Callable[[], Any]] = None

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        super().put_objects(objects)
        if objects and self.after_put is not None:
            hook, self.after_put = self.after_put, None
            hook()

    def append(self, stream: str, entry: bytes, **options: Any) -> int:
        self.appends += 1
        if self.before_append is not None and stream.startswith("key/"):
            hook, self.before_append = self.before_append, None
            hook()
        return super().append(stream, entry, **options)

    def delete_objects(self, ids: Iterable[str]) -> None:
        def hooked() -> Iterator[str]:
            if self.in_sweep is not None:
                hook, self.in_sweep = self.in_sweep, None
                hook()
            yield from ids

        super().delete_objects(hooked())
