"""Encodes values of classes: registered types, arrays, and pickles as the last resort.

Few states have such values; `encode` loads this module with the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.codec.arrays import encode_array, is_array, zero_padding
from agent_checkpoint.core.codec.pickles import encode_pickle as encode_pickle
from agent_checkpoint.core.codec.structures import BEYOND_FIELDS
from agent_checkpoint.core.codec.structures import has_hidden_content as has_hidden_content
from agent_checkpoint.core.codec.type_registry import type_of
from agent_checkpoint.core.path_errors import PathError, cause_text
from agent_checkpoint.records import JsonValue


def typed_fields(value: Any, types: Mapping[str, type]) -> tuple[str, Any] | None:
    """Return the type name of a value and its fields; None if it is of no known type.

    Raises:
        PathError: the encoder of the type failed.
    """
    known = type_of(value, types)
    if known is None:
        return None
    name, structure = known
    try:
        fields = structure.encode(value)
    except Exception as error:
        raise PathError(f"cannot be encoded as {name} ({cause_text(error)}).") from error
    return None if fields is BEYOND_FIELDS else (name, fields)


def array_of(value: Any) -> tuple[JsonValue, Any]:
    """Return the JSON form of an array, None for any other value; and the value to pickle else."""
    if not is_array(value):
        return None, value
    array = encode_array(value)
    return array, value if array is not None else zero_padding(value)
