"""The classes in the type hints of a class.

The codec encodes values of these classes field by field, without registration. When a state is
decoded, its type names are looked up in the hints of the class being loaded.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

_cache: WeakKeyDictionary[type, Mapping[str, type]] = WeakKeyDictionary()


def hinted_types(cls: type) -> Mapping[str, type]:
    """Return the classes in the type hints of a class, recursively, by name.

    A name shared by two classes is ambiguous and omitted.
    """
    known = _cache.get(cls)
    if known is None:
        known = _cache[cls] = MappingProxyType(_collect(cls))
    return known


def _collect(root: type) -> dict[str, type]:
    found: dict[str, type] = {}
    ambiguous: set[str] = set()
    seen = {root}
    queue = [root]
    while queue:
        for hint in _hints(queue.pop()):
            for cls in _classes_in(hint):
                if cls in seen or cls.__module__ == "builtins":
                    continue
                seen.add(cls)
                queue.append(cls)
                if found.setdefault(cls.__name__, cls) is not cls:
                    ambiguous.add(cls.__name__)
    return {name: cls for name, cls in found.items() if name not in ambiguous}


def _hints(cls: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(cls).values())
    except Exception:
        # An annotation that cannot be evaluated (a name under TYPE_CHECKING) must not hide the
        # others.
        return [hint for base in cls.__mro__ for hint in _one_by_one(base)]


def _one_by_one(cls: type) -> Iterator[Any]:
    scope = dict(vars(sys.modules.get(cls.__module__, typing)))
    for hint in getattr(cls, "__annotations__", {}).values():
        holder = type(cls.__name__, (), {"__annotations__": {"hint": hint}})
        with suppress(Exception):
            yield typing.get_type_hints(holder, scope, dict(vars(cls)))["hint"]


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        if isinstance(part, list):  # the parameters of a Callable
            continue
        yield from _classes_in(part)
