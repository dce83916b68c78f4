"""Calling functions that users wrote for us: `key`, `verify`, `undo`, `approve`. Owns how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.disk.fork_safety import block_forks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

OWNER_NAMES = ("self", "cls")
"""What the first parameter of a method is called."""

_loop: ContextVar[AbstractEventLoop | None] = ContextVar("agent_checkpoint_loop", default=None)


def invoke_by_name(function: Callable[..., Any], arguments: Mapping[str, Any], **more: Any) -> Any:
    """Call a function with those of the arguments that it takes, by their names.

    A single parameter that is none of them gets `result`, if that is offered.

    Raises what the function raises, and TypeError if it wants something that there is not.
    """
    parameters = inspect.signature(function).parameters
    available = {**arguments, **more}
    given = {name: available[name] for name in parameters if name in available}
    rest = [name for name, item in parameters.items() if item.kind is item.VAR_KEYWORD]
    lacking = [
        name
        for name, item in parameters.items()
        if name not in available
        and item.default is item.empty
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    if rest:
        given[rest[0]] = {name: arguments[name] for name in arguments if name not in given}
    elif len(lacking) == 1 and lacking[0] not in OWNER_NAMES and "result" not in given:
        given.update({lacking[0]: more["result"]} if "result" in more else {})
    args, kwargs = split_arguments(parameters.values(), given)
    return function(*args, **kwargs)


def split_arguments(
    parameters: Iterable[inspect.Parameter], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as a function is called with them: by position, and by name."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    has_gap = False
    for parameter in parameters:
        if parameter.name not in named:
            has_gap = True  # what comes after it cannot be told by its position
            continue
        value = named[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += value
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs.update(value)
        elif parameter.kind is parameter.KEYWORD_ONLY or has_gap:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def takes_owner(function: Callable[..., Any]) -> bool:
    """Tell whether a function is a method that has yet to be told its object."""
    return next(iter(inspect.signature(function).parameters), None) in OWNER_NAMES


@contextmanager
def awaitables_on_this_loop() -> Iterator[None]:
    """Have what is started within, in other threads, await on this event loop."""
    with block_forks():
        import asyncio

    token = _loop.set(asyncio.get_running_loop())
    try:
        yield
    finally:
        _loop.reset(token)


def run_if_awaitable(value: Any) -> Any:
    """Return a value; one that has to be awaited is, on the caller's event loop or one of its own.

    Raises what awaiting it raises.
    """
    if not inspect.isawaitable(value):
        return value
    with block_forks():
        import asyncio
        from threading import Thread

    async def wait() -> Any:
        return await value

    loop = _loop.get()
    if loop is not None and not _is_running_loop(loop):
        return asyncio.run_coroutine_threadsafe(wait(), loop).result()
    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(wait()))
        except BaseException as error:
            errors.append(error)

    # The one of the caller may have a loop that is running. It is in the same session.
    thread = Thread(target=copy_context().run, args=(run,))
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _is_running_loop(loop: AbstractEventLoop) -> bool:
    """Tell whether this is the thread of a loop, which must not wait for itself."""
    with block_forks():
        import asyncio

    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
