"""What changed between two states. Owns exact comparison of values and the paths of differences."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

from agent_checkpoint.core.trouble import key_piece

Changes = dict[str, dict[str, Any]]
_ABSENT = object()


def diff_states(old: Any, new: Any, *, deep: bool = False) -> Changes:
    """Return `{"added": …, "removed": …, "changed": {name: (old, new)}}`.

    Values are compared exactly: 1, 1.0 and True differ, NaN equals NaN.

    Args:
        old: the state before.
        new: the state after.
        deep: name paths inside values (`memory[2].role`) instead of whole fields.
    """
    changes: Changes = {"added": {}, "removed": {}, "changed": {}}
    for path, before, after in _walk("", old, new, deep, 0):
        name = path.lstrip(".")
        if before is _ABSENT:
            changes["added"][name] = after
        elif after is _ABSENT:
            changes["removed"][name] = before
        else:
            changes["changed"][name] = (before, after)
    return changes


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are exactly alike, types included but not the order of dicts."""
    try:
        return _same(a, b)
    except RecursionError:
        return False  # objects that refer to each other: counted as changed


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)  # NaN like NaN, 0.0 unlike -0.0
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and _same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "dtype") and hasattr(a, "tobytes"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if getattr(type(a), "__eq__", None) is object.__eq__ and hasattr(a, "__dict__"):
        return _same(vars(a), vars(b))
    try:
        return bool(a == b)
    except Exception:
        return False  # a value that cannot be compared counts as changed


def _walk(path: str, old: Any, new: Any, deep: bool, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if same(old, new):
        return
    if depth and not deep:
        yield path, old, new
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from _walk_names(path, old, new, deep, depth)
    elif isinstance(old, (list, tuple)) and type(old) is type(new):
        yield from _walk_items(path, old, new, deep, depth)
    elif dataclasses.is_dataclass(old) and type(old) is type(new) and not isinstance(old, type):
        yield from _walk_names(path, vars(old), vars(new), deep, depth)
    else:
        yield path, old, new


def _walk_names(
    path: str, old: dict[Any, Any], new: dict[Any, Any], deep: bool, depth: int
) -> Iterator[tuple[str, Any, Any]]:
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        name = path + (key_piece(key) if depth or not isinstance(key, str) else key)
        if before is _ABSENT or after is _ABSENT:
            yield name, before, after
        else:
            yield from _walk(name, before, after, deep, depth + 1)


def _walk_items(
    path: str, old: Any, new: Any, deep: bool, depth: int
) -> Iterator[tuple[str, Any, Any]]:
    # What is alike at both ends is left out, so that an append or a trim shows as just that.
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
