"""Asyncio support: runs blocking methods off the event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.backends.os_support.os_fork import block_forks

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


async def await_future(future: Future[T]) -> T:
    """Return the result of a future from another thread, without blocking the event loop."""
    with block_forks():
        from asyncio import wrap_future

    return await wrap_future(future)


def in_thread(
    verb: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine method that runs a method in a thread.

    Only for methods that do not use live objects: state must be captured on the caller's thread.
    """

    @functools.wraps(verb)
    async def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with block_forks():
            from asyncio import (
                to_thread,  # asyncio is slow to import, and many programs do not use it
            )

        return await to_thread(verb, self, *args, **kwargs)

    run.__name__ = "a" + verb.__name__
    run.__doc__ = f"Run `{verb.__name__}` in a thread, for asyncio."
    return run


async def run_to_completion(
    step: Callable[..., Any], *args: Any
) -> tuple[Any, BaseException | None]:
    """Run a step off the event loop; return its result, and a CancelledError received meanwhile.

    The step always completes, because it may write. Raises what the step raises; RuntimeError for a
    StopIteration.
    """
    with block_forks():
        import asyncio  # slow to import, and many programs do not use it

    work = asyncio.ensure_future(asyncio.to_thread(_without_stop_iteration, step, *args))
    cancelled: BaseException | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    return work.result(), cancelled


def _without_stop_iteration(step: Callable[..., Any], *args: Any) -> Any:
    """Run a step; a future cannot hold a StopIteration, so that its awaiter would wait forever."""
    try:
        return step(*args)
    except StopIteration as error:
        raise RuntimeError("The function raised StopIteration.") from error
