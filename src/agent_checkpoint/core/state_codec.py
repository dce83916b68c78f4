"""Encodes states to JSON."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.captured_fields import is_checkpointable
from agent_checkpoint.core.codec.encode import LOG_ITEMS, LOGS, NewWriter, encode, encode_as_pickle
from agent_checkpoint.core.codec.save_policy import NO_POLICY, SavePolicy
from agent_checkpoint.core.path_errors import as_state_error, cause_text, key_segment
from agent_checkpoint.core.stateful import writes_own_objects
from agent_checkpoint.errors import StateError
from agent_checkpoint.options import StateFormat
from agent_checkpoint.records import JsonValue

_TRIES = 5


def encode_state(
    subject: Any,
    path: str,
    fmt: StateFormat = "json",
    new_writer: NewWriter | None = None,
    policy: SavePolicy = NO_POLICY,
) -> JsonValue:
    """Return the state of a Stateful, or of a plain dict, as a JSON value.

    Args:
        subject: a Stateful or a dict.
        path: how messages refer to it.
        fmt: `json`, or `pickle` for one signed pickle.
        new_writer: creates writers for parts that write their own objects.
        policy: what to do with values that would be pickled; `fmt="pickle"` pickles in any case.

    Raises:
        StateError: a value cannot be captured.
    """
    for attempt in range(_TRIES):
        try:
            tree = _encode(subject, path, fmt, new_writer, policy)
            _name_logs(tree, path)
            return tree
        except RuntimeError as error:
            # Another thread changed a container during the walk: try again.
            if "during iteration" not in str(error) or attempt == _TRIES - 1:
                raise StateError(f"{path} cannot be captured ({cause_text(error)}).") from error
    raise AssertionError("unreachable: the loop returns or raises")


def _encode(
    subject: Any, path: str, fmt: StateFormat, new_writer: NewWriter | None, policy: SavePolicy
) -> JsonValue:
    is_log = isinstance(subject, tuple(LOGS))
    if writes_own_objects(subject) and not is_log:
        return encode(subject, path, new_writer, policy)  # its objects are never pickled
    if fmt == "json" and (is_log or is_checkpointable(subject)):
        return encode(subject, path, new_writer, policy)  # from the live object, without a copy
    if isinstance(subject, dict):
        if fmt == "json":
            return encode(subject, path, new_writer, policy)
        return _pickle_dict(subject, path)
    state = _call_state_dict(subject, path)
    if fmt == "json":
        return encode(state, path, policy=policy)
    return encode_as_pickle(state, path)


def _name_logs(tree: Any, path: str) -> None:
    """Tell the logs of a part how messages refer to them: they are written later."""
    members = tree.get("$state", tree) if isinstance(tree, dict) else {}
    log_items = tuple(LOG_ITEMS)
    if isinstance(members.get("$log"), log_items):
        members["$log"].path = path
        return
    for name, member in members.items():
        items: Any = member.get("$log") if isinstance(member, dict) else None
        if isinstance(items, log_items):
            items.path = path + key_segment(name)


def _pickle_dict(subject: dict[str, Any], path: str) -> JsonValue:
    with block_forks():
        from agent_checkpoint.core.copying import snapshot  # slow to load

    with as_state_error(path, subject):
        state = snapshot(subject)  # nested objects are pickled as their states
    return encode_as_pickle(state, path)


def _call_state_dict(subject: Any, path: str) -> Any:
    try:
        return subject.state_dict()
    except (StateError, RuntimeError):
        raise
    except Exception as error:
        raise StateError(f"{path} has a state_dict() that failed ({cause_text(error)}).") from error
