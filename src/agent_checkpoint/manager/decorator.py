"""The `@checkpoint` decorator: saves an agent after calls of decorated functions."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agent_checkpoint.core.live_objects import LiveObjects
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import InvalidInputError, Suspended
from agent_checkpoint.manager.checkpoint_parts import SINGLE_PART, capture, restore_parts
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import OnError, check_option
from agent_checkpoint.records import check_key, short_repr

F = TypeVar("F", bound=Callable[..., Any])


def checkpoint(
    manager: CheckpointManager,
    *,
    key: str | Callable[..., str],
    every: int = 1,
    on_error: OnError | None = None,
) -> Callable[[F], F]:
    """Decorate a function, method or coroutine function so that its calls save the agent.

    The agent is the first argument that is a Stateful. Successful calls are counted per agent.

    Args:
        manager: the manager that saves the agent.
        key: the key, or a function that receives the agent and the other arguments of the call and
            returns the key.
        every: save after this many successful calls; `every=5` saves after call 5, 10, 15, ….
        on_error: `"rollback"` restores the state before the call if the call raises.

    Raises:
        InvalidInputError: an option is invalid, or a call has no Stateful argument.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InvalidInputError(
            f"every must be a positive number of calls, not {short_repr(every)}."
        )
    if on_error is not None:
        check_option("on_error", on_error, OnError, "None")
    if not callable(key):
        check_key(key)
    counter = _Counter()

    def decorate(function: F) -> F:
        if isinstance(function, type):
            raise InvalidInputError(
                "@checkpoint does not support classes: decorate the methods of "
                f"{function.__name__}."
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInputError(
                f"@checkpoint does not support generator functions: decorate a function that runs "
                f"{function.__name__}."
            )
        name = getattr(function, "__qualname__", repr(function))

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
            agent = _first_stateful(args, kwargs, name)
            others = tuple(value for value in args if value is not agent)
            named = {key: value for key, value in kwargs.items() if value is not agent}
            chosen = key(agent, *others, **named) if callable(key) else key
            return _Call(agent, check_key(chosen), can_roll_back=on_error is not None)

        async def finish(call: _Call, result: Awaitable[Any]) -> Any:
            try:
                value = await result
            except BaseException as error:
                call.failed(error)
                raise
            if counter.add(call.agent) % every == 0:
                await manager.asave(call.key, call.agent)
            return value

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            call = begin(args, kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                call.failed(error)
                raise
            if inspect.isawaitable(result):  # the call ends when it is awaited
                return finish(call, result)
            if counter.add(call.agent) % every == 0:
                manager.save(call.key, call.agent)
            return result

        @functools.wraps(function)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            return await finish(begin(args, kwargs), function(*args, **kwargs))

        return arun if inspect.iscoroutinefunction(function) else run  # type: ignore[return-value]

    return decorate


class _Call:
    """A running call: the agent, its key, and its previous state if it may be rolled back."""

    def __init__(self, agent: Any, key: str, *, can_roll_back: bool) -> None:
        self.agent = agent
        self.key = key
        self.before = capture(agent) if can_roll_back else None
        self.live_objects = LiveObjects([agent]) if can_roll_back else None

    def failed(self, error: BaseException) -> None:
        if self.before is not None and not isinstance(error, Suspended):
            restore_parts(self.before, {SINGLE_PART: self.agent}, live_objects=self.live_objects)


class _Counter:
    """Counts calls by object identity, because agents may be unhashable; forgets dead agents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        self._alive: dict[int, Any] = {}

    def add(self, agent: Any) -> int:
        with self._lock:
            name = id(agent)
            if name not in self._alive:
                self._alive[name] = self._watch(agent, name)
            self._counts[name] = self._counts.get(name, 0) + 1
            return self._counts[name]

    def _watch(self, agent: Any, name: int) -> Any:
        try:
            return weakref.ref(agent, lambda _: self._forget(name))
        except TypeError:  # slots without __weakref__: keep it, or its id could be reused
            return agent

    def _forget(self, name: int) -> None:
        # May run at any moment, even while this thread holds the lock; dict.pop is atomic.
        self._counts.pop(name, None)
        self._alive.pop(name, None)


def _first_stateful(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    for value in (*args, *kwargs.values()):
        if is_stateful(value):
            return value
    raise InvalidInputError(
        f"@checkpoint has nothing to save: {name} was called without an argument that has "
        "state_dict() and load_state_dict()."
    )
