"""Cache of verified objects in memory. Owns what is cached, and how much.

The name of an object is the hash of its content, so entries are never stale. Arrays of long lists
are cached parsed, in a form that is faster to copy than their text is to parse.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

from agent_checkpoint.store.objects.object_format import Object

CACHE_BYTES = 1 << 25

_SCALARS = frozenset({str, int, float, bool, type(None)})


class ObjectCache:
    """Objects and parsed arrays by name, with two-generation eviction.

    A hit moves an item to the young generation. When that is full it becomes the old one, and the
    old one is dropped. Threads need no lock: every step is a single atomic operation of Python.
    """

    def __init__(self) -> None:
        self._young: dict[str, tuple[Any, int]] = {}
        self._old: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def get(self, name: str) -> Any:
        """Return the item of this name, or None."""
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
        """Return whether an array was read before: one that is read once is not worth a copy."""
        mark = "asked " + name
        if self.get(mark) is not None:
            return True
        self._put(mark, (True, 64))
        return False

    def put_array(self, name: str, items: list[Any], size: int) -> None:
        """Cache a copy of the parsed items of an array whose text has `size` bytes."""
        self._put("array " + name, (_copier(items), size))

    def get_array(self, name: str) -> list[Any] | None:
        """Return a fresh copy of the items of an array, or None if it is not cached."""
        copy = self.get("array " + name)
        return None if copy is None else copy()

    def _put(self, name: str, item: tuple[Any, int]) -> None:
        self._young[name] = item
        self._size += item[1]
        if self._size > CACHE_BYTES // 2:
            self._old, self._young, self._size = self._young, {}, 0


def _copier(items: list[Any]) -> Callable[[], list[Any]]:
    """Return a function that copies plain JSON items, the fastest that fits them."""
    if all(type(item) in _SCALARS for item in items):
        kept = list(items)
        return lambda: list(kept)
    if all(type(item) is dict and _SCALARS.issuperset(map(type, item.values())) for item in items):
        kept = [item.copy() for item in items]
        return lambda: [item.copy() for item in kept]
    packed = marshal.dumps(items)
    return lambda: marshal.loads(packed)  # noqa: S302 - made just above, and never stored
