"""Encodes numpy arrays and scalars as JSON.

The only module that uses numpy. It imports numpy when a value or a checkpoint needs it.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.scalars import decode_bytes, encode_bytes
from agent_checkpoint.records import JsonValue


def is_plain(value: Any) -> bool:
    """Return whether a value is a numpy array or scalar, and not of a subclass."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return type(value) is numpy.ndarray or (
        isinstance(value, numpy.generic) and type(value) is value.dtype.type
    )


def is_array(value: Any) -> bool:
    """Return whether a value is a plain numpy array or scalar whose dtype has no Python objects."""
    return is_plain(value) and not value.dtype.hasobject


def is_masked(value: Any) -> bool:
    """Return whether a value is a masked array."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and type(value) is masked.MaskedArray


def masked_content(value: Any) -> list[Any]:
    """Return data, mask and fill value of a masked array. Its pickle may omit defaults."""
    import numpy

    return [value.data, numpy.ma.getmaskarray(value), value.fill_value]


def zero_padding(value: Any) -> Any:
    """Return an array with zeroed padding between its fields. Padding is uninitialized memory."""
    import numpy

    if not value.dtype.names:
        return value
    array = numpy.asarray(value)
    clean = numpy.zeros(array.shape, array.dtype, _order(array))
    _copy_fields(array, clean)
    return clean[()] if isinstance(value, numpy.generic) else clean


def encode_array(value: Any) -> JsonValue:
    """Encode an array as dtype, shape, order and bytes; None if the dtype has no JSON form."""
    import numpy

    array = zero_padding(numpy.asarray(value))
    descr = _descr_of(array.dtype)
    if descr is None:
        return None
    order = _order(array)
    return {
        "dtype": descr,
        "shape": None if isinstance(value, numpy.generic) else list(array.shape),
        "order": order,
        "data": encode_bytes(array.tobytes(order)),
    }


def decode_array(data: Any) -> Any:
    """Decode an array, or a scalar if it has no shape.

    Raises:
        ValueError: bytes, dtype and shape do not match.
    """
    with block_forks():
        import numpy

    dtype = numpy.lib.format.descr_to_dtype(_as_descr(data["dtype"]))
    flat = numpy.frombuffer(decode_bytes(data["data"]), dtype=dtype)
    if data["shape"] is None:
        return flat.copy()[0]  # a structured scalar is a view and must be writable
    # A copy, because the buffer belongs to immutable bytes.
    return flat.reshape(tuple(data["shape"]), order=data["order"]).copy(order=data["order"])


def _order(array: Any) -> Literal["C", "F"]:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _descr_of(dtype: Any) -> Any:
    """Return a dtype as strings and lists, or None if it does not round-trip."""
    from numpy.lib.format import descr_to_dtype, dtype_to_descr

    if dtype.itemsize == 0 or _is_special(dtype):
        return None
    try:
        descr = _as_lists(dtype_to_descr(dtype))
        decoded = descr_to_dtype(_as_descr(descr))
    except (TypeError, ValueError):  # such as overlapping fields
        return None
    return descr if decoded == dtype and decoded.type is dtype.type else None


def _is_special(dtype: Any) -> bool:
    """Return whether a dtype has metadata, alignment or a record class: its descr omits them."""
    import numpy

    below = [dtype[name] for name in dtype.names or ()]
    if dtype.subdtype is not None:
        below.append(dtype.subdtype[0])
    special = dtype.metadata or dtype.isalignedstruct or issubclass(dtype.type, numpy.record)
    return bool(special) or any(map(_is_special, below))


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
    """Return a numpy descr: a list of field tuples, with shapes as tuples."""
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
