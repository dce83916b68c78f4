"""The arguments of a call and its error, as they are recorded and compared. Owns both forms."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.copying import copied
from agent_checkpoint.core.path_errors import MAX_DEPTH
from agent_checkpoint.core.stateful import is_stateful, is_stateful_part
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.records import JsonValue, safe_repr, short_repr
from agent_checkpoint.store.objects.splitting import inline_tree

_MAX_DESCRIPTION = 120
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_OUTER_DEPTH = 5
"""How deep a value stands in the list of calls."""


def recordable(value: Any, depth: int = 0) -> Any:
    """Return a value as it is kept in the list of calls: a copy, or a description.

    What could only be pickled is described too: a session must open where there is neither the
    class nor the secret.
    """
    if type(value) in _PLAIN:
        return value
    if depth < 20 and type(value) in (list, tuple):
        return type(value)(recordable(item, depth + 1) for item in value)
    if depth < 20 and type(value) is dict and all(type(name) is str for name in value):
        return {name: recordable(item, depth + 1) for name, item in value.items()}
    if is_stateful(value):  # its state has a part of its own, and may be anything
        return f"<{type(value).__name__}>"
    try:
        copy = nested = copied(value)
        for _ in range(depth + _OUTER_DEPTH):  # there it must not be too deep either
            nested = [nested]
        can_be_kept = not _has_pickle(inline_tree(encode(nested, "value")))
    except Exception:  # whatever it is that its class does not like
        can_be_kept = False
    if can_be_kept:
        return copy
    return f"<{type(value).__name__}: {safe_repr(value)[:200]}>"


def encode_for_ledger(value: Any, what: str) -> JsonValue:
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
        InvalidInputError: the value has none, because it could only be pickled, or because not
            all of it is captured.
    """
    stateful = _find_stateful(value)
    if stateful is not None:
        raise InvalidInputError(
            f"{what} cannot be compared with that of another call: it holds a "
            f"{type(stateful).__name__}, of which only some fields are captured. Pass plain data."
        )
    tree = inline_tree(encode_for_ledger(value, what))
    if _has_pickle(tree):
        raise InvalidInputError(
            f"{what} cannot be compared with that of another call: it holds an object that could "
            "only be pickled. Make it plain data, or register_type its class."
        )
    text = json.dumps(_canonical_order(tree), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def describe_call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a person would know it again, on one line."""
    given = ", ".join(f"{name}={short_repr(value, 40)}" for name, value in arguments.items())
    text = f"{tool}({given})"
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 2] + "…)"


def describe_error(error: BaseException) -> str:
    """Return an error as it is recorded, also one whose message cannot be had."""
    try:
        words = str(error)
    except Exception:
        words = "its message cannot be read"
    return (f"{type(error).__name__}: {words}" if words else type(error).__name__)[:2000]


def _canonical_order(tree: Any) -> Any:
    """Return a tree with the pairs of a dict in one order, whatever the order in memory."""
    if isinstance(tree, list):
        return [_canonical_order(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    found = {name: _canonical_order(item) for name, item in tree.items()}
    for name in ("$dict", "$counter"):
        if name in found:
            found[name] = sorted(found[name], key=json.dumps)
    if "$defaultdict" in found:
        factory, pairs = found["$defaultdict"]
        found["$defaultdict"] = [factory, sorted(pairs, key=json.dumps)]
    return found


def _find_stateful(value: Any, depth: int = 0) -> Any:
    """Return an object with a state of its own that is somewhere in plain containers."""
    if is_stateful_part(value):
        return value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset, deque)):
        return None
    if depth > MAX_DEPTH:
        return None  # it is refused as too deep
    found = (_find_stateful(item, depth + 1) for item in value)
    return next((item for item in found if item is not None), None)


def _has_pickle(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_has_pickle, tree))
    if isinstance(tree, dict):
        return "$pickle" in tree or any(map(_has_pickle, tree.values()))
    return False
