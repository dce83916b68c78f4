"""The `Checkpointable` mixin and its hooks. Copying, loading and diffs are in their own modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from agent_checkpoint.core.class_names import ask_class, name_of, register_class
from agent_checkpoint.core.path_errors import PathError, as_state_error, cause_text
from agent_checkpoint.core.stateful import META, VERSION_FORM, LoadResult, is_stateful
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr

Self = TypeVar("Self", bound="Checkpointable")


class Checkpointable:
    """Gives a class `state_dict()` and `load_state_dict()`, as in PyTorch, without further code.

    Captures the attributes without a leading underscore, or those that `_checkpoint_fields()`
    names. Four optional hooks change the defaults.
    """

    __slots__ = ()

    def state_dict(self) -> dict[str, Any]:
        """Return a snapshot of the captured fields, with `__version__` and `__class__`.

        Raises:
            StateError: a value cannot be copied; the message names its path.
        """
        from agent_checkpoint.core.codec.encode import own_state
        from agent_checkpoint.core.copying import snapshot

        with as_state_error("agent", self):
            # Not an overriding state_dict(): it may be the caller, through super().
            state: dict[str, Any] = snapshot(own_state(self))
            return state

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> LoadResult:
        """Load a state, all or nothing.

        Fields missing from the state keep their current value.

        Args:
            state: a result of `state_dict()`, possibly of an older version of the class.
            strict: refuse a state that lacks fields or has unexpected ones.

        Raises:
            StateMismatchError: the state is of another class, or its fields differ in strict mode.
            MigrationError: the state cannot be migrated to the current version.
            StateError: a value cannot be rebuilt or assigned.
        """
        from agent_checkpoint.core.loading import load

        return load(self, state, strict=strict)

    def clone(self: Self) -> Self:
        """Return a copy with its own captured state; other attributes are shared.

        Raises:
            StateError: a value cannot be copied.
        """
        from agent_checkpoint.core.copying import cloned

        with as_state_error("agent", self):
            twin = cloned(self)
        if overrides(self, "state_dict") or overrides(self, "load_state_dict"):
            twin.load_state_dict(self.state_dict())
        return twin

    def diff(self, other: Checkpointable, *, deep: bool = False) -> dict[str, dict[str, Any]]:
        """Return the changes from this state to another: added, removed, changed.

        Args:
            other: the object to compare with.
            deep: name paths inside values (`memory[2].role`) instead of whole fields.

        Raises:
            StateError: a value cannot be copied.
        """
        from agent_checkpoint.core.state_diff import diff_states

        if not is_stateful(other):
            raise InvalidInputError(f"diff() takes a Stateful, not {short_repr(other)}.")
        return diff_states(self.state_dict(), other.state_dict(), deep=deep)

    # -- hooks -----------------------------------------------------------------------------------

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_class(cls)

    def _checkpoint_fields(self) -> list[str]:
        """Return the names of the attributes to capture: all without a leading underscore."""
        names = dict.fromkeys(getattr(self, "__dict__", {}))
        for cls in type(self).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            names.update(dict.fromkeys([slots] if isinstance(slots, str) else slots))
        return [name for name in names if not name.startswith("_") and hasattr(self, name)]

    def _checkpoint_version(self) -> str:
        """Return the version of the layout of the captured fields."""
        return "1.0"

    @classmethod
    def _checkpoint_name(cls) -> str:
        """Return the name by which states refer to this class."""
        return cls.__name__

    @classmethod
    def _checkpoint_new(cls: type[Self], state: dict[str, Any]) -> Self:
        """Rebuild an object from its migrated state without `__init__`, which may have effects."""
        fresh = cls.__new__(cls)
        fresh.load_state_dict(state)
        return fresh


def overrides(value: Checkpointable, method: str) -> bool:
    """Return whether the class overrides a method."""
    return getattr(type(value), method) is not getattr(Checkpointable, method)


def read_fields(value: Checkpointable) -> dict[str, Any]:
    """Return the captured attributes of an object, not copied.

    Raises:
        PathError: `_checkpoint_fields()` names a missing field or a reserved name.
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
                f"does not exist, but {type(value).__name__}._checkpoint_fields() names it."
            ).at(f".{name}") from None
        except Exception as error:
            raise PathError(f"cannot be read ({cause_text(error)}).").at(f".{name}") from error
    return fields


def version_of(value: Checkpointable | type) -> str:
    """Return the version of an object or a class.

    Raises:
        PathError: it is not dotted numbers, or the hook of the class needs an instance.
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
    if VERSION_FORM.fullmatch(str(version)) is None:
        raise PathError(
            f"has the version {short_repr(version)}: _checkpoint_version() must return dotted "
            "numbers such as '2.0'."
        )
    return str(version)


def class_name(value: Checkpointable) -> str:
    """Return the class name in the state of an object."""
    return name_of(type(value))
