"""Registries of the class names and aliases by which states refer to classes.

Never imports a module for a name: only classes that the program has defined can be found.
"""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import ref

from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.records import short_repr

_lock = threading.Lock()
_classes: dict[str, list[ref[type]]] = {}  # in order of definition
_ambiguous: set[str] = set()
_aliases: dict[str, str] = {}


def register_alias(old: str, new: str) -> None:
    """Load states and values of the class `old` as those of `new`.

    Raises:
        InvalidInputError: a name is not a non-empty string, or the alias would form a cycle.
    """
    for name in (old, new):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(
                f"A class name must be a non-empty string, not {short_repr(name)}."
            )
    with _lock:
        if _follow(new) == old:
            raise InvalidInputError(f"The alias {short_repr(old)} would form a cycle.")
        _aliases[old] = new


def canonical(name: str) -> str:
    """Return the current name of a class, following aliases."""
    with _lock:
        return _follow(name)


def register_class(cls: type) -> None:
    """Register a class under its name."""
    with _lock:
        name = name_of(cls)
        alive = [known for known in _classes.get(name, ()) if known() is not None]
        _classes[name] = [*alive, ref(cls)]
        _ambiguous.discard(name)


def find_class(name: str) -> Any:
    """Return the class of a nested state by name.

    Raises:
        StateError: no class of that name is defined, or several are.
    """
    name = canonical(name)
    found = _candidates(name)
    if len(found) > 1 and name not in _ambiguous:
        gc.collect()  # unused classes may linger in reference cycles
        found = _candidates(name)
        if len(found) > 1:
            _ambiguous.add(name)  # collecting is slow, and would not help the next time
    if not found:
        raise StateError(
            f"is of the class {short_repr(name)}, which is not defined here. Import the module "
            "that defines it, or call register_alias() if it was renamed."
        )
    if len(found) > 1:
        qualified = ", ".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in found))
        raise StateError(
            f"is of the class {short_repr(name)}, which is the name of several classes "
            f"({qualified}). Give each its own _checkpoint_name()."
        )
    return found[0]


def name_of(cls: type) -> str:
    """Return the name by which states refer to a class.

    Raises:
        InvalidInputError: its `_checkpoint_name()` needs an instance.
    """
    try:
        return str(ask_class(cls, "_checkpoint_name"))
    except AttributeError as error:
        raise InvalidInputError(
            f"{cls.__qualname__}._checkpoint_name() must work without an instance ({error})."
        ) from error


def ask_class(cls: type, method: str) -> Any:
    """Call a hook without an instance; an ordinary method gets the class as `self`."""
    bound = getattr(cls, method)
    static = next(vars(base)[method] for base in cls.__mro__ if method in vars(base))
    return bound() if isinstance(static, (classmethod, staticmethod)) else bound(cls)


def _follow(name: str) -> str:
    while name in _aliases:
        name = _aliases[name]
    return name


def _candidates(name: str) -> list[type]:
    with _lock:
        found = [known() for known in _classes.get(name, ())]
    # A class that is defined again (a notebook cell run twice) replaces the first.
    newest = {(cls.__module__, cls.__qualname__): cls for cls in found if cls is not None}
    return list(newest.values())
