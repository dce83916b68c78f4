"""Saves that go on behind the caller.

Owns the one writer thread and the failures nobody has seen yet; knows nothing of what is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from agent_checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs writes one after another on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._newest: Future[None] | None = None
        self._writer: int | None = None
        self._failure: BaseException | None = None
        _WRITERS.add(self)

    def submit(self, write: Callable[[], str], *, awaited: bool = False) -> Future[str]:
        """Queue a write and return its future, which cannot be cancelled.

        Args:
            write: makes the save and returns its id.
            awaited: the caller will look at the future: a failure need not be told again.

        Raises:
            CheckpointError: an earlier write failed and nobody was told yet.
        """
        from concurrent.futures import Future, ThreadPoolExecutor  # slow to load

        outcome: Future[str] = Future()
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            self._writer = threading.get_ident()
            try:
                result = write()
            except BaseException as error:
                if not awaited:
                    self._keep(error)  # before anybody who waits is woken
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        with self._lock:
            self._raise_failure()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "agent-checkpoint-writer")
            self._newest = self._executor.submit(run)
        return outcome

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
        # The writes run in order: the newest is the last. A callback of a future runs on the
        # writer's own thread, which must not wait for itself.
        if newest is not None and not self._on_writer():
            newest.result()

    @contextmanager
    def failure_kept(self) -> Iterator[None]:
        """Keep an error of the block to be raised by the next `submit` or `settle`."""
        try:
            yield
        except CheckpointError as error:
            self._keep(error)

    def close(self) -> None:
        """Settle and stop the thread. Raises as `settle` does."""
        try:
            self.settle()
        finally:
            with self._lock:
                executor, self._executor, self._newest = self._executor, None, None
            if executor is not None:
                executor.shutdown(wait=not self._on_writer())

    def _keep(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or error

    def _on_writer(self) -> bool:
        return threading.get_ident() == self._writer

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin_anew(self) -> None:
        # Threads stay behind in the parent, and one of them may have held the lock.
        self._lock = threading.Lock()
        self._executor = self._newest = self._writer = None


_WRITERS: WeakSet[BackgroundWriter] = WeakSet()


def _after_fork() -> None:
    for writer in _WRITERS:
        writer._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
