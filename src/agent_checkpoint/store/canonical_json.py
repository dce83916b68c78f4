"""Canonical JSON: encodes a value to the one byte string that represents it, and decodes it.

The extra `fast` installs orjson. The bytes must be the same with and without it, because they are
hashed. The two libraries differ only in floats that may be written with an exponent; the codec
marks those as `ExponentFloat`. Does not interpret tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import repeat
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import JsonValue

_BUFFER = 4096
_SMALL_TEXT = 4096
_SMALL_ITEMS = 8
_SMALL_KINDS = frozenset({int, bool, type(None)})
_CONTROL = bytes(range(32))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


_LATER = object()
orjson: Any = _LATER
"""The module orjson of the extra `fast`; None if it is not installed, `_LATER` until it is wanted.

Importing it takes longer than writing or reading a small value.
"""


class ExponentFloat(float):
    """A float that JSON libraries write differently (`1e-07`, `1e-7`). Written as by `repr`."""

    __slots__ = ()


def exact_float(value: float) -> float:
    """Return a finite float, as an `ExponentFloat` if it may be written with an exponent."""
    if value == 0 or 1e-4 <= abs(value) < 1e16:
        return value  # written the same by every library: digits and a point
    return ExponentFloat(value)


def write_json(value: JsonValue, *, indent: bool = False) -> bytes:
    """Encode a value as JSON in UTF-8; the result is the same with and without orjson.

    Raises:
        RecursionError: the value is nested too deeply.
    """
    fast = orjson
    if fast is _LATER:
        fast = None if _is_small(value) else _load_orjson()
    if fast is not None:
        options = fast.OPT_INDENT_2 if indent else 0
        try:
            return _released(fast.dumps(value, _exponent_fragment, options))
        except fast.JSONEncodeError:
            pass  # nested deeper than orjson allows: the standard library writes the same form
    return (_INDENTED if indent else _COMPACT).encode(value).encode()


def write_all_json(values: Sequence[JsonValue]) -> list[bytes]:
    """Encode each value as `write_json` does, but faster.

    Raises:
        RecursionError: a value is nested too deeply.
        TypeError: a value is not plain JSON.
    """
    fast = _load_orjson() if orjson is _LATER else orjson
    if fast is not None:
        dumps = fast.dumps
        with suppress(fast.JSONEncodeError):
            return [_released(dumps(value, _exponent_fragment)) for value in values]
    return [write_json(value) for value in values]


def indented_size(value: Any, limit: int) -> int:
    """Return an upper estimate of the length of a value as indented JSON.

    Stops counting above `limit`. Bytes count as base64. Uses almost no memory.
    """
    size = 0
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack and size <= limit:
        for item in stack[-1]:
            size += 2 * len(stack)  # a line break, indentation, a comma
            if isinstance(item, (list, dict)):
                size += 2 * len(stack) + 2 if item else 2
                if isinstance(item, dict):
                    size += sum(map(_text_size, item)) + 2 * len(item)
                stack.append(iter(item.values() if isinstance(item, dict) else item))
                break
            if isinstance(item, bytes):
                size += len(item) * 4 // 3 + 4
            else:
                size += _text_size(item) if isinstance(item, str) else len(repr(item))
        else:
            stack.pop()
    return size


def read_json(data: bytes) -> JsonValue:
    """Decode a JSON text.

    Raises:
        IntegrityError: the bytes are not JSON in UTF-8, or are JSON that `write_json` never
            writes (NaN, lone surrogates, numbers out of range, or nested too deeply).
    """
    try:
        fast = orjson
        if fast is _LATER:
            fast = None if len(data) < _SMALL_TEXT else _load_orjson()
        return _parse(data) if fast is None else fast.loads(data)
    except RecursionError:
        raise IntegrityError(
            "The JSON text is nested too deeply for the remaining Python stack, or is not valid."
        ) from None
    except ValueError as error:
        # The library's message quotes no content, only the position.
        raise IntegrityError(f"Invalid JSON: {error}") from None


def _load_orjson() -> Any:
    """Return the module orjson; None if it is not installed."""
    global orjson
    with block_forks():
        try:
            orjson = import_module("orjson")
        except ImportError:
            orjson = None
    return orjson


def _is_small(value: Any, depth: int = 2) -> bool:
    """Return whether a value is so small that the standard library is fast enough."""
    kind = type(value)
    if kind is str:
        return len(value) < _SMALL_TEXT
    if kind is not dict and kind is not list:
        return kind in _SMALL_KINDS
    if depth == 0 or len(value) > _SMALL_ITEMS:
        return False
    inside = value.values() if kind is dict else value
    return all(map(_is_small, inside, repeat(depth - 1)))


def _parse(data: bytes) -> JsonValue:
    """Parse JSON with the standard library, as strictly as orjson. Raises ValueError."""
    text = data.decode()
    value: JsonValue = _DECODER.decode(text)
    if _SURROGATE.search(data):  # three times as fast as `in` for a part of the pattern
        json.dumps(value, ensure_ascii=False).encode()  # fails if one stands alone
    return value


def _text_size(text: str) -> int:
    data = text.encode()
    escaped = len(data) - len(data.translate(None, b'"\\'))
    return len(data) + escaped + 5 * (len(data) - len(data.translate(None, _CONTROL))) + 2


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError("a number is too large")
    return value


def _released(text: bytes) -> bytes:
    """Return a copy of a short text. The result of orjson would keep a buffer of 4 kB alive."""
    return b"%b" % text if len(text) < _BUFFER else text


def _exponent_fragment(value: Any) -> Any:
    if isinstance(value, ExponentFloat):
        return orjson.Fragment(float.__repr__(value))
    raise TypeError(type(value).__name__)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_INDENTED = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=2, separators=(",", ": "))
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
