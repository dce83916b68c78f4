"""Signed pickles, for values that the codec cannot encode otherwise.

A pickle is stored with a seal, its HMAC under the user's secret. This is the only module that
unpickles. It verifies the seal first.
"""

from __future__ import annotations

import binascii
import pickle
from typing import Any

from agent_checkpoint.core.codec.scalars import decode_bytes, encode_bytes
from agent_checkpoint.core.path_errors import OpaqueValueError, PathError, cause_text
from agent_checkpoint.errors import StateError
from agent_checkpoint.records import JsonValue
from agent_checkpoint.seal import check_seal, make_seal

_PROTOCOL = 4


def encode_pickle(value: Any) -> JsonValue:
    """Return a value as a pickle with its seal.

    Raises:
        PathError: the value cannot be pickled; the path is that of the nested value that failed.
    """
    try:
        data = pickle.dumps(value, _PROTOCOL)
    except Exception as error:
        raise _unpicklable(value, error) from error
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
    try:
        return pickle.loads(data)  # noqa: S301 - the seal was verified, or the caller trusts the pickle
    except Exception as error:
        raise PathError(
            f"cannot be unpickled ({cause_text(error)}). Its class may have moved "
            "or changed. Types registered with register_type() are not pickled."
        ) from error


def _unpicklable(value: Any, error: Exception) -> PathError:
    return OpaqueValueError(
        value,
        error,
        lambda part: pickle.dumps(part, _PROTOCOL),
        "captured",
        "Keep it in an attribute with a leading underscore, leave it out of _checkpoint_fields(), "
        "or register_type() its class.",
    )
