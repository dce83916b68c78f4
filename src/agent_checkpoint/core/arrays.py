"""numpy arrays and scalars as JSON.

Owns the only use of numpy, which is imported when a value or a checkpoint has one.
"""

from __future__ import annotations

import base64
import sys
from typing import Any, Literal

from agent_checkpoint.records import JsonValue


def is_array(value: Any) -> bool:
    """Tell whether a value is a plain numpy array or scalar without Python objects inside."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    plain = type(value) is numpy.ndarray or isinstance(value, numpy.generic)
    return plain and not value.dtype.hasobject


def encode_array(value: Any) -> JsonValue:
    """Return an array as its type, shape, order and bytes; None if text cannot say its type."""
    import numpy

    array = numpy.asarray(value)
    descr = _descr_of(array.dtype)
    if descr is None:
        return None
    order: Literal["C", "F"] = (
        "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    )
    if array.dtype.names:
        # Bytes between fields are whatever was in memory: never stored, and no difference.
        clean = numpy.zeros(array.shape, array.dtype, order)
        _copy_fields(array, clean)
        array = clean
    return {
        "dtype": descr,
        "shape": None if isinstance(value, numpy.generic) else list(array.shape),
        "order": order,
        "data": base64.b64encode(array.tobytes(order)).decode(),
    }


def decode_array(data: Any) -> Any:
    """Return the array, or the scalar if it has no shape.

    Raises:
        ValueError: bytes, type and shape do not fit together.
    """
    import numpy

    dtype = numpy.lib.format.descr_to_dtype(_as_descr(data["dtype"]))
    flat = numpy.frombuffer(base64.b64decode(data["data"], validate=True), dtype=dtype)
    if data["shape"] is None:
        return flat.copy()[0]  # a structured scalar is a view, which must be writable
    # A copy, because the buffer belongs to immutable bytes.
    return flat.reshape(tuple(data["shape"]), order=data["order"]).copy(order=data["order"])


def _descr_of(dtype: Any) -> Any:
    """Return a dtype as text and lists, or None if it would come back as another one."""
    from numpy.lib.format import descr_to_dtype, dtype_to_descr

    if dtype.itemsize == 0 or _has_metadata(dtype):
        return None
    try:
        descr = _as_lists(dtype_to_descr(dtype))
        again = descr_to_dtype(_as_descr(descr))
    except (TypeError, ValueError):  # fields that overlap, say
        return None
    return descr if again == dtype and again.type is dtype.type else None


def _has_metadata(dtype: Any) -> bool:
    below = [dtype[name] for name in dtype.names or ()]
    if dtype.subdtype is not None:
        below.append(dtype.subdtype[0])
    return bool(dtype.metadata) or any(map(_has_metadata, below))


def _copy_fields(source: Any, target: Any) -> None:
    if not source.dtype.names:
        target[...] = source
    for name in source.dtype.names or ():
        _copy_fields(source[name], target[name])


def _as_lists(descr: Any) -> Any:
    if isinstance(descr, (list, tuple)):
        return [_as_lists(part) for part in descr]
    return descr


def _as_descr(data: Any) -> Any:
    """Return what numpy calls a descr: fields are tuples in a list, shapes are tuples."""
    if not isinstance(data, list):
        return data
    if data and isinstance(data[0], list):
        return [_as_field(field) for field in data]
    base, shape = data  # a subarray
    return (_as_descr(base), tuple(shape))


def _as_field(field: list[Any]) -> tuple[Any, ...]:
    name, kind, *shape = field
    if isinstance(name, list):
        name = tuple(name)
    return (name, _as_descr(kind), *(tuple(part) for part in shape))
