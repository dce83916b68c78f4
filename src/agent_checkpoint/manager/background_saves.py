"""Saves that go on behind the caller.

Owns the queue, the threads that write, and the failures that nobody has seen yet; knows nothing of
what is written.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread, get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from concurrent.futures import Future

_STAYS = 0.01
"""Seconds that a thread waits for more."""


class _Worker(Thread):
    """Writes all that is queued when it gets its turn, stays for a moment, and is gone."""

    def __init__(self, writer: BackgroundWriter) -> None:
        super().__init__(name="agent-checkpoint-writer")
        self._of = writer
        self.is_coming = True
        """Whether it has yet to look at the queue."""
        self.is_over = _taken()
        """Held until it has looked at the queue once, and has written what it saw."""
        self._sleeps = _taken()

    def wake(self) -> None:
        """Have it look at the queue again."""
        with suppress(RuntimeError):  # somebody else has woken it
            self._sleeps.release()

    def run(self) -> None:
        """Write."""
        try:
            self._look()
        finally:
            self.is_over.release()
        is_woken = True
        while is_woken:
            # To begin a thread takes as long as a write: there may be more to come.
            self.is_coming = True
            is_woken = self._sleeps.acquire(timeout=_STAYS)
            self._look()

    def _look(self) -> None:
        with self._of._turn:
            self.is_coming = False
            self._of._write_all()


def _taken() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock


class BackgroundWriter:
    """Runs writes one after another, on threads of its own that live as long as there is work.

    A caller may be interrupted at any instruction. What it had queued stays in the queue, and
    whoever comes next has it written: nothing is left behind, to be written after something newer.
    Callers share only locks that Python lets go of by itself: an interrupt within a `Condition`,
    which every Future and every executor has, can leave it held for ever.
    """

    _queue: deque[Callable[[], None]]
    """What is not written yet; the first may be under way."""
    _newest: _Worker | None
    _writing: int | None
    """The thread that writes."""

    def __init__(self) -> None:
        self._failures: list[BaseException] = []
        self._begin_anew()
        _WRITERS.add(self)

    def submit(self, write: Callable[[], str], *, awaited: bool = False) -> Future[str]:
        """Queue a write and return its future, which cannot be cancelled.

        Args:
            write: makes the save and returns its id.
            awaited: the caller will look at the future: a failure need not be told again.

        Raises:
            CheckpointError: an earlier write failed and nobody was told yet.
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
                    self._keep(error)  # before anybody who waits is woken
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._raise_failure()
        self._queue.append(run)
        try:
            self._have_written()
        except Exception:  # no thread can be had: the caller is told that nothing is written
            is_dropped = True
            raise
        return outcome

    def settle(self) -> None:
        """Wait until all that was queued is written.

        Raises:
            CheckpointError: a write failed and nobody was told yet.
        """
        self.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Wait until all that was queued is written or has failed."""
        # A callback of a future runs on the thread that writes, which must not wait for itself.
        if self._queue and get_ident() != self._writing:
            self._start().is_over.acquire()

    @contextmanager
    def failure_kept(self) -> Iterator[None]:
        """Keep an error of the block to be raised by the next `submit` or `settle`."""
        try:
            yield
        except CheckpointError as error:
            self._keep(error)

    def close(self) -> None:
        """Settle. Raises as `settle` does."""
        self.settle()

    def _have_written(self) -> None:
        newest = self._newest
        if newest is not None and newest.is_coming:
            newest.wake()
        else:
            self._start()

    def _start(self) -> _Worker:
        worker = _Worker(self)
        worker.start()
        self._newest = worker  # not before it runs: an interrupt may have kept it from that
        return worker

    def _write_all(self) -> None:
        """Write what is queued by now; only for who has its turn."""
        self._writing = get_ident()
        try:
            for _ in range(len(self._queue)):
                try:
                    self._queue[0]()
                finally:
                    self._queue.popleft()
        finally:
            self._writing = None  # the next thread of the process may have the same number

    def _keep(self, error: BaseException) -> None:
        if not self._failures:
            self._failures.append(error)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop()

    def _begin_anew(self) -> None:
        # After a fork threads stay behind in the parent, and what they write, and what they held.
        self._queue = deque()
        self._newest = self._writing = None
        self._turn = Lock()


_WRITERS: WeakSet[BackgroundWriter] = WeakSet()


def _after_fork() -> None:
    for writer in _WRITERS:
        writer._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
