"""Objects that were read lately, and found sound. Owns what is kept in memory, and how much.

The name of an object is the hash of its content: what is kept here can never be out of date. The
arrays of long lists are kept parsed, in a form that is copied faster than text is parsed again.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

from agent_checkpoint.store.objects.object_format import Object

CACHE_BYTES = 1 << 25

_SCALARS = frozenset({str, int, float, bool, type(None)})


class ObjectCache:
    """Objects, and parsed arrays, by name; the ones not used for long are dropped.

    There are two halves. What is used moves to the young one; when that is full, it becomes the old
    one, and the old one is dropped. Threads need no lock: every step is one of Python's own.
    """

    def __init__(self) -> None:
        self._young: dict[str, tuple[Any, int]] = {}
        self._old: dict[str, tuple[Any, int]] = {}
        self._size = 0

    def get(self, name: str) -> Any:
        """Return what is kept under a name, or None."""
        found = self._young.get(name)
        if found is None:
            found = self._old.get(name)
            if found is None:
                return None
            self._put(name, found)
        return found[0]

    def put_object(self, name: str, item: Object) -> None:
        """Keep an object."""
        self._put(name, (item, len(item.payload) + 64 * len(item.refs)))

    def is_wanted_again(self, name: str) -> bool:
        """Tell whether an array was asked for before: one that is read once is not worth a copy."""
        mark = "asked " + name
        if self.get(mark) is not None:
            return True
        self._put(mark, (True, 64))
        return False

    def put_array(self, name: str, items: list[Any], size: int) -> None:
        """Keep copies of the parsed items of an array whose text has `size` bytes."""
        self._put("array " + name, (_copier(items), size))

    def get_array(self, name: str) -> list[Any] | None:
        """Return the items of an array that nobody else has, or None if they are not kept."""
        copy = self.get("array " + name)
        return None if copy is None else copy()

    def _put(self, name: str, item: tuple[Any, int]) -> None:
        self._young[name] = item
        self._size += item[1]
        if self._size > CACHE_BYTES // 2:
            self._old, self._young, self._size = self._young, {}, 0


def _copier(items: list[Any]) -> Callable[[], list[Any]]:
    """Return a function that makes copies of plain JSON items, the fastest that fits them."""
    if all(type(item) in _SCALARS for item in items):
        kept = list(items)
        return lambda: list(kept)
    if all(type(item) is dict and _SCALARS.issuperset(map(type, item.values())) for item in items):
        kept = [item.copy() for item in items]
        return lambda: [item.copy() for item in kept]
    packed = marshal.dumps(items)
    return lambda: marshal.loads(packed)  # noqa: S302 - made just above, and never stored
