"""Whole states to JSON and back.

Owns which classes vouch for the types in a state; the walks are in `encode` and `decode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.checkpointable import Checkpointable, class_name
from agent_checkpoint.core.class_names import canonical
from agent_checkpoint.core.codec.decode import Decoded, decode
from agent_checkpoint.core.codec.encode import NewWriter, encode, encode_as_pickle
from agent_checkpoint.core.codec.type_hints import hinted_types
from agent_checkpoint.core.copying import snapshot
from agent_checkpoint.core.loading import class_of_state, rebuild_state
from agent_checkpoint.core.log import Log
from agent_checkpoint.core.path_errors import as_state_error, cause_text
from agent_checkpoint.core.stateful import StateDict, writes_own_objects
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.objects.reader import Reader

FORMATS = ("json", "pickle")
_TRIES = 5


def check_format(fmt: str) -> str:
    """Return the name of a state format if it is one. Raises InvalidInputError."""
    if fmt not in FORMATS:
        raise InvalidInputError(f"Unknown fmt {short_repr(fmt)}: use 'json' or 'pickle'.")
    return fmt


def encode_state(
    subject: Any, path: str, fmt: str = "json", new_writer: NewWriter | None = None
) -> JsonValue:
    """Return the state of a Stateful, or of a plain dict, as JSON.

    Args:
        subject: a Stateful or a dict.
        path: its name in messages.
        fmt: `json`, or `pickle` for one sealed pickle.
        new_writer: makes writers for the store, for what stores objects of its own.

    Raises:
        StateError: a part of it cannot be captured.
    """
    for attempt in range(_TRIES):
        try:
            return _encode(subject, path, fmt, new_writer)
        except RuntimeError as error:
            # Another thread added to a container while we walked it; the next walk may be luckier.
            if "during iteration" not in str(error) or attempt == _TRIES - 1:
                raise StateError(f"{path} cannot be captured ({cause_text(error)}).") from error
    raise AssertionError("unreachable: the loop returns or raises")


def decode_part(
    tree: JsonValue,
    path: str,
    target: Any = None,
    *,
    trust_pickle: bool = False,
    reader: Reader | None = None,
) -> Decoded:
    """Return the state that was encoded, for `target` to load.

    Args:
        tree: what `encode_state` returned.
        path: its name in messages.
        target: the object it is meant for, whose type hints vouch for types.
        trust_pickle: load pickles without checking their seal.
        reader: gives what stands outside of the tree, if it comes from a store.

    Raises:
        StateError: the state cannot be decoded here.
        UntrustedDataError: it holds a pickle that this user did not seal.
    """

    def scope(name: object, outer: Mapping[str, type]) -> Mapping[str, type]:
        if not isinstance(name, str):
            return {}
        if isinstance(target, Checkpointable) and canonical(name) == class_name(target):
            return hinted_types(type(target))
        try:
            return hinted_types(class_of_state(name, outer))
        except StateError:
            return {}  # the types it needs are then reported by name

    def rebuild(state: StateDict) -> Any:
        return rebuild_state(state, state.types)

    return decode(
        tree, path, scope=scope, rebuild=rebuild, trust_pickle=trust_pickle, reader=reader
    )


def _encode(subject: Any, path: str, fmt: str, new_writer: NewWriter | None) -> JsonValue:
    if writes_own_objects(subject) and not isinstance(subject, Log):
        return encode(subject, path, new_writer)  # its objects are no pickle in any format
    if fmt == "json" and isinstance(subject, (Checkpointable, Log)):
        return encode(subject, path, new_writer)  # from the live object: no copy is needed
    if isinstance(subject, dict):
        is_json = fmt == "json"
        return encode(subject, path, new_writer) if is_json else _pickle_dict(subject, path)
    state = _ask(subject, path)
    return encode(state, path) if fmt == "json" else encode_as_pickle(state, path)


def _pickle_dict(subject: dict[str, Any], path: str) -> JsonValue:
    with as_state_error(path, subject):
        state = snapshot(subject)  # objects in it are pickled as their states, like everywhere
    return encode_as_pickle(state, path)


def _ask(subject: Any, path: str) -> Any:
    try:
        return subject.state_dict()
    except (StateError, RuntimeError):
        raise
    except Exception as error:
        raise StateError(f"{path} has a state_dict() that failed ({cause_text(error)}).") from error
