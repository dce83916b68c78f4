"""The Stateful protocol and the types of states. Does not depend on the codec."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from agent_checkpoint.named_tuple import NamedTuple

CLASS = "__class__"
VERSION = "__version__"
META = frozenset({CLASS, VERSION})
"""The members of a state that are not fields."""

_VERSION_FORM = r"\d{1,9}(\.\d{1,9}){0,9}"


def is_version(text: str) -> bool:
    """Return whether a string is a version: dotted numbers."""
    return re.fullmatch(_VERSION_FORM, text) is not None


@runtime_checkable
class Stateful(Protocol):
    """Anything with `state_dict()` and `load_state_dict(state)`: an agent, a torch module."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Load a state."""


class StateDict(dict[str, Any]):
    """The state of an object; a distinct type, so that it is not confused with a user's dict.

    `types` are the classes in the type hints of the object's class: their values are encoded field
    by field without registration. `fresh` lists the fields whose values were newly decoded and
    contain no states; a load that owns the state can assign them without copying.
    """

    __slots__ = ("fresh", "types")

    def __init__(
        self,
        *args: Any,
        types: Mapping[str, type] | None = None,
        fresh: Collection[str] = (),
        **fields: Any,
    ) -> None:
        super().__init__(*args, **fields)
        self.types: Mapping[str, type] = types or {}
        self.fresh = fresh

    def __reduce__(self) -> tuple[type[StateDict], tuple[dict[str, Any]]]:
        # Without the hints: local classes cannot be pickled.
        return type(self), (dict(self),)


class LoadResult(NamedTuple):
    """Missing and unexpected keys of a non-strict load, as paths below the object."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def is_stateful(value: Any) -> bool:
    """Return whether an object (not a class) is a Stateful, including through `__getattr__`."""
    # Since Python 3.12 isinstance(value, Stateful) ignores __getattr__.
    if isinstance(value, type):
        return False
    try:
        return callable(value.state_dict) and callable(value.load_state_dict)
    except Exception:  # a dict with attribute access may raise KeyError
        return False


def writes_own_objects(value: Any) -> bool:
    """Return whether a value is a Stateful that writes its own objects (`checkpoint_to`)."""
    return callable(getattr(type(value), "checkpoint_to", None)) and is_stateful_part(value)


def is_stateful_part(value: Any) -> bool:
    """Return whether the class of a value is a Stateful. A mock instance has every attribute."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )
