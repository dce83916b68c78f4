"""Dataclasses, named tuples, Enums, attrs classes and pydantic models, field by field.

Owns how each kind is taken apart and put together without running its `__init__`; knows no
registry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple


class Structure(NamedTuple):
    """How values of one class become fields and come back.

    `encode` returns None if the value has more than its fields tell; it is then left to others.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def structure_of(cls: type) -> Structure | None:
    """Return how a class is taken apart, or None if it is of no kind that we know."""
    if issubclass(cls, Enum):
        return Structure(_encode_enum, lambda data: _decode_enum(cls, data))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Structure(_encode_named_tuple, lambda data: _decode_named_tuple(cls, data))
    if hasattr(cls, "model_construct") and hasattr(cls, "model_fields"):
        return Structure(_encode_pydantic, lambda data: _decode_pydantic(cls, data))
    if any(base.__module__ == "builtins" and base is not object for base in cls.__mro__):
        return None  # a dict or an exception, say, has content that no field tells
    if dataclasses.is_dataclass(cls):
        names = tuple(field.name for field in dataclasses.fields(cls))
    elif hasattr(cls, "__attrs_attrs__"):
        names = tuple(field.name for field in cls.__attrs_attrs__)
    else:
        return None
    return Structure(lambda value: _encode_fields(names, value), lambda data: _build(cls, data))


def _encode_enum(value: Enum) -> Any:
    # By name, which survives renumbering; a combination of flags has no name of its own.
    if type(value).__members__.get(value.name or "") is value:
        return value.name
    return {"value": value.value}


def _decode_enum(cls: type[Enum], data: Any) -> Any:
    if isinstance(data, str):
        if data not in cls.__members__:
            raise ValueError(f"{cls.__name__} has no member {data!r}")
        return cls.__members__[data]
    return cls(data["value"])


def _encode_named_tuple(value: Any) -> dict[str, Any] | None:
    if getattr(value, "__dict__", None):
        return None  # attributes beyond the fields would be lost
    return dict(zip(value._fields, value))


def _decode_named_tuple(cls: Any, data: Mapping[str, Any]) -> Any:
    _check_names(cls, data, cls._fields)
    defaults = cls._field_defaults
    return tuple.__new__(
        cls, [data[name] if name in data else defaults[name] for name in cls._fields]
    )


def _encode_fields(names: tuple[str, ...], value: Any) -> dict[str, Any] | None:
    if set(getattr(value, "__dict__", ())) - set(names):
        return None  # attributes beyond the fields would be lost
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _build(cls: Any, data: Mapping[str, Any]) -> Any:
    defaults = _defaults(cls)
    _check_names(cls, data, defaults)
    fresh = cls.__new__(cls)
    for name, make_default in defaults.items():
        if name in data:
            object.__setattr__(fresh, name, data[name])
        elif make_default is not None:
            object.__setattr__(fresh, name, make_default())
    return fresh


def _defaults(cls: Any) -> dict[str, Callable[[], Any] | None]:
    """Return a maker of the default for each field; None where the field has none."""
    if dataclasses.is_dataclass(cls):
        return {field.name: _dataclass_default(field) for field in dataclasses.fields(cls)}
    return {field.name: _attrs_default(field.default) for field in cls.__attrs_attrs__}


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None


def _attrs_default(default: Any) -> Callable[[], Any] | None:
    if type(default).__name__ == "Factory" and not default.takes_self:
        return default.factory  # type: ignore[no-any-return]
    if repr(default) == "NOTHING" or type(default).__name__ == "Factory":
        return None
    return lambda: default


def _encode_pydantic(value: Any) -> dict[str, Any]:
    state = value.__getstate__()
    extra, private = state["__pydantic_extra__"], state["__pydantic_private__"]
    data: dict[str, Any] = {"fields": state["__dict__"], "set": state["__pydantic_fields_set__"]}
    if extra:
        data["extra"] = extra
    if private:
        data["private"] = private
    return data


def _decode_pydantic(cls: Any, data: Mapping[str, Any]) -> Any:
    fields = dict(data["fields"])
    for name, field in cls.model_fields.items():
        if name not in fields and not field.is_required():
            fields[name] = field.get_default(call_default_factory=True)
    fresh = cls.__new__(cls)
    fresh.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": set(data["set"]),
            "__pydantic_extra__": data.get("extra", {} if _keeps_extra(cls) else None),
            "__pydantic_private__": data.get("private"),
        }
    )
    return fresh


def _keeps_extra(cls: Any) -> bool:
    return bool(cls.model_config.get("extra") == "allow")


def _check_names(cls: type, data: Any, known: Any) -> None:
    if not isinstance(data, Mapping):
        raise ValueError("not fields by name")
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
