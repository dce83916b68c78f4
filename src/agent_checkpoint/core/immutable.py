"""Immutable dicts and lists: the items of a log. Knows nothing of logs.

They are real dicts and lists, so that JSON encoders, client libraries and validators accept them.
A copy of one is a plain dict or list. Code that bypasses their methods, such as `heapq` or
`dict.__setitem__(item, …)`, can change them: a save would have to compare all items to find this.
Logs share them with their copies and with later loads.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, NoReturn

from agent_checkpoint.errors import ImmutableError


def _refuse(self: Any, *args: Any, **options: Any) -> NoReturn:
    raise ImmutableError(
        "Items read from a Log are immutable: saves do not read old items again, so a change would "
        "be lost on resume. Replace the last item with log[-1] = item, or change a copy from "
        "log.to_list() or copy.deepcopy(item)."
    )


class ImmutableDict(dict[Any, Any]):
    """A dict that raises ImmutableError instead of changing; see `immutable_dict`."""

    __slots__ = ()
    __init__ = __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[dict[Any, Any]]]:
        return dict, (dict(self),)


class ImmutableList(list[Any]):
    """A list that raises ImmutableError instead of changing; see `immutable_list`."""

    __slots__ = ()
    __init__ = __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)


def immutable_dict(items: dict[Any, Any]) -> ImmutableDict:
    """Return an immutable dict. Its class refuses to be called, as `item.__init__(…)` is."""
    new: ImmutableDict = ImmutableDict.__new__(ImmutableDict)
    dict.update(new, items)
    return new


def immutable_list(items: Iterable[Any]) -> ImmutableList:
    """Return an immutable list."""
    new: ImmutableList = ImmutableList.__new__(ImmutableList)
    list.extend(new, items)
    return new


def immutable_json(items: list[Any]) -> list[Any]:
    """Return the items of a parsed JSON array with immutable dicts and lists.

    Uses up `items`. Most of the work is done by C code, for many items at a time.
    """
    kinds = set(map(type, items))
    if kinds.isdisjoint(_CONTAINERS):
        return items
    if kinds != {dict}:
        return [_immutable_value(item) for item in items]
    if not _CONTAINERS.isdisjoint(map(type, chain.from_iterable(map(dict.values, items)))):
        for item in items:
            _make_values_immutable(item)
    done = list(map(dict.__new__, repeat(ImmutableDict, len(items))))
    deque(map(dict.update, done, items), maxlen=0)
    return done


_CONTAINERS = frozenset({dict, list})


def _immutable_value(value: Any) -> Any:
    if type(value) is list:
        return immutable_list(immutable_json(value))
    if type(value) is dict:
        _make_values_immutable(value)
        return immutable_dict(value)
    return value


def _make_values_immutable(members: dict[str, Any]) -> None:
    for key, value in members.items():
        if type(value) in _CONTAINERS:
            members[key] = _immutable_value(value)
