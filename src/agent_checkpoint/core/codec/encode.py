"""Encodes Python values as plain JSON; never changes the value.

JSON types are written directly. Any other value is an object with one member, a tag that begins
with `$` and names the type: `{"$tuple": [1, 2]}`. A user key that begins with `$` gets a second
`$`, so that data never looks like a tag.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_checkpoint.core.checkpointable import (
    Checkpointable,
    class_name,
    overrides,
    read_fields,
    version_of,
)
from agent_checkpoint.core.codec.arrays import encode_array, is_array, zero_padding
from agent_checkpoint.core.codec.pickles import encode_pickle
from agent_checkpoint.core.codec.scalars import LEAVES, encode_float, encode_int, encode_text
from agent_checkpoint.core.codec.structures import BEYOND_FIELDS, has_hidden_content
from agent_checkpoint.core.codec.type_hints import hinted_types
from agent_checkpoint.core.codec.type_registry import type_of
from agent_checkpoint.core.log import Log
from agent_checkpoint.core.path_errors import (
    MAX_DEPTH,
    PathError,
    TooDeepError,
    as_state_error,
    cause_text,
    key_segment,
)
from agent_checkpoint.core.stateful import (
    CLASS,
    META,
    VERSION,
    StateDict,
    is_stateful_part,
    writes_own_objects,
)
from agent_checkpoint.errors import StateError
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.canonical_json import write_json
from agent_checkpoint.store.objects.references import CapturedState, ObjectRef, ObjectReference
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.objects.writer import Writer

NewWriter = Callable[[], Writer]
"""Makes a writer for the store that a state is captured for."""

FACTORIES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (list, dict, set, int, float, str, tuple, bool, bytes, deque, Counter)
}
"""The default factories of a defaultdict that are stored by name."""

_LONGEST_KEY = 1024
"""A longer key is encoded in a list of pairs, so that a store can split it off like any text."""

_NO_TYPES: Mapping[str, type] = {}


def encode(value: Any, path: str = "agent", new_writer: NewWriter | None = None) -> JsonValue:
    """Return a value, or the state of a live object, as plain JSON.

    Args:
        value: the value; it must not change meanwhile.
        path: the name of the value in messages.
        new_writer: for parts that write their own objects; without it, `state_dict()` is used.

    Raises:
        StateError: a nested value cannot be captured; the message names its path.
    """
    with as_state_error(path, value):
        return _Encoder(_NO_TYPES, new_writer).value(value, 0)


def encode_as_pickle(value: Any, path: str = "agent") -> JsonValue:
    """Return a value as one sealed pickle.

    Raises:
        StateError: it cannot be pickled; the message names the path.
    """
    with as_state_error(path, value):
        return {"$pickle": encode_pickle(value)}


class ItemEncoder:
    """Encodes the items of a log when they are written.

    `types` are the classes in the type hints of the owner of the log.
    """

    def __init__(self, types: Mapping[str, type], depth: int) -> None:
        self.types = types
        self.depth = depth

    def __call__(self, item: Any) -> JsonValue:
        """Return an item as JSON. Raises PathError."""
        return _Encoder(self.types).value(item, self.depth)


class _Encoder:
    """One walk over a value; `types` are the classes hinted by the innermost object."""

    def __init__(self, types: Mapping[str, type], new_writer: NewWriter | None = None) -> None:
        self.types = types
        self.new_writer = new_writer

    def value(self, value: Any, depth: int) -> JsonValue:
        kind = type(value)
        if kind is str:
            return value if value.isascii() else encode_text(value)
        if kind is int:
            return encode_int(value)
        if value is None or kind is bool:
            return value  # type: ignore[no-any-return]
        handler = _HANDLERS.get(kind)
        if handler is not None:
            if depth > MAX_DEPTH:
                raise TooDeepError
            return handler(self, value, depth + 1)
        return self._other(value, depth)

    def _float(self, value: float, depth: int) -> JsonValue:
        return encode_float(value)

    def _items(self, values: Iterable[Any], depth: int) -> list[JsonValue]:
        done: list[JsonValue] = []
        try:
            for value in values:
                if type(value) is dict and depth <= MAX_DEPTH:
                    done.append(self._dict(value, depth + 1))
                else:
                    done.append(self.value(value, depth))
        except PathError as error:
            raise error.at(f"[{len(done)}]") from error.__cause__
        return done

    def _list(self, value: list[Any], depth: int) -> JsonValue:
        return self._items(value, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> JsonValue:
        # Check all keys first: encoding values twice would double the work at each level.
        for key in value:
            if type(key) is not str or len(key) > _LONGEST_KEY or encode_text(key) is not key:
                return {"$dict": self._pairs(value, depth)}
        done: dict[str, JsonValue] = {}
        for key, item in value.items():
            kind = type(item)
            if not ((kind is str and item.isascii()) or kind is bool or item is None):
                try:
                    item = self.value(item, depth)
                except PathError as error:
                    raise error.at(key_segment(key)) from error.__cause__
            done["$" + key if key[:1] == "$" else key] = item
        return done

    def _pairs(self, value: Mapping[Any, Any], depth: int) -> JsonValue:
        done: list[JsonValue] = []
        for key, item in value.items():
            try:
                _refuse_object(key)
                done.append([self.value(key, depth), self.value(item, depth)])
            except PathError as error:
                raise error.at(key_segment(key)) from error.__cause__
        return done

    def _tuple(self, value: tuple[Any, ...], depth: int) -> JsonValue:
        return {"$tuple": self._items(value, depth)}

    def _set(self, value: set[Any] | frozenset[Any], depth: int) -> JsonValue:
        # Sorted by their JSON text, so that equal sets give equal bytes.
        for member in value:
            _refuse_object(member)
        members = sorted(self._items(value, depth), key=lambda tree: write_json(inline_tree(tree)))
        return {"$set" if type(value) is set else "$frozenset": members}

    def _deque(self, value: deque[Any], depth: int) -> JsonValue:
        return {"$deque": [self._items(value, depth), value.maxlen]}

    def _ordered_dict(self, value: OrderedDict[Any, Any], depth: int) -> JsonValue:
        return {"$ordereddict": self._pairs(value, depth)}

    def _counter(self, value: Counter[Any], depth: int) -> JsonValue:
        return {"$counter": self._pairs(value, depth)}

    def _default_dict(self, value: defaultdict[Any, Any], depth: int) -> JsonValue:
        factory = value.default_factory
        name = getattr(factory, "__name__", None)
        if factory is not None and FACTORIES.get(str(name)) is not factory:
            return {"$pickle": encode_pickle(value)}
        return {"$defaultdict": [name, self._pairs(value, depth)]}

    def _log(self, value: Log[Any], depth: int) -> JsonValue:
        tree: Any = {"$log": value.frozen(ItemEncoder(self.types, depth))}
        return tree  # type: ignore[no-any-return]

    def _state_dict(self, value: StateDict, depth: int) -> JsonValue:
        outer, self.types = self.types, value.types
        try:
            # A nested state counts twice: a load recurses twice for each.
            return {"$state": self._dict(value, depth if depth == 1 else depth + 1)}
        finally:
            self.types = outer

    def _other(self, value: Any, depth: int) -> JsonValue:
        leaf = LEAVES.get(type(value))
        if leaf is not None:
            text = leaf.encode(value)
            return {"$pickle": encode_pickle(value)} if text is None else {leaf.tag: text}
        if isinstance(value, Checkpointable):
            return self.value(state_of(value), depth)
        if isinstance(value, ObjectRef) or writes_own_objects(value):
            return self._reference(value)
        known = type_of(value, self.types)
        if known is not None:
            name, structure = known
            try:
                fields = structure.encode(value)
            except Exception as error:
                raise PathError(f"cannot be encoded as {name} ({cause_text(error)}).") from error
            if fields is not BEYOND_FIELDS:
                return {f"$type:{name}": self.value(fields, depth + 1)}
        if is_array(value):
            array = encode_array(value)
            if array is not None:
                return {"$ndarray": array}
            value = zero_padding(value)
        return {"$pickle": encode_pickle(value)}

    def _reference(self, value: Any) -> JsonValue:
        tree: Any
        if isinstance(value, ObjectRef):
            tree = ObjectReference(value.name, value.source)
        elif self.new_writer is None:
            return self._reference(_call_state_dict(value))
        else:
            tree = CapturedState(value, self.new_writer)
        return tree  # type: ignore[no-any-return]


def _refuse_object(value: Any) -> None:
    if type(value) in (tuple, frozenset):
        for item in value:
            _refuse_object(item)
    if isinstance(value, Checkpointable):
        raise PathError(
            f"has a {type(value).__name__} as a dict key or set member, but its state is not "
            "hashable. Keep it in a list or as a dict value."
        )


def state_of(value: Checkpointable) -> StateDict:
    """Return the state of an object, with its fields not copied.

    Calls `state_dict()` if the class overrides it.

    Raises:
        PathError: a field cannot be read.
    """
    if not overrides(value, "state_dict"):
        return own_state(value)
    given = _call_state_dict(value)
    if not isinstance(given, dict):
        raise PathError(f"has a state_dict() that returns {type(given).__name__}, not a dict.")
    state = StateDict(given, types=hinted_types(type(value)))
    state.setdefault(VERSION, version_of(value))
    state.setdefault(CLASS, class_name(value))
    return state


def own_state(value: Checkpointable) -> StateDict:
    """Return the captured fields of an object as its state, not copied.

    Raises:
        PathError: a field cannot be read, or the class has content outside its fields.
    """
    cls = type(value)
    # A class that overrides state_dict() adds that content itself and calls this by super().
    if has_hidden_content(cls) and not overrides(value, "state_dict"):
        raise PathError(
            f"cannot be captured: {cls.__name__} inherits from a built-in type whose content is "
            "not in fields. Override state_dict() and load_state_dict() to save it."
        )
    state = StateDict(types=hinted_types(type(value)))
    for name, item in read_fields(value).items():
        state[name] = foreign_state(item, f".{name}")
    state[VERSION] = version_of(value)
    state[CLASS] = class_name(value)
    return state


def foreign_state(value: Any, segment: str) -> Any:
    """Return the state of an attribute that is a foreign Stateful; other values unchanged.

    A Stateful whose state has a reserved member is returned unchanged too: it would be mistaken for
    a state of a Checkpointable.

    Raises:
        PathError: its `state_dict()` failed.
    """
    if (
        not is_stateful_part(value)
        or isinstance(value, Checkpointable)
        or writes_own_objects(value)
    ):
        return value
    try:
        state = _call_state_dict(value)
    except PathError as error:
        raise error.at(segment) from error.__cause__
    return StateDict(state) if isinstance(state, dict) and not META & state.keys() else value


def _call_state_dict(value: Any) -> Any:
    try:
        return value.state_dict()
    except StateError as error:
        raise PathError(f"cannot be captured: {error}", type(error)) from error
    except RuntimeError:
        raise  # perhaps another thread changed a container: the caller retries
    except Exception as error:
        raise PathError(f"has a state_dict() that failed ({cause_text(error)}).") from error


_HANDLERS: dict[type, Callable[[_Encoder, Any, int], JsonValue]] = {
    float: _Encoder._float,
    list: _Encoder._list,
    dict: _Encoder._dict,
    StateDict: _Encoder._state_dict,
    tuple: _Encoder._tuple,
    set: _Encoder._set,
    frozenset: _Encoder._set,
    deque: _Encoder._deque,
    OrderedDict: _Encoder._ordered_dict,
    Counter: _Encoder._counter,
    defaultdict: _Encoder._default_dict,
    Log: _Encoder._log,
}
