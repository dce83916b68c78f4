"""Background saves: the queue, the writer threads, and failures to report later."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread, get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from concurrent.futures import Future

_IDLE_SECONDS = 0.01
"""Seconds that an idle thread waits for more work."""


class _Worker(Thread):
    """A thread that runs the queued writes, waits briefly for more, and exits."""

    def __init__(self, writer: BackgroundWriter) -> None:
        super().__init__(name="agent-checkpoint-writer")
        self._writer = writer
        self.will_read_queue = True
        """Whether the thread will read the queue again."""
        self.first_pass = _held_lock()
        """Held until the thread has run all writes of its first queue read."""
        self._wake_up = _held_lock()

    def wake(self) -> None:
        """Make the thread read the queue again."""
        with suppress(RuntimeError):  # another thread has woken it
            self._wake_up.release()

    def run(self) -> None:
        """Run queued writes until none arrives within the idle timeout."""
        try:
            self._write_queue()
        finally:
            self.first_pass.release()
        is_woken = True
        while is_woken:
            # Starting a thread takes as long as a write, and more work may follow.
            self.will_read_queue = True
            is_woken = self._wake_up.acquire(timeout=_IDLE_SECONDS)
            self._write_queue()

    def _write_queue(self) -> None:
        with self._writer._turn:
            self.will_read_queue = False
            self._writer._write_all()


def _held_lock() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


class BackgroundWriter:
    """Runs writes in order on short-lived threads.

    A caller may be interrupted at any instruction. Its queued writes stay in the queue and are
    written before any later one. Callers share only plain locks: an interrupt inside a `Condition`,
    which every Future and executor uses, could leave it locked forever.
    """

    _queue: deque[Callable[[], None]]
    """Unfinished writes; the first may be running."""
    _newest: _Worker | None
    _writing: int | None
    """The id of the thread that is writing."""

    def __init__(self) -> None:
        self._failures: list[BaseException] = []
        self._reset()
        _WRITERS.add(self)

    def submit(self, write: Callable[[], str], *, awaited: bool = False) -> Future[str]:
        """Queue a write and return its future, which cannot be cancelled.

        Args:
            write: performs the save and returns its id.
            awaited: the caller awaits the future, so a failure is not raised again later.

        Raises:
            CheckpointError: an earlier write failed and was not reported yet.
        """
        with block_forks():
            from concurrent.futures import Future  # slow to load

        outcome: Future[str] = Future()
        outcome.set_running_or_notify_cancel()

        is_dropped = False

        def run() -> None:
            if is_dropped:
                return
            try:
                result = write()
            except BaseException as error:
                if not awaited:
                    self._keep_failure(error)  # before waiters are woken
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._raise_failure()
        self._queue.append(run)
        try:
            self._wake_or_start()
        except Exception:  # no thread could be started: the caller gets the error instead
            is_dropped = True
            raise
        return outcome

    def flush(self) -> None:
        """Wait until all queued writes have finished.

        Raises:
            CheckpointError: an earlier write failed and was not reported yet.
        """
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Wait until all queued writes have finished. Failures are not raised."""
        # A future callback runs on the writer thread, which must not wait for itself.
        if self._queue and get_ident() != self._writing:
            self._start().first_pass.acquire()

    @contextmanager
    def defer_failure(self) -> Iterator[None]:
        """Defer an error of the block to the next `submit` or `flush`."""
        try:
            yield
        except CheckpointError as error:
            self._keep_failure(error)

    def close(self) -> None:
        """Wait for queued writes. Raises the same errors as `flush`."""
        self.flush()

    def _wake_or_start(self) -> None:
        newest = self._newest
        if newest is not None and newest.will_read_queue:
            newest.wake()
        else:
            self._start()

    def _start(self) -> _Worker:
        worker = _Worker(self)
        worker.start()
        self._newest = worker  # only once it runs: an interrupt may have prevented the start
        return worker

    def _write_all(self) -> None:
        """Run the writes that are queued now; the caller holds `_turn`."""
        self._writing = get_ident()
        try:
            for _ in range(len(self._queue)):
                try:
                    self._queue[0]()
                finally:
                    self._queue.popleft()
        finally:
            self._writing = None  # a later thread may get the same id

    def _keep_failure(self, error: BaseException) -> None:
        if not self._failures:
            self._failures.append(error)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop()

    def _reset(self) -> None:
        # A forked child has neither the threads of its parent nor their locks.
        self._queue = deque()
        self._newest = self._writing = None
        self._turn = Lock()


_WRITERS: WeakSet[BackgroundWriter] = WeakSet()


def _after_fork() -> None:
    for writer in _WRITERS:
        writer._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
