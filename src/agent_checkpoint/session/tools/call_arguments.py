"""Call arguments, results and errors: how they are recorded, encoded, compared and displayed."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.codec.redacted_tree import redact_tree
from agent_checkpoint.core.codec.save_policy import NO_POLICY, SavePolicy
from agent_checkpoint.core.copying import copied
from agent_checkpoint.core.path_errors import MAX_DEPTH, as_state_error
from agent_checkpoint.core.stateful import is_stateful, is_stateful_part
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.records import JsonValue, safe_repr, short_repr
from agent_checkpoint.redaction import Redactor
from agent_checkpoint.seal import keyed_digest
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.transcripts.fields import Visits, plain

_MAX_DESCRIPTION = 120
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_MAX_RECORDED_DEPTH = 20
_OUTER_DEPTH = 5
"""The nesting depth at which a value is stored in the list of calls."""


def recordable(value: Any, redactor: Redactor | None = None) -> Any:
    """Return a copy of a value for the list of calls, or a description of it.

    A value that would be pickled is described: a session must open without its class or secret. A
    description is redacted before it is cut: the rest of a secret would not be recognized.
    """
    return _recordable(value, redactor, 0, Visits(_MAX_RECORDED_DEPTH + 1))


def _recordable(value: Any, redactor: Redactor | None, depth: int, visits: Visits) -> Any:
    if type(value) in _PLAIN:
        return value
    is_dict = type(value) is dict and all(type(name) is str for name in value)
    if depth < _MAX_RECORDED_DEPTH and (is_dict or type(value) in (list, tuple)):
        if not visits.enter(value):
            return f"<{type(value).__name__}>"
        parts = value.values() if is_dict else value
        copies = [_recordable(item, redactor, depth + 1, visits) for item in parts]
        visits.leave(value)
        return dict(zip(value, copies)) if is_dict else type(value)(copies)
    if is_stateful(value):  # its state may be arbitrarily large
        return f"<{type(value).__name__}>"
    try:
        copy = nested = copied(value)
        for _ in range(depth + _OUTER_DEPTH):  # the depth limit applies to the stored position
            nested = [nested]
        can_be_kept = not _has_pickle(inline_tree(encode(nested, "value")))
    except Exception:  # user classes may raise anything while being copied
        can_be_kept = False
    if can_be_kept:
        return copy
    return f"<{type(value).__name__}: {cleaned(safe_repr(value), redactor)[:200]}>"


def as_json(value: Any) -> Any:
    """Return a result as a model is told it: objects with fields become dicts."""
    try:
        return plain(value, defaults=True)
    except Exception:  # user classes may raise anything
        return value


def cleaned(text: str, redactor: Redactor | None) -> str:
    """Return a text without secrets. Raises StateError."""
    return text if redactor is None else redactor.clean(text)


def encode_for_ledger(
    value: Any, what: str, policy: SavePolicy = NO_POLICY
) -> tuple[JsonValue, int]:
    """Encode a value of an effect for the ledger; also return how many secrets were redacted.

    Raises:
        InvalidInputError: the value cannot be encoded, or the policy refuses it.
    """
    try:
        tree = encode(value, what, policy=policy)
        if policy.redactor is None:
            return tree, 0
        with as_state_error(what):
            return redact_tree(tree, policy.redactor)
    except StateError as error:
        raise InvalidInputError(
            f"{error} Arguments and results of tools with external side effects are stored in the "
            "ledger. Use built-in types, or register the class with register_type()."
        ) from error


def fingerprints(
    value: Any, what: str, redactor: Redactor | None = None, *, with_keyed: bool = False
) -> list[str]:
    """Return the digests under which a value may be recorded; the first is for new records.

    A digest is equal for equal values, in every process. That of a value with secrets is keyed with
    the user's secret, because a plain digest of a short secret could be guessed from the store.

    Args:
        value: the value.
        what: its name in messages.
        redactor: finds the secrets.
        with_keyed: also return the keyed digest of a value without secrets, for records of a time
            when `redact=` found some.

    Raises:
        InvalidInputError: the value would be pickled, or only some of its fields are captured.
        StateError: the user's secret cannot be used.
    """
    stateful = _find_stateful(value)
    if stateful is not None:
        raise InvalidInputError(
            f"{what} cannot be compared between calls: a {type(stateful).__name__} in it captures "
            "only some of its fields. Pass built-in types."
        )
    tree = inline_tree(encode_for_ledger(value, what)[0])
    if _has_pickle(tree):
        raise InvalidInputError(
            f"{what} cannot be compared between calls: it contains an object that would be "
            "pickled. Use built-in types, or register the class with register_type()."
        )
    text = json.dumps(_canonical_order(tree), sort_keys=True, separators=(",", ":")).encode()
    plain = hashlib.sha256(text).hexdigest()
    if redactor is not None and redact_tree(tree, redactor)[1]:
        return [keyed_digest(text), plain]
    return [plain, keyed_digest(text)] if with_keyed else [plain]


def describe_call(tool: str, arguments: Mapping[str, Any], redactor: Redactor | None = None) -> str:
    """Return a call as one short line of text. Values are redacted before they are cut."""
    if redactor is not None:
        arguments = {
            name: redactor.member(name, value)[0]
            if isinstance(value, str)
            else _Text(redactor.clean(safe_repr(value)))
            for name, value in arguments.items()
        }
    given = ", ".join(f"{name}={short_repr(value, 40)}" for name, value in arguments.items())
    text = f"{tool}({given})"
    return text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 2] + "…)"


class _Text:
    """A value whose repr is a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def describe_error(error: BaseException, redactor: Redactor | None = None) -> str:
    """Return type and message of an error, even if its `__str__` raises; redacted, then cut."""
    try:
        words = cleaned(str(error), redactor)
    except Exception:
        words = "its message cannot be read"
    return (f"{type(error).__name__}: {words}" if words else type(error).__name__)[:2000]


def _canonical_order(tree: Any) -> Any:
    """Return a tree with the pairs of dicts sorted, independent of insertion order."""
    if isinstance(tree, list):
        return [_canonical_order(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    result = {name: _canonical_order(item) for name, item in tree.items()}
    for name in ("$dict", "$counter"):
        if name in result:
            result[name] = sorted(result[name], key=json.dumps)
    if "$defaultdict" in result:
        factory, pairs = result["$defaultdict"]
        result["$defaultdict"] = [factory, sorted(pairs, key=json.dumps)]
    return result


def _find_stateful(value: Any, depth: int = 0) -> Any:
    """Return a stateful object nested in plain containers, if any."""
    if is_stateful_part(value):
        return value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset, deque)):
        return None
    if depth > MAX_DEPTH:
        return None  # the encoder refuses this depth
    nested = (_find_stateful(item, depth + 1) for item in value)
    return next((item for item in nested if item is not None), None)


def _has_pickle(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_has_pickle, tree))
    if isinstance(tree, dict):
        return "$pickle" in tree or any(map(_has_pickle, tree.values()))
    return False
