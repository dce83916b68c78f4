"""Migrations: registered steps that convert old states to the current version of a class.

Also of registered types; does not depend on the codec.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from agent_checkpoint.core.class_names import canonical
from agent_checkpoint.core.path_errors import PathError, cause_text
from agent_checkpoint.core.stateful import CLASS, VERSION, StateDict, is_version
from agent_checkpoint.errors import InvalidInputError, MigrationError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

Migration = Callable[[dict[str, Any]], Any]
Version = tuple[int, ...]


class _Step(NamedTuple):
    start: str
    end: str | None
    run: Migration


_lock = threading.Lock()
_steps: dict[str, dict[Version, _Step]] = {}


def register_migration(
    class_name: str, from_version: str, fn: Migration, to_version: str | None = None
) -> None:
    """Register a step that migrates states of a class from one version to a later one.

    Steps chain. A second step from the same version replaces the first.

    Args:
        class_name: the class name in its states, or an older name of the class; for a registered
            type, the name of the type.
        from_version: the version that the step reads.
        fn: gets a copy of the state and returns the new one, or changes the copy in place.
        to_version: the version that the step writes; by default the start of the next registered
            step, or the current version of the class.

    Raises:
        InvalidInputError: a version is not dotted numbers, or `to_version` is not later.
    """
    if not isinstance(class_name, str) or not class_name:
        raise InvalidInputError(
            f"register_migration() takes the name of a class, not {short_repr(class_name)}."
        )
    if not callable(fn):
        raise InvalidInputError(f"A migration must be a function, not {short_repr(fn)}.")
    start = parse_version(from_version)
    if to_version is not None and parse_version(to_version) <= start:
        raise InvalidInputError(
            f"The migration of {class_name} from {from_version} to {to_version} does not lead to a "
            "later version."
        )
    with _lock:
        _steps.setdefault(class_name, {})[start] = _Step(from_version, to_version, fn)


def migrate(state: dict[str, Any], *, class_name: str, version: str) -> dict[str, Any]:
    """Return the state at the current version; the argument is not changed.

    Args:
        state: a state of any version. Without a version it is assumed to be current.
        class_name: the current name of the class.
        version: the current version of the class.

    Raises:
        PathError: a step is missing or failed, or the state is newer than the code.
    """
    steps = migration_steps(state.get(VERSION, version), class_name=class_name, version=version)
    if not steps:
        return state
    state = _copied(state, class_name)
    for step, end in steps:
        state = _run(step, state, class_name, end)
    state[VERSION] = version
    return state


def migrate_value(value: Any, saved: str, *, class_name: str, version: str) -> Any:
    """Return a value of a registered type at the current version. The argument may be changed.

    Args:
        value: its fields by name; for an Enum or a type with functions of its own, what is stored.
        saved: the stored version.
        class_name: the name of the type.
        version: the current version of the type.

    Raises:
        PathError: a step is missing or failed, or the value is newer than the code.
    """
    for step, _ in migration_steps(saved, class_name=class_name, version=version):
        value = _call(step, value, class_name)
    return value


def migration_steps(saved: object, *, class_name: str, version: str) -> list[tuple[_Step, str]]:
    """Return the steps from one version to another, each with the version it produces.

    Raises:
        PathError: a step is missing, or the state is newer than the code.
    """
    if saved == version:
        return []
    current, goal = _version(saved, class_name), _version(version, class_name)
    if current > goal:
        raise PathError(
            f"has state version {saved} of {class_name}, newer than version {version} of the "
            "class. Update the code.",
            MigrationError,
        )
    steps = _chain_of(class_name)
    route = []
    while current < goal:
        step = steps.get(current)
        if step is None:
            known = ", ".join(f"from {steps[start].start}" for start in sorted(steps)) or "none"
            raise PathError(
                f"has state version {_text(current)} of {class_name}, but no migration leads from "
                f"{_text(current)} to {version} (registered: {known}). Call register_migration("
                f"{class_name!r}, from_version={_text(current)!r}, fn=…).",
                MigrationError,
            )
        end = _end(step, current, goal, steps)
        if end > goal:
            raise PathError(
                f"has state version {_text(current)} of {class_name}. Its migration leads to "
                f"{_text(end)}, but the class has version {version}.",
                MigrationError,
            )
        route.append((step, _text(end)))
        current = end
    return route


def _copied(state: dict[str, Any], class_name: str) -> dict[str, Any]:
    try:
        fields = copy.deepcopy(dict(state))
    except RecursionError:
        raise
    except Exception as error:
        raise PathError(
            f"could not be migrated: the state of {class_name} cannot be copied "
            f"({cause_text(error)}).",
            MigrationError,
        ) from error
    return StateDict(fields, types=state.types) if isinstance(state, StateDict) else fields


def _run(step: _Step, state: dict[str, Any], class_name: str, end: str) -> dict[str, Any]:
    result = _call(step, state, class_name)
    if not isinstance(result, StateDict):
        result = StateDict(result, types=getattr(state, "types", None))
    result[VERSION] = end
    result.setdefault(CLASS, class_name)
    return result


def _call(step: _Step, state: Any, class_name: str) -> Any:
    try:
        result = step.run(state)
    except Exception as error:
        raise PathError(
            f"could not be migrated: the migration of {class_name} from version {step.start} "
            f"failed ({cause_text(error)}).",
            MigrationError,
        ) from error
    result = state if result is None else result
    if isinstance(state, dict) and not isinstance(result, dict):
        raise PathError(
            f"could not be migrated: the migration of {class_name} from version {step.start} "
            f"returned {type(result).__name__}, expected a dict.",
            MigrationError,
        )
    return result


def _chain_of(class_name: str) -> dict[Version, _Step]:
    with _lock:
        steps: dict[Version, _Step] = {}
        for name in sorted(_steps, key=lambda known: known == class_name):
            if name == class_name or canonical(name) == class_name:
                steps.update(_steps[name])
        return steps


def _end(step: _Step, current: Version, goal: Version, steps: dict[Version, _Step]) -> Version:
    if step.end is not None:
        return parse_version(step.end)
    return min((start for start in steps if current < start < goal), default=goal)


def _version(text: object, class_name: str) -> Version:
    try:
        return parse_version(text)
    except InvalidInputError as error:
        raise PathError(
            f"has an invalid state version of {class_name}: {error}", MigrationError
        ) from None


def parse_version(text: object) -> Version:
    """Return the numbers of a version, without zeros at its end. Raises InvalidInputError."""
    if not isinstance(text, str) or not is_version(text):
        raise InvalidInputError(
            f"{short_repr(text)} is not a version. Use dotted numbers such as '2.0'."
        )
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()  # 1.0 and 1.0.0 are the same version
    return tuple(numbers)


def _text(version: Version) -> str:
    return ".".join(map(str, version if len(version) > 1 else (*version, 0)))
