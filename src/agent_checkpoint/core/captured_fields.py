"""Reads what is captured of a `Checkpointable`: its fields and its version.

Copying, loading and the codec are below that class, which uses them. They know its instances by a
mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.class_names import ask_class
from agent_checkpoint.core.path_errors import PathError, cause_text
from agent_checkpoint.core.stateful import META, is_version
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from agent_checkpoint.core.checkpointable import Checkpointable

_MARK = "_checkpoint_base"
"""A class attribute of `Checkpointable`."""


def is_checkpointable(value: object) -> TypeIs[Checkpointable]:
    """Return whether a value is a Checkpointable."""
    return hasattr(type(value), _MARK)


def is_checkpointable_class(cls: type) -> TypeIs[type[Checkpointable]]:
    """Return whether a class is a subclass of Checkpointable."""
    return hasattr(cls, _MARK)


def overrides(value: Checkpointable, method: str) -> bool:
    """Return whether the class overrides a method of Checkpointable."""
    owner = next(cls for cls in type(value).__mro__ if method in vars(cls))
    return _MARK not in vars(owner)


def read_fields(value: Checkpointable) -> dict[str, Any]:
    """Return the captured attributes of an object, not copied.

    Raises:
        PathError: `_checkpoint_fields()` returns a missing or a reserved name.
    """
    fields: dict[str, Any] = {}
    names = value._checkpoint_fields()
    if not isinstance(names, Iterable) or isinstance(names, str):
        raise PathError(
            f"has a _checkpoint_fields() that returns {short_repr(names)}, not a list of names."
        )
    for name in names:
        if not isinstance(name, str):
            raise PathError(
                f"has a _checkpoint_fields() that returns the name {short_repr(name)}, not a "
                "string."
            )
        if name in META:
            raise PathError("cannot be captured: the name is reserved.").at(f".{name}")
        try:
            fields[name] = getattr(value, name)
        except AttributeError:
            raise PathError(
                f"does not exist, but {type(value).__name__}._checkpoint_fields() lists it."
            ).at(f".{name}") from None
        except Exception as error:
            raise PathError(f"cannot be read ({cause_text(error)}).").at(f".{name}") from error
    return fields


def version_of(value: Checkpointable | type) -> str:
    """Return the version of an object or a class.

    Raises:
        PathError: the version is not dotted numbers, or the hook of the class needs an instance.
    """
    if not isinstance(value, type):
        version = value._checkpoint_version()
    else:
        try:
            version = ask_class(value, "_checkpoint_version")
        except AttributeError as error:
            raise PathError(
                f"cannot be rebuilt: {value.__qualname__}._checkpoint_version() must work without "
                f"an instance ({error})."
            ) from error
    if not is_version(str(version)):
        raise PathError(
            f"has the version {short_repr(version)}: _checkpoint_version() must return dotted "
            "numbers such as '2.0'."
        )
    return str(version)
