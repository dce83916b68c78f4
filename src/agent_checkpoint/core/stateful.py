"""What a state is. Owns the Stateful protocol and the types of a state; knows no codec."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

CLASS = "__class__"
VERSION = "__version__"
META = frozenset({CLASS, VERSION})
"""The members of a state that are not fields."""


VERSION_FORM = re.compile(r"\d{1,9}(\.\d{1,9}){0,9}")
"""A version is dotted numbers."""


@runtime_checkable
class Stateful(Protocol):
    """Anything with `state_dict()` and `load_state_dict(state)`: an agent, a torch module."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take the state over."""


class StateDict(dict[str, Any]):
    """The state of an object, as against a user's own dict, which stays data.

    `types` are the classes that the type hints of the object's class name: values of theirs are
    written field by field without being registered. `fresh` are the fields whose values were just
    made, with no states in them: a load that owns the state may take them as they are.
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
        # The hints stay behind: pickles of classes would fail for local ones.
        return type(self), (dict(self),)


class LoadResult(NamedTuple):
    """What did not match when a state was loaded leniently; names are paths below the object."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def is_stateful(value: Any) -> bool:
    """Tell whether an object (not a class) is a Stateful, also if it is one by `__getattr__`."""
    # isinstance(value, Stateful) sees no __getattr__ from Python 3.12 on.
    if isinstance(value, type):
        return False
    try:
        return callable(value.state_dict) and callable(value.load_state_dict)
    except Exception:  # a dict with attribute access may say KeyError
        return False


def writes_own_objects(value: Any) -> bool:
    """Tell whether a Stateful stores objects of its own, by `checkpoint_to(writer)`."""
    return callable(getattr(type(value), "checkpoint_to", None)) and is_stateful_part(value)


def is_stateful_part(value: Any) -> bool:
    """Tell whether an attribute is a Stateful by its class: a mock has every attribute."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(
        getattr(kind, "load_state_dict", None)
    )
