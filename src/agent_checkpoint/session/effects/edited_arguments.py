"""Values that an approver types instead of an argument; they keep its type unless it is JSON."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from agent_checkpoint.errors import Hint, InvalidInputError
from agent_checkpoint.records import short_repr

_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    type(None): "null",
}


def type_name(value: Any) -> str:
    """Return the name of a value's type for people, such as `text`; otherwise its class name."""
    return _NAMES.get(type(value), type(value).__name__)


def typed_value(name: str, current: Any, text: str) -> Any:
    """Return a typed text as a value of the type that the argument has.

    Args:
        name: the argument.
        current: its value.
        text: the text: the value itself if the argument is a string, otherwise JSON.

    Raises:
        InvalidInputError: the text is not of this type.
    """
    if type(current) is str:
        return text
    try:
        value = read_json(text)
    except ValueError:
        raise _mismatch(name, current, text) from None
    return fitting_value(name, current, value)


def fitting_value(name: str, current: Any, value: Any) -> Any:
    """Return a value from JSON as a value of the type that the argument has.

    Raises:
        InvalidInputError: the value is of another type.
    """
    if type(current) is float and type(value) is int:
        return float(value)
    if type(current) is tuple and type(value) is list:
        return tuple(value)
    if type(value) is not type(current):
        raise _mismatch(name, current, value)
    return value


def read_json(text: str) -> Any:
    """Parse JSON without NaN and infinities. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_reject, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mismatch(name: str, current: Any, given: Any) -> InvalidInputError:
    given = given if isinstance(given, str) else json.dumps(given)
    return InvalidInputError(
        f"The argument {short_repr(name)} is {type_name(current)}, and {short_repr(given)} is not.",
        hint=Hint("Give JSON to change its type.", "json_value", name=name),
    )


def _reject(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _reject(text)
