"""The registry of user types that the codec encodes as JSON.

A type tag in a checkpoint can only refer to a registered type, or to a type in the hints of the
class being loaded. So an untrusted checkpoint cannot import or call anything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from agent_checkpoint.core.class_names import canonical
from agent_checkpoint.core.codec.structures import Structure, structure_of
from agent_checkpoint.core.migrations import parse_version
from agent_checkpoint.core.stateful import is_version
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

T = TypeVar("T")

FIRST_VERSION = "1.0"
"""The version of a type that declares none. Its values are stored without a version."""


class KnownType(NamedTuple):
    """A registered or hinted type: its name in checkpoints, its current version."""

    name: str
    structure: Structure
    version: str = FIRST_VERSION

    @property
    def tag(self) -> str:
        """What follows `$type:` in a checkpoint: the name, and a version from the second on."""
        is_first = parse_version(self.version) == parse_version(FIRST_VERSION)
        return self.name if is_first else f"{self.name}@{self.version}"


_lock = threading.Lock()
_by_class: dict[type, KnownType] = {}
_by_name: dict[str, type] = {}


@overload
def register_type(cls: type[T], /) -> type[T]: ...
@overload
def register_type(
    cls: type[T],
    encode: Callable[[T], Any],
    decode: Callable[[Any], T],
    *,
    name: str | None = None,
    version: str = FIRST_VERSION,
) -> type[T]: ...
@overload
def register_type(
    cls: type[T], *, name: str | None = None, version: str = FIRST_VERSION
) -> type[T]: ...
@overload
def register_type(
    *, name: str | None = None, version: str = FIRST_VERSION
) -> Callable[[type[T]], type[T]]: ...
def register_type(
    cls: Any = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    *,
    name: str | None = None,
    version: str = FIRST_VERSION,
) -> Any:
    """Save values of a class as readable JSON instead of a signed pickle. Also a decorator.

    Args:
        cls: the class. Dataclasses, named tuples, Enums, attrs classes and pydantic models need no
            functions.
        encode: returns a value that the codec can encode.
        decode: rebuilds the value from the result of `encode`.
        name: the name in checkpoints; the class name by default.
        version: the version of its fields. Values of older versions are migrated when they are
            loaded: see `register_migration`.

    Raises:
        InvalidInputError: the class needs `encode` and `decode`, its name is already registered for
            another class, or the version is not dotted numbers.
    """
    parse_version(version)
    if cls is None:
        return lambda decorated: register_type(decorated, name=name, version=version)
    if not isinstance(cls, type):
        raise InvalidInputError(f"register_type() takes a class, not {short_repr(cls)}.")
    if (encode is None) != (decode is None):
        raise InvalidInputError(f"{cls.__name__} needs both encode and decode, or neither.")
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidInputError(
            f"The name of a type must be a non-empty string, not {short_repr(name)}."
        )
    if encode is not None and not (callable(encode) and callable(decode)):
        raise InvalidInputError(f"encode and decode of {cls.__name__} must be functions.")
    if encode is not None and decode is not None:
        structure: Structure | None = Structure(encode, decode)
    else:
        structure = structure_of(cls)
    if structure is None:
        raise InvalidInputError(
            f"{cls.__name__} is not a dataclass, named tuple, Enum, attrs class or pydantic model. "
            "Pass encode and decode functions: register_type(cls, encode, decode)."
        )
    name = name or cls.__name__
    with _lock:
        taken = _by_name.get(name)
        if taken is not None and not _replaces(cls, taken):
            raise InvalidInputError(
                f"The name {short_repr(name)} is registered for "
                f"{taken.__module__}.{taken.__qualname__}. Choose another name with name=…."
            )
        _by_name[name] = cls
        _by_class[cls] = KnownType(name, structure, version)
    return cls


def type_of(value: Any, hinted: Mapping[str, type]) -> tuple[str, Structure] | None:
    """Return the tag and the Structure of a value, if its class is registered or hinted."""
    cls = type(value)
    known = _by_class.get(cls)
    if known is not None:
        return known.tag, known.structure
    if hinted.get(cls.__name__) is cls and cls.__name__ not in _by_name:
        structure = structure_of(cls)
        return None if structure is None else (cls.__name__, structure)
    return None


def type_named(tag: str, hinted: Mapping[str, type]) -> tuple[KnownType, str] | None:
    """Return the type of a tag in a checkpoint and the stored version; None if it is not known."""
    name, _, version = tag.rpartition("@")
    readings = [(tag, FIRST_VERSION)]  # first: a name may look like one with a version
    if name and is_version(version):
        readings.append((name, version))
    for stored_name, stored_version in readings:
        for known_name in dict.fromkeys((stored_name, canonical(stored_name))):
            cls = _by_name.get(known_name)
            if cls is not None:
                return _by_class[cls], stored_version
            structure = structure_of(hinted[known_name]) if known_name in hinted else None
            if structure is not None:
                return KnownType(known_name, structure), stored_version
    return None


def _replaces(cls: type, taken: type) -> bool:
    # Defined again (a notebook cell run twice), or local to a function.
    same = (cls.__module__, cls.__qualname__) == (taken.__module__, taken.__qualname__)
    return same or "<locals>" in taken.__qualname__
