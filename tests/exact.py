"""An exact comparison of values that is not the library's own, and the way through JSON text."""

import dataclasses
import math
import struct
from collections import deque
from datetime import date, datetime, time, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import numpy
import pydantic

from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.objects.splitting import inline_tree


def through_json(value: Any, target: Any = None) -> Any:
    """Return the value after it was written as JSON text and read again.

    `target` is an agent whose type hints vouch for types; the value is then its field `value`.
    """
    if target is None:
        return decode_state(as_json({"value": value}), "agent")["value"]
    target.value = value
    return decode_state(as_json(target), "agent", target)["value"]


def decode_state(tree: Any, path: str, target: Any = None, *, trust_pickle: bool = False) -> Any:
    """Return the state of a tree that is whole."""
    return decode_part(tree, path, target, trust_pickle=trust_pickle).value


def as_json(subject: Any) -> Any:
    """Return the state of an agent or a dict as the tree that is read back from its text."""
    return read_json(write_json(inline_tree(encode_state(subject, "agent"))))


def alike(a: Any, b: Any, *, ordered: bool = True) -> bool:
    """Tell whether two values are the same in type and content; NaN is like NaN.

    `ordered=False` leaves the order of dicts out, as a diff does.
    """
    if type(a) is not type(b):
        return False

    def same(x: Any, y: Any) -> bool:
        return alike(x, y, ordered=ordered)

    if isinstance(a, Enum):
        return a is b
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        return _same_array(a, b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, (datetime, time)):
        parts = [(x.replace(tzinfo=None, fold=0), x.fold) for x in (a, b)]
        return parts[0] == parts[1] and same(a.tzinfo, b.tzinfo)
    if isinstance(a, timezone):
        return a.utcoffset(None) == b.utcoffset(None) and a.tzname(None) == b.tzname(None)
    if isinstance(a, ZoneInfo):
        return a.key == b.key
    if isinstance(a, date):
        return a == b
    if isinstance(a, (set, frozenset)):
        return _same_unordered(list(a), list(b), same)
    if isinstance(a, dict):
        if getattr(a, "default_factory", None) is not getattr(b, "default_factory", None):
            return False
        mine, theirs = list(a.items()), list(b.items())
        return same(mine, theirs) if ordered else _same_unordered(mine, theirs, same)
    if isinstance(a, (list, tuple, deque)):
        if getattr(a, "maxlen", None) != getattr(b, "maxlen", None) or len(a) != len(b):
            return False
        return all(same(x, y) for x, y in zip(a, b))
    fields = _fields(a)
    return bool(a == b) if fields is None else same(fields, _fields(b))


def _same_array(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if isinstance(a, numpy.ndarray) and a.flags.f_contiguous != b.flags.f_contiguous:
        return False
    if a.dtype.names:  # the bytes between fields mean nothing
        return all(_same_array(a[name], b[name]) for name in a.dtype.names)
    return bool(a.tobytes() == b.tobytes())


def _same_unordered(a: "list[Any]", b: "list[Any]", same: Any) -> bool:
    left = list(b)
    for x in a:
        place = next((index for index, y in enumerate(left) if same(x, y)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
    elif isinstance(value, pydantic.BaseModel):
        private = getattr(value, "__pydantic_private__", None)
        return [dict(vars(value)), set(value.model_fields_set), value.model_extra, private]
    else:
        return None
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
