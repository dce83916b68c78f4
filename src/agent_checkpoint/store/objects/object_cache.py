"""In-memory cache of verified objects. Owns its size limit and eviction.

An object id is the hash of the content, so cached objects are never stale. Arrays of long lists
are cached in parsed form: copying them is faster than parsing the JSON again.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

from agent_checkpoint.store.objects.object_format import Object

CACHE_BYTES = 1 << 25

_SCALARS = frozenset({str, int, float, bool, type(None)})


class ObjectCache:
    """Objects and parsed arrays by object id, with two-generation eviction.

    A hit moves an item to the young generation. When the young generation is full, it becomes the
    old generation, and the previous old generation is dropped. Thread-safe without a lock: every
    step is a single atomic operation in Python.
    """

    def __init__(self) -> None:
        self._young: dict[str, tuple[Any, int]] = {}
        self._old: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def get(self, name: str) -> Any:
        """Return the cached item, or None."""
        item = self._young.get(name)
        if item is None:
            item = self._old.get(name)
            if item is None:
                return None
            self._put(name, item)
        return item[0]

    def put_object(self, name: str, item: Object) -> None:
        """Cache an object."""
        self._put(name, (item, len(item.payload) + 64 * len(item.refs)))

    def is_wanted_again(self, name: str) -> bool:
        """Return whether an array was read before. Arrays are cached at the second read only."""
        mark = "asked " + name
        if self.get(mark) is not None:
            return True
        self._put(mark, (True, 64))
        return False

    def put_array(self, name: str, items: list[Any], size: int, *, is_shared: bool = False) -> None:
        """Cache a copy of the parsed items of an array, which counts as `size` bytes.

        With `is_shared`, cache the items themselves, which are immutable.
        """
        prefix, copy = ("shared ", lambda: items) if is_shared else ("array ", _copier(items))
        self._put(prefix + name, (copy, size))

    def get_array(self, name: str, *, is_shared: bool = False) -> list[Any] | None:
        """Return a copy of the items of an array, or None if the array is not cached.

        With `is_shared`, the immutable items themselves, in a list that must not be changed.
        """
        copy = self.get(("shared " if is_shared else "array ") + name)
        return None if copy is None else copy()

    def _put(self, name: str, item: tuple[Any, int]) -> None:
        self._young[name] = item
        self._size += item[1]
        if self._size > CACHE_BYTES // 2:
            self._old, self._young, self._size = self._young, {}, 0


def _copier(items: list[Any]) -> Callable[[], list[Any]]:
    """Return the fastest function that copies the given plain JSON items."""
    if all(type(item) in _SCALARS for item in items):
        kept = list(items)
        return lambda: list(kept)
    if all(type(item) is dict and _SCALARS.issuperset(map(type, item.values())) for item in items):
        kept = [item.copy() for item in items]
        return lambda: [item.copy() for item in kept]
    packed = marshal.dumps(items)
    return lambda: marshal.loads(packed)  # noqa: S302 - made just above, and never stored
