"""Signed pickles, for values that the codec cannot encode otherwise.

A pickle is stored with a seal, its HMAC under the user's secret. This is the only module that
unpickles. It verifies the seal first.
"""

from __future__ import annotations

import binascii
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.scalars import decode_bytes, encode_bytes
from agent_checkpoint.core.codec.structures import lost_fields, structure_of
from agent_checkpoint.core.path_errors import (
    OpaqueValueError,
    PathError,
    as_state_error,
    cause_text,
    children,
    listed,
    type_name,
)
from agent_checkpoint.errors import StateError, StateMismatchError
from agent_checkpoint.records import JsonValue
from agent_checkpoint.seal import check_seal, make_seal

_PROTOCOL = 4
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})


def encode_pickle(value: Any) -> JsonValue:
    """Return a value as a pickle with its seal.

    Raises:
        PathError: the value cannot be pickled; the path is that of the nested value that failed.
    """
    with block_forks():
        import pickle  # slow to load

    try:
        data = pickle.dumps(value, _PROTOCOL)
    except Exception as error:
        raise OpaqueValueError(
            value,
            error,
            lambda part: pickle.dumps(part, _PROTOCOL),
            "captured",
            "Keep it in an attribute with a leading underscore, leave it out of "
            "_checkpoint_fields(), or register_type() its class.",
        ) from error
    try:
        seal = make_seal(data)
    except StateError as error:
        raise PathError(str(error)) from error
    return {"data": encode_bytes(data), "seal": seal}


def decode_pickle(payload: Any, *, trust: bool) -> Any:
    """Verify the seal of a pickle and return its value.

    Args:
        payload: a result of `encode_pickle`.
        trust: the caller passed `trust_pickle=True`; the seal is not verified.

    Raises:
        PathError: the seal is missing or invalid, or the pickle does not load.
    """
    data = _verified(payload, trust=trust)
    with block_forks():
        import pickle  # slow to load

    try:
        value = pickle.loads(data)  # noqa: S301 - the seal was verified, or the caller trusts the pickle
    except Exception as error:
        raise PathError(
            f"cannot be unpickled ({cause_text(error)}). Its class may have moved "
            "or changed. Types registered with register_type() are not pickled."
        ) from error
    _check_fields(value)
    return value


def check_pickles(tree: Any, path: str) -> None:
    """Verify the seals of all pickles in an encoded value, which is resolved, and load none.

    Raises:
        UntrustedDataError: a pickle has no valid signature under this user's secret.
        StateError: a pickle is damaged, or the secret cannot be read.
    """
    stack = [tree]
    with as_state_error(path):
        while stack:
            value = stack.pop()
            if isinstance(value, list):
                stack += value
            elif isinstance(value, dict) and "$pickle" in value:  # a user's key would have two `$`
                _verified(value["$pickle"], trust=False)
            elif isinstance(value, dict):
                stack += value.values()


def _verified(payload: Any, *, trust: bool) -> bytes:
    if not isinstance(payload, dict) or not isinstance(payload.get("data"), (str, bytes)):
        raise PathError("is damaged: invalid $pickle value.")
    try:
        data = decode_bytes(payload["data"])
    except (binascii.Error, ValueError):
        raise PathError("is damaged: invalid $pickle value.") from None
    if not trust:
        try:
            check_seal(data, payload.get("seal"))
        except StateError as error:
            raise PathError(str(error), type(error)) from error.__cause__
    return data


def _check_fields(root: Any) -> None:
    """Check the fields of a value and of the values inside it: a pickle is not migrated.

    Raises:
        PathError: a dataclass, an attrs class or a pydantic model has changed since.
    """
    seen: dict[int, Any] = {}
    stack = [root]
    while stack:
        value = stack.pop()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen[id(value)] = value
        is_container = isinstance(value, (dict, list, tuple, set, frozenset))
        try:
            lost = None if is_container else lost_fields(value)
            inside = [child for _, child in children(value) or ()]
        except Exception:  # classes may raise anything; the value itself was loaded
            lost, inside = None, []
        if lost is not None:
            has = f" and has {listed(lost.unexpected)} instead" if lost.unexpected else ""
            raise PathError(
                f"contains a pickled {type_name(value)} that does not fit its class: it lacks "
                f"{listed(lost.missing)}{has}. Pickled values are not migrated. Load it with the "
                "earlier class, register that class with register_type(), and save; then change "
                "the fields with a new version and register_migration().",
                StateMismatchError,
            )
        # Other objects may refer to all of the program, such as a logger.
        if value is root or is_container or structure_of(type(value)) is not None:
            stack += inside
