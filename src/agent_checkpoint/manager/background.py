"""Saves that go on behind the caller.

Owns the one writer thread and the failures nobody has seen yet; knows nothing of what is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from weakref import WeakSet

from agent_checkpoint.errors import CheckpointError


class BackgroundWriter:
    """Runs writes one after another on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._newest: Future[str] | None = None
        self._failure: BaseException | None = None
        _WRITERS.add(self)

    def submit(self, write: Callable[[], str]) -> Future[str]:
        """Queue a write and return its future.

        Raises:
            CheckpointError: an earlier write failed and nobody was told yet.
        """
        with self._lock:
            self._raise_failure()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "agent-checkpoint-writer")
            future = self._executor.submit(write)
            self._newest = future
        future.add_done_callback(self._note)
        return future

    def settle(self) -> None:
        """Wait until all that was queued is written.

        Raises:
            CheckpointError: a write failed and nobody was told yet.
        """
        self.wait()
        with self._lock:
            self._raise_failure()

    def wait(self) -> None:
        """Wait until all that was queued is written or has failed."""
        with self._lock:
            newest = self._newest
        if newest is not None:
            newest.exception()  # the writes run in order: the newest is the last

    @contextmanager
    def failure_kept(self) -> Iterator[None]:
        """Keep an error of the block to be raised by the next `submit` or `settle`."""
        try:
            yield
        except CheckpointError as error:
            with self._lock:
                self._failure = self._failure or error

    def close(self) -> None:
        """Settle and stop the thread. Raises as `settle` does."""
        try:
            self.settle()
        finally:
            with self._lock:
                executor, self._executor, self._newest = self._executor, None, None
            if executor is not None:
                executor.shutdown()

    def _note(self, future: Future[str]) -> None:
        # Called by the writer thread, or at once by the caller's if the write is done already.
        error = None if future.cancelled() else future.exception()
        if error is not None:
            with self._lock:
                self._failure = self._failure or error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin_anew(self) -> None:
        # Threads stay behind in the parent, and one of them may have held the lock.
        self._lock = threading.Lock()
        self._executor = self._newest = None


_WRITERS: WeakSet[BackgroundWriter] = WeakSet()


def _after_fork() -> None:
    for writer in _WRITERS:
        writer._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
