"""Decodes states and loads them into objects. Does not depend on storage.

Class, version, fields and nested objects are checked first; nothing is assigned before all checks
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.assignment import Assignments
from agent_checkpoint.core.captured_fields import (
    is_checkpointable,
    is_checkpointable_class,
    overrides,
    version_of,
)
from agent_checkpoint.core.class_names import canonical, find_class, name_of
from agent_checkpoint.core.codec.decode import TAG_HANDLERS, Decoded, decode
from agent_checkpoint.core.codec.type_hints import hinted_types
from agent_checkpoint.core.copying import rebuild_nested, snapshot
from agent_checkpoint.core.immutable import immutable_json
from agent_checkpoint.core.live_objects import LiveObjects
from agent_checkpoint.core.log import Log, log_of, replace_items
from agent_checkpoint.core.migrations import migrate
from agent_checkpoint.core.path_errors import (
    PathError,
    as_state_error,
    cause_text,
    key_segment,
    listed,
)
from agent_checkpoint.core.stateful import (
    CLASS,
    META,
    LoadResult,
    StateDict,
    is_stateful,
    is_stateful_part,
    writes_own_objects,
)
from agent_checkpoint.errors import StateError, StateMismatchError
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.objects.references import ObjectRef

if TYPE_CHECKING:
    from agent_checkpoint.core.checkpointable import Checkpointable


TAG_HANDLERS["$log"] = lambda decoder, payload: log_of(decoder.items(payload, immutable_json))


def load(target: Checkpointable, state: dict[str, Any], *, strict: bool) -> LoadResult:
    """Load a state into an object atomically.

    Raises the same errors as `Checkpointable.load_state_dict`.
    """
    plan = _Plan()
    result = plan.root(target, state, "agent")
    if strict:
        _refuse_mismatch({"agent": result})
    plan.steps.apply()
    return result


def load_parts(
    parts: Mapping[str, tuple[Any, Decoded]],
    *,
    strict: bool,
    live_objects: LiveObjects | None = None,
) -> dict[str, Any]:
    """Load several states into their targets atomically.

    Args:
        parts: maps each name to a target and its state. The target is a Stateful or a dict to
            fill; it takes ownership of the state.
        strict: refuse states that lack fields or have unexpected ones.
        live_objects: the objects that the states were captured from. They are loaded in place, and
            attributes added after the capture are removed.

    Returns:
        The result of each load, by name.

    Raises:
        StateError: as for `Checkpointable.load_state_dict`; the path starts with the name.
    """
    plan = _Plan(live_objects, owns_states=True)
    results: dict[str, Any] = {}
    for name, (target, decoded) in parts.items():
        state = decoded.value
        if is_checkpointable(target) and not overrides(target, "load_state_dict"):
            results[name] = plan.root(target, state, name)
        elif isinstance(target, Log) and isinstance(state, Log):
            results[name] = plan.log(target, decoded, name)
        elif writes_own_objects(target) and isinstance(state, ObjectRef):
            plan.steps.do(_restore(target, state, results, name))
        elif is_stateful(target):
            plan.steps.load(target, _call(target, state, strict, results, name), name)
        elif isinstance(state, dict):
            fresh = () if decoded.has_states else state
            results[name] = plan.fill(target, _plain(state), fresh, name)
        else:
            raise StateMismatchError(
                f"{name} is a dict, but its state is a {type(state).__name__}."
            )
    missing = {name: LoadResult([*decoded.missing], []) for name, (_, decoded) in parts.items()}
    for name, result in results.items():
        result.missing_keys.extend(missing[name].missing_keys)
    if strict:
        _refuse_mismatch({**missing, **results})
    plan.steps.apply()
    return results


def rebuild_state(state: StateDict, types: Mapping[str, type] | None = None) -> Any:
    """Rebuild the object of a nested state.

    Args:
        state: the nested state, of any version.
        types: the classes in the type hints of the class being loaded.

    Raises:
        PathError: the class is not defined, or rejects the state.
    """
    name = state.get(CLASS)
    if not isinstance(name, str):
        raise PathError(
            "is a state without a class name, so its object cannot be rebuilt. Assign an object to "
            "the attribute before loading."
        )
    try:
        cls = class_of_state(name, types or {})
    except StateError as error:
        raise PathError(str(error)) from None
    current = migrate(state, class_name=name_of(cls), version=version_of(cls))
    current = StateDict({**current, CLASS: name_of(cls)}, types=hinted_types(cls))
    try:
        return cls._checkpoint_new(current)
    except StateError as error:
        raise PathError(f"cannot be rebuilt: {error}", type(error)) from error
    except Exception as error:
        raise PathError(f"cannot be rebuilt as {cls.__name__} ({cause_text(error)}).") from error


def class_of_state(name: str, types: Mapping[str, type]) -> type[Checkpointable]:
    """Return the class of a nested state, preferring the classes in the type hints.

    Raises:
        StateError: no class of that name is defined, or several are.
    """
    hinted = [cls for cls in types.values() if is_checkpointable_class(cls)]
    matching = [cls for cls in hinted if name_of(cls) == canonical(name)]
    found: type[Checkpointable] = matching[0] if len(matching) == 1 else find_class(name)
    return found


def _call(
    target: Any, state: Any, strict: bool, results: dict[str, Any], name: str
) -> Callable[[], None]:
    """Return a function that calls the target's own `load_state_dict` and stores the result."""
    options = {"strict": True} if strict else {}

    def call() -> None:
        results[name] = target.load_state_dict(_plain(state), **options)

    return call


def _restore(
    target: Any, ref: ObjectRef, results: dict[str, Any], name: str
) -> Callable[[], Callable[[], object]]:
    """Return a load step, with undo, for a part that writes its own objects."""

    def call() -> Callable[[], object]:
        results[name] = target.load_state_dict(ref)
        return partial(target.undo_load, results[name])

    return call


class _Plan:
    """The checked steps of a load; nothing changes before `steps.apply()`."""

    def __init__(
        self, live_objects: LiveObjects | None = None, *, owns_states: bool = False
    ) -> None:
        self.live_objects = live_objects
        self.owns_states = owns_states
        self.steps = Assignments()

    def root(self, target: Checkpointable, state: Any, path: str) -> LoadResult:
        """Plan to load a state into an object. Messages contain `path`."""
        with as_state_error(path, state):
            return self._object(target, state, path)

    def fill(
        self, target: dict[str, Any], state: dict[str, Any], fresh: Container[str], path: str
    ) -> LoadResult:
        """Plan to replace the content of a plain dict. Objects in it are loaded in place."""
        members: dict[str, Any] = {}
        with as_state_error(path, state):
            for name, value in state.items():
                try:
                    live = self._live(target, name, target.get(name))
                    members[name] = (
                        value
                        if name in fresh
                        else self._value(value, live, {}, path + key_segment(name))
                    )
                except PathError as error:
                    raise error.at(key_segment(name)) from error.__cause__
        self.steps.fill(target, members)
        return LoadResult([], [])

    def log(self, target: Log[Any], decoded: Decoded, path: str) -> LoadResult:
        """Plan to replace the items of a log by those of another."""
        value = decoded.value
        if decoded.has_states:
            with as_state_error(path, value):
                value = self._value(value, None, {}, path)
        self._refill(target, value)
        return LoadResult([], [])

    def _object(self, target: Checkpointable, state: Any, path: str) -> LoadResult:
        fields = migrate(
            _checked(target, state), class_name=name_of(type(target)), version=version_of(target)
        )
        fresh: Container[str] = ()
        if self.owns_states and isinstance(state, StateDict) and fields is state:
            fresh = state.fresh
        current = list(dict.fromkeys(target._checkpoint_fields()))
        # A captured state may have attributes that this instance has not set yet. They are loaded,
        # unless the class defines its fields. In a state that was not captured, unknown names
        # are only reported.
        open_ended = CLASS in state and not overrides(target, "_checkpoint_fields")
        result = LoadResult([name for name in current if name not in fields], [])
        if self.live_objects is not None and open_ended:
            for name in result.missing_keys:
                self.steps.delete(target, name, f"{path}.{name}")
        for name, value in fields.items():
            if name in META:
                continue
            if not isinstance(name, str):
                raise PathError(f"has a field name that is not a string: {short_repr(name)}.")
            if name not in current:
                result.unexpected_keys.append(name)
                if not open_ended or not _may_be_captured(target, name):
                    continue
            try:
                nested = self._field(target, name, value, f"{path}.{name}", name in fresh)
            except PathError as error:
                raise error.at(f".{name}") from error.__cause__
            for ours, theirs in zip(result, nested):
                ours.extend(f"{name}.{below}" for below in theirs)
        return result

    def _field(
        self, target: Checkpointable, name: str, value: Any, path: str, is_fresh: bool
    ) -> LoadResult:
        current = getattr(target, name, None)
        live = self._live(target, name, current)
        if isinstance(value, StateDict) and live is current and _takes(live, value):
            return self._in_place(live, value, path)
        if isinstance(value, ObjectRef) and writes_own_objects(live):
            self.steps.do(_restore(live, value, {}, name))
            return LoadResult([], [])
        if not is_fresh:
            value = self._value(value, live, hinted_types(type(target)), path)
        if isinstance(live, Log) and type(value) is list:
            value = log_of(value)  # the attribute was a list when it was saved
        if isinstance(value, Log) and isinstance(live, Log):
            value = self._refill(live, value)
        self.steps.set(target, name, value, path)
        return LoadResult([], [])

    def _refill(self, live: Log[Any], value: Log[Any]) -> Log[Any]:
        """Plan to replace the items of a log in place, because other objects may reference it."""
        self.steps.do(lambda: replace_items(live, value))
        return live

    def _live(self, owner: Any, name: Any, current: Any) -> Any:
        if self.live_objects is None:
            return current if is_stateful_part(current) else None
        return self.live_objects.of(owner).get(name)

    def _value(self, value: Any, live: Any, types: Mapping[str, type], path: str) -> Any:
        def rebuild(state: StateDict | ObjectRef, part: Any) -> Any:
            if isinstance(state, ObjectRef):
                if not writes_own_objects(part):
                    return state
                self.steps.do(_restore(part, state, {}, path))
                return part
            if not _takes(part, state):
                return rebuild_state(state, types)
            self._in_place(part, state, path)
            return part

        return rebuild_nested(value, rebuild, live)

    def _in_place(self, part: Any, value: StateDict, path: str) -> LoadResult:
        if is_checkpointable(part) and not overrides(part, "load_state_dict"):
            return self._object(part, value, path)
        state = snapshot(value)
        self.steps.load(part, lambda: part.load_state_dict(_plain(state)), path)
        return LoadResult([], [])


def _may_be_captured(target: Checkpointable, name: str) -> bool:
    """Return whether a capture can produce this name: not private, a method or a property."""
    if name.startswith("_"):
        return False
    static = getattr(type(target), name, None)
    is_slot = isinstance(static, MemberDescriptorType)
    return is_slot or not (callable(static) or hasattr(static, "__set__"))


def _checked(target: Checkpointable, state: Any) -> dict[str, Any]:
    name = name_of(type(target))
    if not isinstance(state, dict):
        raise PathError(
            f"needs a dict as its state, not {type(state).__name__}.", StateMismatchError
        )
    saved = state.get(CLASS, name)
    if not isinstance(saved, str) or canonical(saved) != name:
        raise PathError(
            f"is of the class {name}, but the state is of the class {short_repr(saved)}. Load it "
            f"into an object of its class, or register_alias({short_repr(saved)}, {name!r}) if "
            "it was renamed.",
            StateMismatchError,
        )
    return state


def _takes(part: Any, state: StateDict) -> bool:
    """Return whether a state can be loaded into an existing attribute in place."""
    if is_checkpointable(part):
        return canonical(str(state.get(CLASS))) == name_of(type(part))
    return is_stateful_part(part) and CLASS not in state


def _plain(state: Any) -> Any:
    """Return the state of a Stateful that is not a Checkpointable as a plain dict."""
    return dict(state) if type(state) is StateDict and CLASS not in state else state


def _refuse_mismatch(results: Mapping[str, Any]) -> None:
    found = []
    for name, result in results.items():
        if isinstance(result, LoadResult) and result.missing_keys:
            found.append(f"{name} lacks {listed(result.missing_keys)}")
        if isinstance(result, LoadResult) and result.unexpected_keys:
            found.append(f"{name} has unexpected {listed(result.unexpected_keys)}")
    if found:
        raise StateMismatchError(f"The state does not match in strict mode: {'; '.join(found)}.")


def decode_part(
    tree: JsonValue,
    path: str,
    target: Any = None,
    *,
    trust_pickle: bool = False,
    reader: Reader | None = None,
) -> Decoded:
    """Decode a state for `target` to load.

    Args:
        tree: a result of `encode_state`.
        path: its name in messages.
        target: the object to load into; its type hints allow types to be decoded.
        trust_pickle: load pickles without verifying their signature.
        reader: reads the objects that the tree refers to, if it comes from a store.

    Raises:
        StateError: the state cannot be decoded.
        UntrustedDataError: a pickle has no valid signature under this user's secret.
    """

    def scope(name: object, outer: Mapping[str, type]) -> Mapping[str, type]:
        if not isinstance(name, str):
            return {}
        if is_checkpointable(target) and canonical(name) == name_of(type(target)):
            return hinted_types(type(target))
        try:
            return hinted_types(class_of_state(name, outer))
        except StateError:
            return {}  # unknown types are then reported by name

    def rebuild(state: StateDict) -> Any:
        return rebuild_state(state, state.types)

    return decode(
        tree, path, scope=scope, rebuild=rebuild, trust_pickle=trust_pickle, reader=reader
    )
