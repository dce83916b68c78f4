"""Compares two states exactly and reports the paths of the changes."""

from __future__ import annotations

import copyreg
import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from agent_checkpoint.core.codec.arrays import is_masked, is_plain, masked_content
from agent_checkpoint.core.codec.leaves import leaf_of
from agent_checkpoint.core.codec.structures import attributes
from agent_checkpoint.core.copying import copied
from agent_checkpoint.core.immutable import ImmutableDict, ImmutableList
from agent_checkpoint.core.log import Log, raw_items
from agent_checkpoint.core.path_errors import key_segment
from agent_checkpoint.errors import StateError
from agent_checkpoint.records import Changes, ChangeTable, safe_repr

_ABSENT = object()
_PLAIN = frozenset({bool, int, str, bytes, bytearray})
_MUTABLE: dict[type, type] = {ImmutableDict: dict, ImmutableList: list}
"""The types that items of logs are compared as."""


def diff_states(old: Any, new: Any, *, deep: bool = False) -> Changes:
    """Return `{"added": …, "removed": …, "changed": {name: (old, new)}}`.

    Values are compared exactly: 1, 1.0 and True differ, NaN equals NaN.

    Args:
        old: the state before.
        new: the state after.
        deep: report paths inside values (`memory[2].role`) instead of whole fields.

    Raises:
        StateError: the states are nested too deeply.
    """
    changes = ChangeTable()
    try:
        found = list(_walk("", old, new, deep, 0))
    except RecursionError:
        raise StateError("The states are nested too deeply to compare.") from None
    for path, *values in found:
        before, after = map(_plain, values)
        if before is _ABSENT:
            changes["added"][path] = after
        elif after is _ABSENT:
            changes["removed"][path] = before
        else:
            changes["changed"][path] = (before, after)
    return changes


def same(a: Any, b: Any) -> bool:
    """Return whether two values are identical, types included; the order of dicts is ignored."""
    try:
        return _same(a, b)
    except RecursionError:
        return False  # cyclic objects count as changed


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    kind = _kind(a)
    if kind is not _kind(b):
        return False
    if kind in _PLAIN:
        return bool(a == b)
    if kind is float:
        return repr(a) == repr(b)  # NaN equals NaN; 0.0 differs from -0.0
    if kind is Log:
        a, b, kind = raw_items(a), raw_items(b), list
    if kind is list or kind is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if kind is dict or kind is set or kind is frozenset:
        return len(a) == len(b) and all(
            mine is not _ABSENT
            and theirs is not _ABSENT
            and (kind is not dict or _same(a[mine], b[theirs]))
            for mine, theirs in _partners(a, b)
        )
    leaf = leaf_of(kind)
    text = None if leaf is None else leaf.encode(a)
    if leaf is not None and text is not None:
        return _same(text, leaf.encode(b))  # compare what is stored: == ignores fold and zone
    if is_plain(a):
        return _same_arrays(a, b)
    content = _content(a)
    if content is not None:
        return _same(content, _content(b))
    try:
        return bool(a == b)
    except Exception:
        return False  # an incomparable value counts as changed


def _kind(value: Any) -> type:
    kind = type(value)
    return _MUTABLE.get(kind, kind)


def _plain(value: Any) -> Any:
    """Return a value for a report; an item of a log as a plain copy."""
    return copied(value) if type(value) in _MUTABLE else value


def _content(value: Any) -> list[Any] | None:
    """Return what pickle would store for a value, one level deep; None to compare with `==`.

    The `==` of many classes treats 1 as True and NaN as unequal, or compares identities. The bytes
    of two pickles depend on sharing inside the values, so they cannot be compared either.
    """
    kind: Any = type(value)
    if kind is object or isinstance(value, type):
        return None
    if isinstance(value, (set, frozenset)):  # pickled as a list, in any order
        return [set(value), attributes(value)]
    if is_masked(value):
        return masked_content(value)
    try:
        reduce: Any = copyreg.dispatch_table.get(kind)
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):  # the name of a global
            return None
        parts: list[Any] = [*reduced, None, None, None]
        make, args, state, items, pairs = parts[:5]
        listed, paired = list(items or ()), list(pairs or ())
    except Exception:
        return None
    empty = args in ((), (kind,)) and state is None and not listed and not paired
    if empty and kind.__eq__ is not object.__eq__:
        return None  # no content, but the class defines a comparison
    return [make, args, state, listed, paired if isinstance(value, OrderedDict) else dict(paired)]


def _partners(old: Iterable[Any], new: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Pair identical keys; a key without a counterpart is paired with `_ABSENT`.

    A dict lookup would treat 1 as True, and would not find NaN.
    """
    left = {key: key for key in new}
    alone = []
    for key in old:
        partner = left.get(key, _ABSENT)
        if partner is not _ABSENT and _same(key, partner):
            del left[key]
            yield key, partner
        else:
            alone.append(key)
    candidates: dict[Any, list[Any]] = {}
    for key in left if alone else ():
        candidates.setdefault(_rough(key), []).append(key)
    for key in alone:
        found = candidates.get(_rough(key), [])
        place = next((index for index, other in enumerate(found) if _same(key, other)), None)
        if place is None:
            yield key, _ABSENT
        else:
            partner = found.pop(place)
            del left[partner]
            yield key, partner
    for partner in left:
        yield _ABSENT, partner


def _rough(key: Any) -> Any:
    """Return a bucket key: equal for identical keys, so that only few keys are compared."""
    kind = type(key)
    if kind is tuple:
        return tuple(map(_rough, key))
    is_scalar = kind in _PLAIN or kind is float or leaf_of(kind) is not None
    return safe_repr(key) if is_scalar else kind


def _same_arrays(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.names:  # padding between fields is meaningless
        return all(_same(a[name], b[name]) for name in a.dtype.names)
    if a.dtype.hasobject:  # its bytes are pointers
        return _same(a.tolist(), b.tolist())
    if a.dtype.char in "gG":  # a long double has padding bytes
        return repr(a.ravel().tolist()) == repr(b.ravel().tolist())
    return bool(a.tobytes() == b.tobytes())


def _walk(path: str, old: Any, new: Any, deep: bool, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if same(old, new):
        return
    below: list[tuple[str, Any, Any]] = []
    if depth == 0 or deep:
        below = list(_below(path, old, new, deep, depth))
    # Containers may differ in more than their content: a dict and an OrderedDict, say.
    if below or (depth == 0 and isinstance(old, dict) and isinstance(new, dict)):
        yield from below
    else:
        yield path, old, new


def _below(path: str, old: Any, new: Any, deep: bool, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _walk_names(path, old, new, deep, depth)
    elif hasattr(old, "_asdict") and type(old) is type(new):
        yield from _walk_names(path, old._asdict(), new._asdict(), deep, depth)
    elif isinstance(old, Log) and isinstance(new, Log):
        yield from _walk_items(path, raw_items(old), raw_items(new), deep, depth)
    elif isinstance(old, (list, tuple)) and _kind(old) is _kind(new):
        yield from _walk_items(path, old, new, deep, depth)
    elif dataclasses.is_dataclass(old) and type(old) is type(new) and not isinstance(old, type):
        yield from _walk_names(path, attributes(old), attributes(new), deep, depth)


def _walk_names(
    path: str, old: dict[Any, Any], new: dict[Any, Any], deep: bool, depth: int
) -> Iterator[tuple[str, Any, Any]]:
    for mine, theirs in _partners(old, new):
        key = theirs if mine is _ABSENT else mine
        if depth == 0 and isinstance(key, str) and (not deep or key.isidentifier()):
            name = key
        else:
            name = path + key_segment(key, whole=True)
        if mine is _ABSENT:
            yield name, _ABSENT, new[theirs]
        elif theirs is _ABSENT:
            yield name, old[mine], _ABSENT
        else:
            yield from _walk(name, old[mine], new[theirs], deep, depth + 1)


def _walk_items(
    path: str, old: Any, new: Any, deep: bool, depth: int
) -> Iterator[tuple[str, Any, Any]]:
    # Skip equal items at both ends, so that an append or a trim is reported as such.
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and same(old[-1 - end], new[-1 - end]):
        end += 1
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    for index in range(max(len(before), len(after))):
        name = f"{path}[{start + index}]"
        if index >= len(before):
            yield name, _ABSENT, after[index]
        elif index >= len(after):
            yield name, before[index], _ABSENT
        else:
            yield from _walk(name, before[index], after[index], deep, depth + 1)
