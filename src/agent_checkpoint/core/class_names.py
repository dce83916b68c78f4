"""The names by which states and types refer to classes.

Owns the registries of classes and aliases; imports nothing on behalf of a name: only classes that
the program has defined can be found.
"""

from __future__ import annotations

import gc
import inspect
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
    """Accept states and values of the class name `old` as those of `new`.

    Raises:
        InvalidInputError: the alias would lead back to itself.
    """
    for name in (old, new):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"A class name is non-empty text, not {short_repr(name)}.")
    with _lock:
        if _follow(new) == old:
            raise InvalidInputError(f"The alias {short_repr(old)} would lead back to itself.")
        _aliases[old] = new


def canonical(name: str) -> str:
    """Return the present name of a class, following aliases."""
    with _lock:
        return _follow(name)


def register_class(cls: type) -> None:
    """Make a class findable by its name."""
    with _lock:
        name = name_of(cls)
        alive = [known for known in _classes.get(name, ()) if known() is not None]
        _classes[name] = [*alive, ref(cls)]
        _ambiguous.discard(name)


def find_class(name: str) -> Any:
    """Return the class that a nested state names.

    Raises:
        StateError: no class of that name is defined, or several are.
    """
    name = canonical(name)
    found = _candidates(name)
    if len(found) > 1 and name not in _ambiguous:
        gc.collect()  # classes that are no longer used linger in reference cycles
        found = _candidates(name)
        if len(found) > 1:
            _ambiguous.add(name)  # to collect takes long, and would find no more the next time
    if not found:
        raise StateError(
            f"is of the class {short_repr(name)}, which is not defined here. Import the module "
            "that defines it, or register_alias() its new name."
        )
    if len(found) > 1:
        places = ", ".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in found))
        raise StateError(
            f"is of the class {short_repr(name)}, which several have as their name ({places}). "
            "Give them a _checkpoint_name() of their own."
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
            f"{cls.__qualname__}._checkpoint_name() must do without an instance ({error})."
        ) from error


def ask_class(cls: type, method: str) -> Any:
    """Call a hook that needs no instance, whether it was written as a class method or not."""
    bound = getattr(cls, method)
    static = inspect.getattr_static(cls, method)
    return bound() if isinstance(static, (classmethod, staticmethod)) else bound(cls)


def _follow(name: str) -> str:
    while name in _aliases:
        name = _aliases[name]
    return name


def _candidates(name: str) -> list[type]:
    with _lock:
        found = [known() for known in _classes.get(name, ())]
    # A class defined again in the same place (a notebook cell run twice) replaces the first.
    newest = {(cls.__module__, cls.__qualname__): cls for cls in found if cls is not None}
    return list(newest.values())
