"""Calls user functions (`key=`, `verify=`, `undo=`, `approve=`), sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

OWNER_NAMES = ("self", "cls")
"""Names of the first parameter of a method."""

_loop: ContextVar[AbstractEventLoop | None] = ContextVar("agent_checkpoint_loop", default=None)


def invoke_by_name(function: Callable[..., Any], arguments: Mapping[str, Any], **more: Any) -> Any:
    """Call a function with the arguments that it accepts, matched by name.

    A single unmatched required parameter receives `result`, if `more` has it.

    Raises what the function raises, and TypeError for other unmatched parameters.
    """
    parameters = inspect.signature(function).parameters
    available = {**arguments, **more}
    given = {name: available[name] for name in parameters if name in available}
    var_keyword = [name for name, item in parameters.items() if item.kind is item.VAR_KEYWORD]
    missing = [
        name
        for name, item in parameters.items()
        if name not in available
        and item.default is item.empty
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    if var_keyword:
        given[var_keyword[0]] = {name: arguments[name] for name in arguments if name not in given}
    elif len(missing) == 1 and missing[0] not in OWNER_NAMES and "result" not in given:
        given.update({missing[0]: more["result"]} if "result" in more else {})
    args, kwargs = split_arguments(parameters.values(), given)
    return function(*args, **kwargs)


def split_arguments(
    parameters: Iterable[inspect.Parameter], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Split named arguments into positional and keyword arguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    has_gap = False
    for parameter in parameters:
        if parameter.name not in named:
            has_gap = True  # later parameters cannot be passed by position
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
    """Return whether a function is an unbound method."""
    return next(iter(inspect.signature(function).parameters), None) in OWNER_NAMES


@contextmanager
def awaitables_on_this_loop() -> Iterator[None]:
    """Run awaitables on this event loop, even if another thread of this context gets them."""
    with block_forks():
        import asyncio

    token = _loop.set(asyncio.get_running_loop())
    try:
        yield
    finally:
        _loop.reset(token)


def run_if_awaitable(value: Any) -> Any:
    """Return a value, or the result of an awaitable, run on the caller's event loop or a new one.

    If the caller is interrupted, such as by Ctrl-C, the awaitable is cancelled and awaited first.

    Raises what the awaitable raises.
    """
    if not inspect.isawaitable(value):
        return value
    with block_forks():
        import asyncio
        from threading import Event, Thread

    async def wait() -> Any:
        return await value

    loop = _loop.get()
    if loop is not None and not _is_running_loop(loop):
        return asyncio.run_coroutine_threadsafe(wait(), loop).result()
    results: list[Any] = []
    errors: list[BaseException] = []
    cancels: list[Callable[[], Any]] = []
    interrupted, ended = Event(), Event()

    async def wait_in_task() -> Any:
        task, here = asyncio.ensure_future(wait()), asyncio.get_running_loop()
        cancels.append(lambda: here.call_soon_threadsafe(task.cancel))
        if interrupted.is_set():  # before the line above
            task.cancel()
        return await task

    def run() -> None:
        try:
            results.append(asyncio.run(wait_in_task()))
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    # In a new thread: the caller's may have a running loop. The context carries the session along.
    thread = Thread(target=copy_context().run, args=(run,))
    try:
        thread.start()
        # Not join(): interrupted, it takes the thread for ended. Not for ever: an interrupt just
        # before the wait would not end it.
        while not ended.wait(1.0):
            pass
    except BaseException:
        interrupted.set()
        for cancel in cancels:
            with suppress(RuntimeError):  # the loop has ended
                cancel()
        if thread.ident is not None:
            ended.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]


def _is_running_loop(loop: AbstractEventLoop) -> bool:
    """Return whether this thread runs the loop: waiting for it here would deadlock."""
    with block_forks():
        import asyncio

    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
