"""Runs the blocking work of requests outside the event loop. Owns the worker threads.

A request that only reads may be abandoned when its client disconnects or the server stops. Its
thread is a daemon, so that the process does not wait for a response that has no receiver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from threading import Semaphore, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_AT_ONCE = Semaphore(16)
"""The number of pages rendered concurrently; further requests wait."""


async def run_in_daemon_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a call in a daemon thread and return its result; cancellation abandons the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        with _AT_ONCE:
            if future.cancelled():
                return
            try:
                result = call(*args)
            except BaseException as failure:
                error = failure
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, error)

    context = copy_context()
    Thread(target=context.run, args=(run,), daemon=True, name="agent-checkpoint page").start()
    return await future


async def stream_in_threads(items: Iterator[T]) -> AsyncIterator[T]:
    """Iterate over a blocking iterator; each item is produced in a daemon thread."""
    end = object()
    try:
        while (item := await run_in_daemon_thread(next, items, end)) is not end:
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None and not getattr(items, "gi_running", False):
            close()
