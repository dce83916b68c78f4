"""Deep copies: snapshots with nested states, rebuilt nested objects, immutable items of logs."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.captured_fields import is_checkpointable, read_fields
from agent_checkpoint.core.codec.encode import state_of
from agent_checkpoint.core.codec.leaves import library_leaf
from agent_checkpoint.core.codec.scalars import LEAVES
from agent_checkpoint.core.immutable import (
    ImmutableDict,
    ImmutableList,
    immutable_dict,
    immutable_list,
)
from agent_checkpoint.core.path_errors import (
    ITEMS,
    MAX_DEPTH,
    OpaqueValueError,
    PathError,
    TooDeepError,
    cause_text,
    key_segment,
)
from agent_checkpoint.core.stateful import StateDict, is_stateful_part, writes_own_objects
from agent_checkpoint.store.objects.references import ObjectRef

if TYPE_CHECKING:
    from typing import TypeVar

    from agent_checkpoint.core.checkpointable import Checkpointable

    C = TypeVar("C", bound=Checkpointable)

SEQUENCES: dict[type, Callable[[Any, list[Any]], Any]] = {
    list: lambda _, items: items,
    ImmutableList: lambda _, items: items,
    tuple: lambda _, items: tuple(items),
    deque: lambda value, items: deque(items, value.maxlen),
}
"""Builds a sequence like another one from copied items. `core.log` adds its own."""
_MAPPINGS = frozenset({dict, ImmutableDict, OrderedDict, defaultdict, StateDict})
ATOMS = frozenset({type(None), bool, int, float, str, *LEAVES}) - {bytearray}
"""The immutable types without other values inside."""
CONSTANTS = ATOMS | {ImmutableDict, ImmutableList}
"""The types of the items of a log that cannot change, nor can anything in them."""

Descend = Callable[[Any, int, Any], Any]
"""Copies a nested value: the value, its depth, and the live object at the same position."""


def snapshot(value: Any, depth: int = 0, _: Any = None) -> Any:
    """Return a deep copy in which nested Checkpointables are replaced by their states.

    Raises:
        PathError: a value cannot be copied or is nested too deeply.
    """
    if is_checkpointable(value):
        value = state_of(value)
    elif writes_own_objects(value) and type(value) not in SEQUENCES:
        return value.state_dict()
    return _copy(value, depth, snapshot)


def rebuild_nested(
    value: Any, rebuild: Callable[[StateDict | ObjectRef, Any], Any], live: Any = None
) -> Any:
    """Return a deep copy in which nested states are replaced by objects.

    Args:
        value: a value that may contain states.
        rebuild: creates an object from a state and the live object at the same position.
        live: the containers that the value was captured from, with their live objects.

    Raises:
        PathError: a value cannot be copied, or a state cannot be rebuilt.
    """

    def descend(item: Any, depth: int, live: Any) -> Any:
        if isinstance(item, (StateDict, ObjectRef)):
            return rebuild(item, live)
        return _copy(item, depth, descend, live)

    return descend(value, 0, live)


def cloned(value: C, memo: dict[int, Any] | None = None) -> C:
    """Return a shallow copy of an object whose captured fields are deep copies.

    Nested Checkpointables are cloned too; one that is referenced twice is cloned once.

    Raises:
        PathError: a field cannot be copied or assigned.
    """
    known = {} if memo is None else memo
    if id(value) in known:
        twin: C = known[id(value)]
        return twin
    twin = known[id(value)] = copy.copy(value)
    descend = _Cloner(known)
    for name, item in read_fields(value).items():
        try:
            setattr(twin, name, descend(item, 0, None))
        except PathError as error:
            raise error.at(f".{name}") from error.__cause__
        except RecursionError:
            raise
        except Exception as error:
            raise PathError(f"cannot be assigned ({cause_text(error)}).").at(f".{name}") from error
    return twin


def copied(value: Any) -> Any:
    """Return a deep copy in which nested Checkpointables are clones.

    Raises:
        PathError: a value cannot be copied or is nested too deeply.
    """
    return _Cloner({})(value, 0, None)


def immutable_copy(value: Any) -> Any:
    """Return a value with immutable dicts and lists.

    Mutable values of other types are copied: they can change, but the original does not.

    Raises:
        PathError: a value cannot be copied.
    """
    clone = _Cloner({})
    return _immutable(value, lambda item: clone(item, 0, None))


def constant_copy(value: Any) -> Any:
    """Return a value with immutable dicts and lists, or itself if something in it can change.

    What can change is not copied: a log in a log would be copied twice by every log around it.
    """
    try:
        return _immutable(value, _refuse)
    except _ChangeableError:
        return value


class _ChangeableError(Exception):
    """A value can change."""


def _refuse(item: Any) -> Any:
    raise _ChangeableError


def _immutable(value: Any, other: Callable[[Any], Any]) -> Any:
    """Return a value with immutable dicts and lists; `other` copies mutable values."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        if ATOMS.issuperset(map(type, value.values())):
            return immutable_dict(value)
        return immutable_dict({key: _immutable(part, other) for key, part in value.items()})
    if kind is list:
        return immutable_list([_immutable(part, other) for part in value])
    if kind is tuple:
        return tuple([_immutable(part, other) for part in value])
    if library_leaf(kind) is not None:
        return value
    return other(value)


class _Cloner:
    """Copies values and clones the Checkpointables in them.

    Not a nested function: one that calls itself is garbage that only the collector finds.
    """

    __slots__ = ("_known",)

    def __init__(self, known: dict[int, Any]) -> None:
        self._known = known

    def __call__(self, item: Any, depth: int, _: Any) -> Any:
        return cloned(item, self._known) if is_checkpointable(item) else _copy(item, depth, self)


def live_outline(value: Any, keep: Callable[[Any], Any]) -> Any:
    """Return the containers of a value, with `keep(object)` for live objects, None for the rest.

    Live objects are Checkpointables and other Statefuls. Returns None if there are none.
    """
    if is_checkpointable(value) or is_stateful_part(value):
        return keep(value)
    if type(value) in SEQUENCES:  # a Log is a Stateful, handled above
        items = [live_outline(item, keep) for item in value]
        return items if any(item is not None for item in items) else None
    if type(value) in _MAPPINGS:
        members = {key: live_outline(item, keep) for key, item in value.items()}
        return members if any(item is not None for item in members.values()) else None
    return None


def _copy(value: Any, depth: int, descend: Descend, live: Any = None) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if depth > MAX_DEPTH and library_leaf(kind) is None:
        raise TooDeepError
    if kind in SEQUENCES:
        return _sequence(value, depth, descend, live)
    if kind in _MAPPINGS:
        return _mapping(value, depth, descend, live)
    if library_leaf(kind) is not None:
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise OpaqueValueError(
            value,
            error,
            copy.deepcopy,
            "copied",
            "Keep it in an attribute with a leading underscore, or leave it out of "
            "_checkpoint_fields().",
        ) from error


def _sequence(value: Any, depth: int, descend: Descend, live: Any) -> Any:
    live = live if isinstance(live, list) and len(live) == len(value) else repeat(None)
    done: list[Any] = []
    # Logs share the items that cannot change. Elsewhere, an immutable dict may have mutable parts.
    items, shared = (
        (ITEMS[type(value)](value), CONSTANTS) if type(value) in ITEMS else (value, ATOMS)
    )
    try:
        for item, part in zip(items, live):
            done.append(item if type(item) in shared else descend(item, depth + 1, part))
    except PathError as error:
        raise error.at(f"[{len(done)}]") from error.__cause__
    return SEQUENCES[type(value)](value, done)


def _mapping(value: Any, depth: int, descend: Descend, live: Any) -> Any:
    live = live if isinstance(live, dict) else {}
    done: dict[Any, Any]
    if type(value) is dict or type(value) is ImmutableDict:
        done = {}
    elif type(value) is StateDict:
        done = StateDict(types=value.types)
        depth += depth > 0  # as in encode
    elif type(value) is defaultdict:
        done = defaultdict(value.default_factory)
    else:
        done = type(value)()
    for key, item in value.items():
        try:
            is_atom = type(item) in ATOMS
            done[key] = item if is_atom else descend(item, depth + 1, live.get(key))
        except PathError as error:
            raise error.at(key_segment(key)) from error.__cause__
    return done
