"""Work that waits for a disk, beside the event loop. Owns that it does not keep the server alive.

What only looks may be abandoned: whoever asked is gone, or the server ends. The threads are
daemons, so that the process does not wait for a page that nobody will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from threading import Semaphore, Thread
from typing import Any, TypeVar

T = TypeVar("T")
_AT_ONCE = Semaphore(16)
"""How many pages are made beside each other; more wait."""


async def abandonable(call: Callable[..., T], *args: Any) -> T:
    """Return what a call returns, made on a thread that is left to itself if this is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(tell, result, error)

    Thread(target=run, daemon=True, name="agent-checkpoint page").start()
    return await future


async def one_by_one(pieces: Iterator[T]) -> AsyncIterator[T]:
    """Iterate over what an iterator gives, each made on a thread."""
    end = object()
    try:
        while (piece := await abandonable(next, pieces, end)) is not end:
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if close is not None and not getattr(pieces, "gi_running", False):
            close()
