"""Encodes dataclasses, named tuples, Enums, attrs classes and pydantic models field by field.

Values are rebuilt without calling `__init__`. Does not depend on the type registry.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from functools import cache, cached_property
from types import BuiltinFunctionType
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import StateError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

_ATTRS = "__attrs_attrs__"
_GENERATED = frozenset({"slots_getstate", "_dataclass_getstate"})
"""The names of `__getstate__` in attrs classes and dataclasses with slots."""

BEYOND_FIELDS = object()
"""Returned by `Structure.encode` for a value with content outside its fields."""


class FieldMismatch(NamedTuple):
    """How stored fields differ from those of the class."""

    missing: list[str]
    unexpected: list[str]


class Structure(NamedTuple):
    """The encoder and the decoder of one class: from a value to its fields, and back.

    `compare` finds differences between stored fields and those of the class; `decode` fills missing
    fields with their defaults and ignores unexpected ones. `migrate` applies a function to the
    fields by name.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    compare: Callable[[Any], FieldMismatch] = lambda data: FieldMismatch([], [])
    migrate: Callable[[Any, Callable[[Any], Any]], Any] = lambda data, run: run(data)


def has_hidden_content(cls: type) -> bool:
    """Return whether a class inherits from a C type with non-attribute content, such as list."""
    # Only such classes have a __new__ in C.
    return any(
        isinstance(base.__dict__.get("__new__"), BuiltinFunctionType)
        for base in cls.__mro__
        if base is not object
    )


def attributes(value: Any) -> dict[str, Any]:
    """Return all attributes of a value, including slots."""
    slots = [
        f"_{cls.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
        for cls in type(value).__mro__
        for name in _slots(cls)
    ]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def structure_of(cls: type) -> Structure | None:
    """Return the encoder and the decoder of a class.

    None unless it is an Enum, a named tuple, a dataclass, an attrs class or a pydantic model.
    """
    if issubclass(cls, Enum):
        return Structure(_encode_enum, lambda data: _decode_enum(cls, data))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Structure(
            _encode_named_tuple,
            lambda data: _decode_named_tuple(cls, data),
            lambda data: _compare(data, cls._fields, cls._fields),
        )
    if hasattr(cls, "model_construct") and hasattr(cls, "model_fields"):
        return Structure(
            _encode_pydantic,
            lambda data: _decode_pydantic(cls, data),
            lambda data: _compare_pydantic(cls, data),
            lambda data, run: _migrate_pydantic(cls, data, run),
        )
    if has_hidden_content(cls):
        return None
    if _is_dataclass(cls):
        fields: Iterable[Any] = _dataclasses().fields(cls)
    elif hasattr(cls, _ATTRS):
        fields = getattr(cls, _ATTRS)
    else:
        return None
    names = tuple(field.name for field in fields)
    # A field without an argument of __init__ and without a default may never have been set.
    unset = {field.name for field in fields if not field.init}
    unset -= {name for name, default in _defaults(cls).items() if default is not None}
    required = [name for name in names if name not in unset]
    return Structure(
        lambda value: _encode_fields(names, value),
        lambda data: _build(cls, data),
        lambda data: _compare(data, names, required),
    )


def lost_fields(value: Any) -> FieldMismatch | None:
    """Return how an unpickled value differs from its class if it lacks fields; None if it does not.

    Attributes beyond the fields are allowed: a value with such attributes is pickled.
    """
    cls = type(value)
    structure = None if issubclass(cls, (Enum, tuple)) else structure_of(cls)
    if structure is None:
        return None
    is_model = hasattr(cls, "model_construct")
    found = structure.compare(_encode_pydantic(value) if is_model else attributes(value))
    unexpected = [name for name in found.unexpected if not _is_cached(cls, name)]
    if not unexpected and not is_model and _drops_fields(cls):
        return None
    # A default of the class hides a field that was renamed.
    missing = [name for name in found.missing if unexpected or not hasattr(value, name)]
    return FieldMismatch(missing, unexpected) if missing else None


def _drops_fields(cls: type) -> bool:
    """Whether a class chooses what its pickles contain."""
    own = [getattr(cls, name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__")]
    default = [
        getattr(object, name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__")
    ]
    return any(
        one is not other and getattr(one, "__name__", "") not in _GENERATED
        for one, other in zip(own, default)
        if one is not None
    )


def _encode_enum(value: Enum) -> Any:
    # By name, which survives renumbering; a combination of flags has no name.
    if type(value).__members__.get(value.name or "") is value:
        return value.name
    return {"value": value.value}


def _decode_enum(cls: type[Enum], data: Any) -> Any:
    if isinstance(data, str):
        if data not in cls.__members__:
            raise StateError(f"{cls.__name__} has no member {short_repr(data)}")
        return cls.__members__[data]
    return cls(data["value"])


def _encode_named_tuple(value: Any) -> Any:
    if getattr(value, "__dict__", None):
        return BEYOND_FIELDS
    return dict(zip(value._fields, value))


def _decode_named_tuple(cls: Any, data: Mapping[str, Any]) -> Any:
    defaults = cls._field_defaults
    lacking = [name for name in cls._fields if name not in data and name not in defaults]
    if lacking:
        raise StateError(f"{cls.__name__} needs {', '.join(lacking)}")
    return tuple.__new__(
        cls, [data[name] if name in data else defaults[name] for name in cls._fields]
    )


def _encode_fields(names: tuple[str, ...], value: Any) -> Any:
    extra = set(attributes(value)) - set(names)
    if extra:
        _check_attrs(type(value), extra)
        return BEYOND_FIELDS
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _check_attrs(cls: type, extra: set[str]) -> None:
    """Reject extra attributes of a slotted attrs class: its pickle would drop them too."""
    if getattr(getattr(cls, "__getstate__", None), "__name__", "") != "slots_getstate":
        return
    # Slots that attrs adds are cached properties, which are recomputed.
    cached = {name for base in cls.__mro__ if hasattr(base, _ATTRS) for name in _slots(base)}
    if extra - cached:
        raise StateError(
            f"the attributes {', '.join(sorted(extra))} are not attrs fields, and the attrs pickle "
            "would drop them"
        )


def _build(cls: Any, data: Mapping[str, Any]) -> Any:
    defaults = _defaults(cls)
    fresh = object.__new__(cls)  # its own __new__ may take arguments
    for name, make_default in defaults.items():
        if name in data:
            object.__setattr__(fresh, name, data[name])
        elif make_default is not None:
            object.__setattr__(fresh, name, make_default())
    return fresh


def _defaults(cls: Any) -> dict[str, Callable[[], Any] | None]:
    """Return a default factory for each field; None if the field has no default."""
    if _is_dataclass(cls):
        return {field.name: _dataclass_default(field) for field in _dataclasses().fields(cls)}
    return {field.name: _attrs_default(field.default) for field in cls.__attrs_attrs__}


def _is_dataclass(cls: type) -> bool:
    """Return whether a class is a dataclass, without loading `dataclasses`, which is slow."""
    return hasattr(cls, "__dataclass_fields__")


@cache
def _dataclasses() -> Any:
    with block_forks():
        import dataclasses  # slow to load

    return dataclasses


def _dataclass_default(field: Any) -> Callable[[], Any] | None:
    missing = _dataclasses().MISSING
    if field.default_factory is not missing:
        return field.default_factory  # type: ignore[no-any-return]
    if field.default is not missing:
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
    if private is not None:
        data["private"] = private
    return data


def _decode_pydantic(cls: Any, data: Mapping[str, Any]) -> Any:
    fields, private = dict(data["fields"]), data.get("private")
    for name, field in cls.model_fields.items():
        if name not in fields and not field.is_required():
            fields[name] = field.get_default(call_default_factory=True)
    defaults = _private_defaults(cls)
    if private is not None or defaults:
        given = private or {}
        private = {**given, **{name: defaults[name]() for name in defaults if name not in given}}
    fresh = cls.__new__(cls)
    fresh.__setstate__(
        {
            "__dict__": fields,
            "__pydantic_fields_set__": set(data["set"]),
            "__pydantic_extra__": data.get("extra", {} if _keeps_extra(cls) else None),
            "__pydantic_private__": private,
        }
    )
    return fresh


def _compare_pydantic(cls: Any, data: Mapping[str, Any]) -> FieldMismatch:
    fields, private = data["fields"], data.get("private") or {}
    given = [name for name in fields if not _is_cached(cls, name)]
    if not _keeps_extra(cls):
        given += data.get("extra") or ()
    missing, unexpected = _compare(dict.fromkeys(given), cls.model_fields, cls.model_fields)
    hidden = _compare(private, cls.__private_attributes__, _private_defaults(cls))
    return FieldMismatch(missing + hidden.missing, unexpected + hidden.unexpected)


def _migrate_pydantic(
    cls: Any, data: Mapping[str, Any], run: Callable[[Any], Any]
) -> dict[str, Any]:
    """Migrate fields, extra fields and private attributes as one dict, without cached values."""
    fields = {name: data["fields"][name] for name in data["fields"] if not _is_cached(cls, name)}
    old = {**fields, **(data.get("extra") or {}), **(data.get("private") or {})}
    new, was_set = run(dict(old)), set(data["set"])
    private = {name: new[name] for name in new if name in cls.__private_attributes__}
    extra = {
        name: new[name]
        for name in new
        if _keeps_extra(cls) and name not in private and name not in cls.model_fields
    }
    fields = {name: new[name] for name in new if name not in private and name not in extra}
    is_set = {name for name in {**fields, **extra} if name in was_set or name not in old}
    migrated: dict[str, Any] = {"fields": fields, "set": is_set}
    if extra:
        migrated["extra"] = extra
    if private or data.get("private") is not None:
        migrated["private"] = private
    return migrated


def _private_defaults(cls: Any) -> dict[str, Callable[[], Any]]:
    """Return the defaults of private attributes; those without a default may never be set."""
    return {
        name: attribute.default_factory or attribute.get_default
        for name, attribute in cls.__private_attributes__.items()
        if attribute.default_factory is not None or repr(attribute.default) != "PydanticUndefined"
    }


def _keeps_extra(cls: Any) -> bool:
    return bool(cls.model_config.get("extra") == "allow")


def _is_cached(cls: Any, name: str) -> bool:
    # Pydantic keeps the values of cached properties among the fields.
    return isinstance(getattr(cls, name, None), cached_property)


def _compare(data: Any, known: Container[str], required: Iterable[str]) -> FieldMismatch:
    if not isinstance(data, Mapping):
        raise StateError("expected a mapping of fields")
    return FieldMismatch(
        [name for name in required if name not in data],
        sorted(str(name) for name in data if name not in known),
    )
