"""Encodes Python values as plain JSON. Values are never changed.

JSON types are written directly. Any other value is an object with one member, a tag that begins
with `$` and names the type: `{"$tuple": [1, 2]}`. A user key that begins with `$` gets a second
`$`, so that data never looks like a tag.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.captured_fields import (
    is_checkpointable,
    overrides,
    read_fields,
    version_of,
)
from agent_checkpoint.core.class_names import name_of
from agent_checkpoint.core.codec.leaves import leaf_of
from agent_checkpoint.core.codec.save_policy import NO_POLICY, PickledValueError, SavePolicy
from agent_checkpoint.core.codec.scalars import (
    INT_LIMIT,
    encode_float,
    encode_int,
    encode_text,
)
from agent_checkpoint.core.codec.type_hints import hinted_types
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
from agent_checkpoint.records import (
    ChangeTable,
    CheckpointRow,
    ExactText,
    History,
    JsonValue,
)
from agent_checkpoint.store.canonical_json import write_json
from agent_checkpoint.store.objects.references import CapturedState, ObjectRef, ObjectReference
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.objects.writer import Writer

if TYPE_CHECKING:
    from agent_checkpoint.core.checkpointable import Checkpointable

NewWriter = Callable[[], Writer]
"""Creates a writer for the store that a state is captured for."""

FACTORIES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (list, dict, set, int, float, str, tuple, bool, bytes, deque, Counter)
}
"""The default factories of a defaultdict that are stored by name."""

_LONGEST_KEY = 1024
"""Longer keys are encoded in a list of pairs, so that a store can split them like other strings."""

_NO_TYPES: Mapping[str, type] = {}


def encode(
    value: Any,
    path: str = "agent",
    new_writer: NewWriter | None = None,
    policy: SavePolicy = NO_POLICY,
) -> JsonValue:
    """Return a value, or the state of a live object, as plain JSON.

    Args:
        value: the value; it must not change during the call.
        path: the name of the value in messages.
        new_writer: creates the writer for values that write their own objects. If None, the result
            of their `state_dict()` is encoded.
        policy: what to do with values that would be pickled.

    Raises:
        StateError: a nested value cannot be captured; the message contains its path.
    """
    with as_state_error(path, value):
        while True:
            try:
                return Encoder(_NO_TYPES, new_writer, policy).value(value, 0)
            except PickledValueError as error:
                if policy.pickles == "refuse":
                    raise
                error.warn(path)  # once per class; then encode it all again


def encode_as_pickle(value: Any, path: str = "agent") -> JsonValue:
    """Return a value as one pickle, signed with an HMAC under the user's secret.

    Raises:
        StateError: the value cannot be pickled; the message contains the path.
    """
    with as_state_error(path, value):
        return {"$pickle": _class_values().encode_pickle(value)}


class ItemEncoder:
    """Encodes the items of a log when they are written.

    `types` are the classes in the type hints of the owner of the log.
    """

    def __init__(
        self, types: Mapping[str, type], depth: int, policy: SavePolicy = NO_POLICY
    ) -> None:
        self.types = types
        self.depth = depth
        self.policy = policy

    def __call__(self, item: Any) -> JsonValue:
        """Return an item as JSON. Raises PathError."""
        # For a log in the item; its pickles were checked when the outer log was captured.
        policy = self.policy._replace(pickles="allow")
        return Encoder(self.types, policy=policy).value(item, self.depth)

    def redacted(self, item: Any) -> tuple[JsonValue, int]:
        """Return an item as JSON without secrets, and how many were replaced. Raises PathError."""
        tree, redactor = self(item), self.policy.redactor
        if redactor is None:
            return tree, 0
        with block_forks():
            from agent_checkpoint.core.codec.redacted_tree import redact_tree  # slow to load

        return redact_tree(tree, redactor)

    def check(self, item: Any) -> None:
        """Check an item when the log is captured: it may be written on another thread.

        Raises:
            PathError: it cannot be encoded, or the policy does not allow a pickle of it.
        """
        _PolicyCheck(self.types, policy=self.policy).value(item, self.depth)


class Encoder:
    """Encodes one value recursively.

    `types` are the classes in the type hints of the enclosing object, by name.
    """

    def __init__(
        self,
        types: Mapping[str, type],
        new_writer: NewWriter | None = None,
        policy: SavePolicy = NO_POLICY,
    ) -> None:
        self.types = types
        self.new_writer = new_writer
        self.policy = policy

    def value(self, value: Any, depth: int) -> JsonValue:
        """Return a value as JSON. Raises PathError."""
        kind = type(value)
        if kind is str:
            return value if value.isascii() else encode_text(value)
        if kind is int:
            return value if -INT_LIMIT <= value < INT_LIMIT else encode_int(value)
        if value is None or kind is bool:
            return value  # type: ignore[no-any-return]
        handler = ENCODERS.get(kind)
        if handler is not None:
            if depth > MAX_DEPTH:
                raise TooDeepError
            return handler(self, value, depth + 1)
        return self._other(value, depth)

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

    def _dict(self, value: dict[Any, Any], depth: int) -> JsonValue:
        # Check all keys first: encoding values twice would double the work at each level.
        for key in value:
            if (
                type(key) is not str
                or len(key) > _LONGEST_KEY
                or not (key.isascii() or encode_text(key) is key)
            ):
                return {"$dict": self._pairs(value, depth)}
        done: dict[str, JsonValue] = {}
        try:
            for key, item in value.items():
                kind = type(item)
                if kind is dict and depth <= MAX_DEPTH:
                    item = self._dict(item, depth + 1)
                elif not ((kind is str and item.isascii()) or kind is bool or item is None):
                    item = self.value(item, depth)
                done["$" + key if key[:1] == "$" else key] = item
        except PathError as error:
            raise error.at(key_segment(key)) from error.__cause__
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

    def _set(self, value: set[Any] | frozenset[Any], depth: int) -> JsonValue:
        # Sorted by their JSON text, so that equal sets give equal bytes.
        for member in value:
            _refuse_object(member)
        members = sorted(self._items(value, depth), key=lambda tree: write_json(inline_tree(tree)))
        return {"$set" if type(value) is set else "$frozenset": members}

    def _default_dict(self, value: defaultdict[Any, Any], depth: int) -> JsonValue:
        factory = value.default_factory
        name = getattr(factory, "__name__", None)
        if factory is not None and FACTORIES.get(str(name)) is not factory:
            return self._pickle(value)
        return {"$defaultdict": [name, self._pairs(value, depth)]}

    def _state_dict(self, value: StateDict, depth: int) -> JsonValue:
        outer, self.types = self.types, value.types
        try:
            # A nested state counts twice: a load recurses twice for each.
            return {"$state": self._dict(value, depth if depth == 1 else depth + 1)}
        finally:
            self.types = outer

    def _other(self, value: Any, depth: int) -> JsonValue:
        leaf = leaf_of(type(value))
        if leaf is not None:
            text = leaf.encode(value)
            return self._pickle(value) if text is None else {leaf.tag: text}
        if is_checkpointable(value):
            return self.value(state_of(value), depth)
        if isinstance(value, ObjectRef) or writes_own_objects(value):
            return self._reference(value)  # type: ignore[no-any-return]
        codecs = _class_values()
        known = codecs.typed_fields(value, self.types)
        if known is not None:
            name, fields = known
            return {f"$type:{name}": self.value(fields, depth + 1)}
        array, value = codecs.array_of(value)
        return self._pickle(value) if array is None else {"$ndarray": array}

    def _pickle(self, value: Any) -> JsonValue:
        tree: JsonValue = {"$pickle": _class_values().encode_pickle(value)}
        if self.policy.objects_to(value):  # last: a value that cannot be pickled is another error
            raise PickledValueError(value)
        return tree

    def _reference(self, value: Any) -> Any:
        if isinstance(value, ObjectRef):
            return ObjectReference(value.name, value.source)
        if self.new_writer is None:
            return self._reference(_call_state_dict(value))
        return CapturedState(value, self.new_writer)


class _PolicyCheck(Encoder):
    """Encodes a value, except for pickles that the policy allows."""

    def _pickle(self, value: Any) -> JsonValue:
        return super()._pickle(value) if self.policy.objects_to(value) else None


@cache
def _class_values() -> ModuleType:
    with block_forks():
        from agent_checkpoint.core.codec import class_values  # slow to load

    return class_values


def _refuse_object(value: Any) -> None:
    if type(value) in (tuple, frozenset):
        for item in value:
            _refuse_object(item)
    if is_checkpointable(value):
        raise PathError(
            f"has a {type(value).__name__} as a dict key or set member, which is not "
            "supported. Keep it in a list or as a dict value."
        )


def state_of(value: Checkpointable) -> StateDict:
    """Return the state of an object, without copying its field values.

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
    state.setdefault(CLASS, name_of(type(value)))
    return state


def own_state(value: Checkpointable) -> StateDict:
    """Return the captured fields of an object as its state, without copying the values.

    Raises:
        PathError: a field cannot be read, or the class has content outside its fields.
    """
    cls = type(value)
    # A class that overrides state_dict() saves that content itself, and calls this through super().
    if _class_values().has_hidden_content(cls) and not overrides(value, "state_dict"):
        raise PathError(
            f"cannot be captured: {cls.__name__} inherits from a built-in type whose content is "
            "not in fields. Override state_dict() and load_state_dict() to save it."
        )
    state = StateDict(types=hinted_types(type(value)))
    for name, item in read_fields(value).items():
        state[name] = foreign_state(item, f".{name}")
    state[VERSION] = version_of(value)
    state[CLASS] = name_of(type(value))
    return state


def foreign_state(value: Any, segment: str) -> Any:
    """Return the state of an attribute that is a Stateful but not a Checkpointable.

    Other values are returned unchanged. So is a Stateful whose state has a reserved member: it
    could not be told from the state of a Checkpointable.

    Raises:
        PathError: the `state_dict()` of the attribute failed.
    """
    if not is_stateful_part(value) or is_checkpointable(value) or writes_own_objects(value):
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


ENCODERS: dict[type, Callable[[Encoder, Any, int], JsonValue]] = {
    float: lambda encoder, value, depth: encode_float(value),
    list: Encoder._items,
    dict: Encoder._dict,
    StateDict: Encoder._state_dict,
    # Results of this library that an agent may keep: their display is no part of its state.
    History: Encoder._items,
    CheckpointRow: Encoder._dict,
    ChangeTable: Encoder._dict,
    tuple: lambda encoder, value, depth: {"$tuple": encoder._items(value, depth)},
    set: Encoder._set,
    frozenset: Encoder._set,
    deque: lambda encoder, value, depth: {"$deque": [encoder._items(value, depth), value.maxlen]},
    OrderedDict: lambda encoder, value, depth: {"$ordereddict": encoder._pairs(value, depth)},
    Counter: lambda encoder, value, depth: {"$counter": encoder._pairs(value, depth)},
    defaultdict: Encoder._default_dict,
    ExactText: lambda encoder, value, depth: value,
}
"""The container types. `core.log` adds its own."""

LOGS: list[type[Any]] = []
"""The class of logs; `core.log` adds it, so that a state without logs does not load it."""
LOG_ITEMS: list[type[Any]] = []
"""The class of their items in a tree, with the member `path`; `core.log` adds it."""
