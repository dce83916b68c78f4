"""Encodes scalars that JSON lacks: numbers, bytes, paths. Owns their tags and text forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.canonical_json import exact_float
from agent_checkpoint.store.objects.splitting import BlobValue, as_base64

INT_LIMIT = 2**63
BLOB_FROM = 1024

_ESCAPED = r"(?:[ -\[\]-~]|\\(?:[\\tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*"


class Leaf(NamedTuple):
    """The codec of a scalar type; `encode` returns None for a value that it cannot encode."""

    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def encode_int(value: int) -> JsonValue:
    """Return an int as a number if it fits into 64 bits, else as hex digits."""
    return value if -INT_LIMIT <= value < INT_LIMIT else {"$int": hex(value)}


def encode_float(value: float) -> JsonValue:
    """Return a float as a number, or as a tag for NaN and infinities."""
    if value - value == 0:
        return exact_float(value)
    return {"$float": repr(value)}


def encode_text(value: str) -> JsonValue:
    """Return a string, escaped if it has lone surrogates, which UTF-8 cannot encode."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": value.encode("unicode_escape").decode("ascii")}
    return value


def _decode_int(data: str) -> int:
    return int(data, 16)


def _decode_float(data: str) -> float:
    if data not in ("nan", "inf", "-inf"):
        raise ValueError("expected nan, inf or -inf")
    return float(data)


def decode_text(data: str) -> str:
    """Decode a string with escapes, as `encode_text` writes it. Raises ValueError."""
    if re.fullmatch(_ESCAPED, data) is None:
        raise ValueError("invalid escape sequence")
    return data.encode("ascii").decode("unicode_escape")


def encode_bytes(value: bytes | bytearray) -> Any:
    """Return bytes as base64; large ones as a BlobValue, which a store writes as an object."""
    return BlobValue(bytes(value)) if len(value) >= BLOB_FROM else as_base64(value)


def decode_bytes(data: str | bytes) -> bytes:
    """Decode the result of `encode_bytes`. Raises ValueError."""
    if isinstance(data, bytes):
        return data
    with block_forks():
        from base64 import b64decode  # a save does not need it

    return b64decode(data, validate=True)


def _encode_complex(value: complex) -> JsonValue:
    return [encode_float(value.real), encode_float(value.imag)]


def _decode_complex(data: Any) -> complex:
    real, imaginary = data
    return complex(decode_number(real), decode_number(imaginary))


def decode_number(data: Any) -> Any:
    """Decode a number, perhaps with a tag. Raises ValueError or KeyError."""
    if isinstance(data, dict):
        ((tag, text),) = data.items()
        return NUMBERS[tag](text)
    return data


def _path_leaf(cls: type[PurePath], tag: str) -> Leaf:
    return Leaf(
        tag,
        lambda value: encode_text(str(value)),
        lambda data: cls(decode_text(data["$str"]) if isinstance(data, dict) else data),
    )


NUMBERS: dict[str, Callable[[str], Any]] = {"$int": _decode_int, "$float": _decode_float}

LEAVES: dict[type, Leaf] = {
    bytes: Leaf("$bytes", encode_bytes, decode_bytes),
    bytearray: Leaf("$bytearray", encode_bytes, lambda data: bytearray(decode_bytes(data))),
    complex: Leaf("$complex", _encode_complex, _decode_complex),
    type(Path()): _path_leaf(Path, "$path"),
    PurePosixPath: _path_leaf(PurePosixPath, "$posixpath"),
    PureWindowsPath: _path_leaf(PureWindowsPath, "$windowspath"),
}
