"""The arguments of a call, as they are recorded and compared. Owns both forms; runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.encode import encode
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.records import JsonValue, safe_repr, show
from agent_checkpoint.store.splitting import inline_tree

_LONGEST_WORDS = 120
_PLAIN = (str, int, float, bool, bytes, type(None))


def recorded(value: Any, depth: int = 0) -> Any:
    """Return a value as it is kept in the list of calls: one that cannot be is described."""
    if isinstance(value, _PLAIN):
        return value
    if depth < 20 and type(value) in (list, tuple):
        return type(value)(recorded(item, depth + 1) for item in value)
    if depth < 20 and type(value) is dict and all(type(name) is str for name in value):
        return {name: recorded(item, depth + 1) for name, item in value.items()}
    if is_stateful(value):  # its state has a part of its own, and may be anything
        return f"<{type(value).__name__}>"
    try:
        encode(value, "value")
    except (StateError, RecursionError):
        return f"<{type(value).__name__}: {safe_repr(value)[:200]}>"
    return value


def encoded(value: Any, what: str) -> JsonValue:
    """Return a value of an effect as JSON, to be kept in the ledger.

    Raises:
        InvalidInputError: it cannot be kept, and so neither compared nor given back.
    """
    try:
        return encode(value, what)
    except StateError as error:
        raise InvalidInputError(
            f"{error} What a tool with an effect is given and returns is kept in the ledger: make "
            "it plain data, or register_type its class."
        ) from error


def fingerprint(value: Any, what: str) -> str:
    """Return what is equal for equal values, in every process.

    Raises:
        InvalidInputError: the value has none, because it could only be pickled.
    """
    tree = inline_tree(encoded(value, what))
    if _has_pickle(tree):
        raise InvalidInputError(
            f"{what} cannot be compared with that of another call: it holds an object that could "
            "only be pickled. Make it plain data, or register_type its class."
        )
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def in_words(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a person would know it again, on one line."""
    given = ", ".join(f"{name}={show(value, 40)}" for name, value in arguments.items())
    text = f"{tool}({given})"
    return text if len(text) <= _LONGEST_WORDS else text[: _LONGEST_WORDS - 2] + "…)"


def _has_pickle(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_has_pickle, tree))
    if isinstance(tree, dict):
        return "$pickle" in tree or any(map(_has_pickle, tree.values()))
    return False
