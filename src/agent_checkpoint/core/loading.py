"""States into objects.

Owns the checks before a load: class, version, fields, nested objects. Nothing is assigned before
all of it is sound. Knows no JSON and no storage.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent_checkpoint.core.assignment import Assignments
from agent_checkpoint.core.checkpointable import (
    Checkpointable,
    class_name,
    overrides,
    version_of,
)
from agent_checkpoint.core.copying import rebuilt, snapshot
from agent_checkpoint.core.hints import hinted_types
from agent_checkpoint.core.migrations import migrate
from agent_checkpoint.core.names import canonical, find_class, name_of
from agent_checkpoint.core.stateful import (
    CLASS,
    META,
    LoadResult,
    StateDict,
    is_stateful,
    is_stateful_part,
)
from agent_checkpoint.core.trouble import Trouble, troubles
from agent_checkpoint.errors import StateError, StateMismatchError
from agent_checkpoint.records import show

C = TypeVar("C", bound=Checkpointable)


def load(target: Checkpointable, state: dict[str, Any], *, strict: bool) -> LoadResult:
    """Load a state into an object, atomically. Raises as `Checkpointable.load_state_dict` does."""
    steps = Assignments()
    result = _prepare_root(target, state, steps, "agent")
    if strict:
        _refuse_mismatch({"agent": result})
    steps.make()
    return result


def load_parts(
    parts: Mapping[str, tuple[Any, Any]], *, strict: bool, exact: bool = False
) -> dict[str, Any]:
    """Load several states, each into its target, all of them or none.

    Args:
        parts: for each name the target, a Stateful or a dict to be filled, and its state.
        strict: refuse states that lack fields or have unexpected ones.
        exact: also remove attributes that were not there when the state was captured.

    Returns:
        What each target's load returned, by name.

    Raises:
        StateError: as `Checkpointable.load_state_dict` does; the path begins with the name.
    """
    steps = Assignments(exact=exact)
    results: dict[str, Any] = {}
    for name, (target, state) in parts.items():
        if isinstance(target, Checkpointable) and not overrides(target, "load_state_dict"):
            results[name] = _prepare_root(target, state, steps, name)
        elif is_stateful(target):
            steps.load(target, _call(target, state, strict, results, name), name)
        elif isinstance(state, dict):
            steps.fill(target, _plain(state))
            results[name] = LoadResult([], [])
        else:
            raise StateMismatchError(
                f"{name} is a dict, but its state is a {type(state).__name__}."
            )
    if strict:
        _refuse_mismatch(results)
    steps.make()
    return results


def clone(value: C) -> C:
    """Return a shallow copy into which the captured state is loaded. Raises StateError."""
    twin = copy.copy(value)
    for name in value._checkpoint_fields():
        part = getattr(value, name, None)
        # What is loaded in place must not be the original's own part.
        if isinstance(part, Checkpointable):
            setattr(twin, name, clone(part))
        elif is_stateful_part(part):
            setattr(twin, name, copy.deepcopy(part))
    twin.load_state_dict(value.state_dict())
    return twin


def rebuild_state(state: StateDict, types: Mapping[str, type] | None = None) -> Any:
    """Return the object that a nested state describes.

    Args:
        state: the nested state, of any version.
        types: the classes in the type hints of the class being loaded.

    Raises:
        Trouble: its class is not known here, or refuses the state.
    """
    name = state.get(CLASS)
    if not isinstance(name, str):
        raise Trouble(
            "is the state of an object that cannot be made anew. Set the attribute to such an "
            "object before loading."
        )
    try:
        cls = class_of_state(name, types or {})
    except StateError as error:
        raise Trouble(str(error)) from None
    present = migrate(state, class_name=name_of(cls), version=version_of(cls))
    present = StateDict({**present, CLASS: name_of(cls)}, types=hinted_types(cls))
    try:
        return cls._checkpoint_new(present)
    except StateError as error:
        raise Trouble(f"cannot be rebuilt: {error}", type(error)) from error
    except Exception as error:
        raise Trouble(f"cannot be rebuilt as {cls.__name__} ({error!r}).") from error


def class_of_state(name: str, types: Mapping[str, type]) -> type[Checkpointable]:
    """Return the class that a nested state names, of those in the type hints if one is there.

    Raises:
        StateError: no class of that name is defined, or several are.
    """
    hinted = [cls for cls in types.values() if issubclass(cls, Checkpointable)]
    called_so = [cls for cls in hinted if name_of(cls) == canonical(name)]
    found: type[Checkpointable] = called_so[0] if len(called_so) == 1 else find_class(name)
    return found


def _call(
    target: Any, state: Any, strict: bool, results: dict[str, Any], name: str
) -> Callable[[], None]:
    """Return the call of a Stateful's own `load_state_dict`, which keeps what that returned."""
    options = {"strict": True} if strict else {}

    def call() -> None:
        results[name] = target.load_state_dict(_plain(state), **options)

    return call


def _prepare_root(target: Checkpointable, state: Any, steps: Assignments, path: str) -> LoadResult:
    with troubles(path, state):
        return _prepare(target, state, steps, path)


def _prepare(target: Checkpointable, state: Any, steps: Assignments, path: str) -> LoadResult:
    fields = migrate(
        _checked(target, state), class_name=class_name(target), version=version_of(target)
    )
    present = list(dict.fromkeys(target._checkpoint_fields()))
    # A captured state may hold attributes that this instance has not set yet; they belong to it
    # unless the class pins its fields. Unknown names in a hand-made state are reported only.
    open_ended = CLASS in state and not overrides(target, "_checkpoint_fields")
    result = LoadResult([name for name in present if name not in fields], [])
    if steps.exact and open_ended:
        for name in result.missing_keys:
            steps.delete(target, name, f"{path}.{name}")
    for name, value in fields.items():
        if name in META:
            continue
        if name not in present:
            result.unexpected_keys.append(name)
            if not open_ended:
                continue
        try:
            nested = _prepare_field(target, name, value, steps, f"{path}.{name}")
        except Trouble as trouble:
            raise trouble.at(f".{name}") from trouble.__cause__
        for ours, theirs in zip(result, nested):
            ours.extend(f"{name}.{below}" for below in theirs)
    return result


def _checked(target: Checkpointable, state: Any) -> dict[str, Any]:
    name = class_name(target)
    if not isinstance(state, dict):
        raise Trouble(f"needs a state, a dict, not {type(state).__name__}.", StateMismatchError)
    saved = state.get(CLASS, name)
    if not isinstance(saved, str) or canonical(saved) != name:
        raise Trouble(
            f"is a {name}, and the state is of the class {show(saved)}. Load it into an object of "
            f"its class, or register_alias({show(saved)}, {name!r}) if the class was renamed.",
            StateMismatchError,
        )
    return state


def _prepare_field(
    target: Checkpointable, name: str, value: Any, steps: Assignments, path: str
) -> LoadResult:
    part: Any = getattr(target, name, None)
    if isinstance(value, StateDict) and _takes(part, value):
        if isinstance(part, Checkpointable) and not overrides(part, "load_state_dict"):
            return _prepare(part, value, steps, path)
        state = snapshot(value)
        steps.load(part, lambda: part.load_state_dict(_plain(state)), path)
    else:
        types = hinted_types(type(target))
        steps.set(target, name, rebuilt(value, lambda state: rebuild_state(state, types)), path)
    return LoadResult([], [])


def _takes(part: Any, state: StateDict) -> bool:
    """Tell whether an attribute that exists is one that the state can be loaded into in place."""
    if isinstance(part, Checkpointable):
        return canonical(str(state.get(CLASS))) == class_name(part)
    return is_stateful_part(part) and CLASS not in state


def _plain(state: Any) -> Any:
    """Return the state of a foreign Stateful as the dict that it gave us."""
    return dict(state) if type(state) is StateDict and CLASS not in state else state


def _refuse_mismatch(results: Mapping[str, Any]) -> None:
    found = []
    for name, result in results.items():
        if isinstance(result, LoadResult) and result.missing_keys:
            found.append(f"{name} lacks {', '.join(result.missing_keys)}")
        if isinstance(result, LoadResult) and result.unexpected_keys:
            found.append(f"{name} has unexpected {', '.join(result.unexpected_keys)}")
    if found:
        raise StateMismatchError(f"The state does not match strictly: {'; '.join(found)}.")
