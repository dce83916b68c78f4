"""Encodes scalars of library modules: dates, decimals, fractions, UUIDs. Owns their text forms.

Loaded when a program saves or loads the first such value: these modules are slow to import.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from agent_checkpoint.core.codec.scalars import Leaf, decode_number, encode_int
from agent_checkpoint.records import JsonValue

_FRACTION_LIMIT = 2**80_000
"""The largest numerator or denominator: reducing a Fraction takes quadratic time."""


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


def _encode_fraction(value: Fraction) -> JsonValue:
    if not _is_small(value.numerator, value.denominator):
        return None
    return [encode_int(value.numerator), encode_int(value.denominator)]


def _decode_fraction(data: Any) -> Fraction:
    # Always two numbers: Fraction("1e999999999") would take all memory.
    numerator, denominator = (decode_number(part) for part in data)
    if not _is_small(numerator, denominator):
        raise ValueError("numerator or denominator too large")
    return Fraction(numerator, denominator)


def _is_small(numerator: int, denominator: int) -> bool:
    return abs(numerator) < _FRACTION_LIMIT and denominator < _FRACTION_LIMIT


LIBRARY_LEAVES: dict[type, Leaf] = {
    datetime: Leaf("$datetime", _encode_clock, lambda data: _decode_clock(datetime, data)),
    time: Leaf("$time", _encode_clock, lambda data: _decode_clock(time, data)),
    date: Leaf("$date", date.isoformat, date.fromisoformat),
    timedelta: Leaf("$timedelta", _encode_timedelta, _decode_timedelta),
    timezone: Leaf("$timezone", _encode_zone, _decode_zone),
    ZoneInfo: Leaf("$zoneinfo", _encode_zone, _decode_zone),
    Decimal: Leaf("$decimal", str, _decode_decimal),
    Fraction: Leaf("$fraction", _encode_fraction, _decode_fraction),
    UUID: Leaf("$uuid", str, UUID),
}
