"""Encodes scalars that JSON lacks: dates, numbers, bytes, paths. Owns their tags and text forms."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.canonical_json import exact_float
from agent_checkpoint.store.objects.splitting import BlobValue

INT_LIMIT = 2**63
BLOB_FROM = 1024

_FRACTION_LIMIT = 2**80_000
"""The largest numerator or denominator: reducing a Fraction takes quadratic time."""

_ESCAPED = re.compile(r"(?:[ -\[\]-~]|\\(?:[\\tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*")


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


def _decode_text(data: str) -> str:
    if _ESCAPED.fullmatch(data) is None:
        raise ValueError("invalid escape sequence")
    return data.encode("ascii").decode("unicode_escape")


def encode_bytes(value: bytes | bytearray) -> Any:
    """Return bytes as base64; large ones as a BlobValue, which a store writes as an object."""
    return BlobValue(bytes(value)) if len(value) >= BLOB_FROM else base64.b64encode(value).decode()


def decode_bytes(data: str | bytes) -> bytes:
    """Decode the result of `encode_bytes`. Raises ValueError."""
    return data if isinstance(data, bytes) else base64.b64decode(data, validate=True)


def _encode_zone(zone: tzinfo | None) -> JsonValue:
    if zone is timezone.utc:
        return "UTC"
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [*_encode_timedelta(offset), None if name == timezone(offset).tzname(None) else name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return {"zone": zone.key}
    return None


def _decode_zone(data: Any) -> tzinfo:
    if data == "UTC":
        return timezone.utc
    if isinstance(data, dict):
        return ZoneInfo(data["zone"])
    days, seconds, microseconds, name = data
    offset = timedelta(days, seconds, microseconds)
    return timezone(offset) if name is None else timezone(offset, name)


def _encode_clock(value: datetime | time) -> JsonValue:
    if value.tzinfo is None and not value.fold:
        return value.isoformat()
    zone = _encode_zone(value.tzinfo)
    if zone is None and value.tzinfo is not None:
        return None
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, zone]


def _decode_clock(cls: Any, data: Any) -> Any:
    if isinstance(data, str):
        return cls.fromisoformat(data)
    text, fold, zone = data
    tz = None if zone is None else _decode_zone(zone)
    return cls.fromisoformat(text).replace(tzinfo=tz, fold=fold)


def _encode_timedelta(value: timedelta) -> list[JsonValue]:
    return [value.days, value.seconds, value.microseconds]


def _decode_timedelta(data: Any) -> timedelta:
    days, seconds, microseconds = data
    return timedelta(days, seconds, microseconds)


def _decode_decimal(data: Any) -> Decimal:
    if not isinstance(data, str):
        raise ValueError("expected a string")
    return Decimal(data)


def _encode_complex(value: complex) -> JsonValue:
    return [encode_float(value.real), encode_float(value.imag)]


def _decode_complex(data: Any) -> complex:
    real, imaginary = data
    return complex(_number(real), _number(imaginary))


def _encode_fraction(value: Fraction) -> JsonValue:
    if not _is_small(value.numerator, value.denominator):
        return None
    return [encode_int(value.numerator), encode_int(value.denominator)]


def _decode_fraction(data: Any) -> Fraction:
    # Always two numbers: Fraction("1e999999999") would take all memory.
    numerator, denominator = (_number(part) for part in data)
    if not _is_small(numerator, denominator):
        raise ValueError("numerator or denominator too large")
    return Fraction(numerator, denominator)


def _is_small(numerator: int, denominator: int) -> bool:
    return abs(numerator) < _FRACTION_LIMIT and denominator < _FRACTION_LIMIT


def _number(data: Any) -> Any:
    if isinstance(data, dict):
        ((tag, text),) = data.items()
        return NUMBERS[tag](text)
    return data


def _path_leaf(cls: type[PurePath], tag: str) -> Leaf:
    return Leaf(
        tag,
        lambda value: encode_text(str(value)),
        lambda data: cls(_decode_text(data["$str"]) if isinstance(data, dict) else data),
    )


NUMBERS: dict[str, Callable[[str], Any]] = {"$int": _decode_int, "$float": _decode_float}

LEAVES: dict[type, Leaf] = {
    bytes: Leaf("$bytes", encode_bytes, decode_bytes),
    bytearray: Leaf("$bytearray", encode_bytes, lambda data: bytearray(decode_bytes(data))),
    datetime: Leaf("$datetime", _encode_clock, lambda data: _decode_clock(datetime, data)),
    time: Leaf("$time", _encode_clock, lambda data: _decode_clock(time, data)),
    date: Leaf("$date", date.isoformat, date.fromisoformat),
    timedelta: Leaf("$timedelta", _encode_timedelta, _decode_timedelta),
    timezone: Leaf("$timezone", _encode_zone, _decode_zone),
    ZoneInfo: Leaf("$zoneinfo", _encode_zone, _decode_zone),
    Decimal: Leaf("$decimal", str, _decode_decimal),
    Fraction: Leaf("$fraction", _encode_fraction, _decode_fraction),
    complex: Leaf("$complex", _encode_complex, _decode_complex),
    UUID: Leaf("$uuid", str, UUID),
    type(Path()): _path_leaf(Path, "$path"),
    PurePosixPath: _path_leaf(PurePosixPath, "$posixpath"),
    PureWindowsPath: _path_leaf(PureWindowsPath, "$windowspath"),
}

DECODERS: dict[str, Callable[[Any], Any]] = {
    **NUMBERS,
    "$str": _decode_text,
    **{leaf.tag: leaf.decode for leaf in LEAVES.values()},
}
