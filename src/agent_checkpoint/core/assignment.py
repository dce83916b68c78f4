"""Atomic assignments to live objects: if a step fails, the earlier steps are undone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import StateError

Undo = Callable[[], object]


class Assignments:
    """Collects steps and applies them in order; undoes them if one fails."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], Undo]] = []

    def set(self, target: Any, name: str, value: Any, path: str) -> None:
        """Plan to set an attribute. Messages contain `path`."""
        self._steps.append(lambda: _set(target, name, value, path))

    def delete(self, target: Any, name: str, path: str) -> None:
        """Plan to remove an attribute."""
        self._steps.append(lambda: _delete(target, name, path))

    def load(self, target: Any, load: Callable[[], object], path: str) -> None:
        """Plan to call `load`, which calls the target's own `load_state_dict()`."""
        self._steps.append(lambda: _load(target, load, path))

    def do(self, step: Callable[[], Undo]) -> None:
        """Plan a step that returns its undo function."""
        self._steps.append(step)

    def fill(self, target: dict[str, Any], state: dict[str, Any]) -> None:
        """Plan to replace the content of a plain dict."""
        self._steps.append(lambda: _fill(target, state))

    def apply(self) -> None:
        """Apply all steps.

        Raises:
            StateError: a step failed; the earlier steps were undone.
        """
        undo: list[Undo] = []
        try:
            for step in self._steps:
                undo.append(step())
        except BaseException:
            for undo_step in reversed(undo):
                with suppress(Exception):  # a failed undo must not prevent the others
                    undo_step()
            raise


def _set(target: Any, name: str, value: Any, path: str) -> Undo:
    own = getattr(target, "__dict__", {})
    was_own = name in own
    had = hasattr(target, name)
    before = getattr(target, name, None)
    try:
        setattr(target, name, value)
    except Exception as error:
        raise StateError(f"{path} cannot be assigned ({cause_text(error)}).") from error
    if not had or (name in own and not was_own):  # it shadows a class attribute
        return lambda: delattr(target, name)
    return lambda: setattr(target, name, before)


def _delete(target: Any, name: str, path: str) -> Undo:
    before = getattr(target, name)
    try:
        delattr(target, name)
    except Exception as error:
        raise StateError(f"{path} cannot be removed ({cause_text(error)}).") from error
    return lambda: setattr(target, name, before)


def _load(target: Any, load: Callable[[], object], path: str) -> Undo:
    attributes = dict(getattr(target, "__dict__", {}))
    try:
        before = copy.deepcopy(target.state_dict())  # some return their live values
    except Exception as error:
        raise StateError(
            f"{path} cannot be loaded: its current state cannot be copied for undo "
            f"({cause_text(error)})."
        ) from error

    def undo_step() -> None:
        # First the attributes, then changes inside their values.
        if attributes:
            vars(target).clear()
            vars(target).update(attributes)
        target.load_state_dict(before)

    try:
        load()
    except BaseException as error:
        with suppress(Exception):  # a method that fails on one state may fail on every state
            undo_step()
        if isinstance(error, StateError) or not isinstance(error, Exception):
            raise
        raise StateError(f"{path} rejected the state ({cause_text(error)}).") from error
    return undo_step


def _fill(target: dict[str, Any], state: dict[str, Any]) -> Undo:
    before = dict(target)
    target.clear()
    target.update(state)

    def undo_step() -> None:
        target.clear()
        target.update(before)

    return undo_step
