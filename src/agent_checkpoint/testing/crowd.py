"""Runs the jobs of conformance tests at the same time: in threads, or in processes of their own.

Owns threads, processes and how they begin together. Contains no tests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.testing.backend_hooks import BackendHooks

T = TypeVar("T")
Job = Callable[[Backend], T]

LONGEST_WAIT = 60.0
A_WHILE = 0.2  # seconds; a writer that is not blocked commits within this time
_PROBE = "meta/probe of the suite"


class Crowd:
    """Threads that use one instance of a backend."""

    size = 8

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def barrier(self, parties: int) -> Any:
        """Return a barrier that the jobs can wait at."""
        return threading.Barrier(parties)

    def at_once(self, *jobs: Job[T]) -> list[T]:
        """Run the jobs at the same time, and return their results."""
        start = self.barrier(len(jobs))

        def run(job: Job[T]) -> T:
            start.wait(LONGEST_WAIT)
            return job(self.backend)

        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # switch threads as often as possible
        try:
            with ThreadPoolExecutor(len(jobs)) as pool:
                return [future.result() for future in [pool.submit(run, job) for job in jobs]]
        finally:
            sys.setswitchinterval(usual)

    def writer(self, write: Job[object]) -> Writer:
        """Return a call that is made when its `start` is called."""
        return Writer(lambda: write(self.backend))


class Writer:
    """Runs one call in a separate thread, and records the type of its exception, if any."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.error: type[BaseException] | None = None
        self._write = write
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the call, and wait as long as an unblocked one would take."""
        self._thread.start()
        assert self._started.wait(LONGEST_WAIT)
        self._thread.join(A_WHILE)

    @property
    def is_waiting(self) -> bool:
        """Whether the call has not returned yet."""
        return self._thread.is_alive()

    def finish(self) -> None:
        """Wait until the call has returned."""
        self._thread.join(LONGEST_WAIT)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._started.set()
        try:
            self._write()
        except Exception as error:
            self.error = type(error)


class ProcessCrowd(Crowd):
    """Forked processes, each with an instance of its own of the same data."""

    size = 4

    def __init__(self, backend: Backend, reopen: Callable[[Backend], Backend]) -> None:
        super().__init__(backend)
        self._reopen = reopen
        self._context: Any = multiprocessing.get_context("fork")  # jobs are closures

    def barrier(self, parties: int) -> Any:
        """Return a barrier between processes."""
        return self._context.Barrier(parties)

    def at_once(self, *jobs: Job[T]) -> list[T]:
        """Run the jobs at the same time, and return their results."""
        start = self.barrier(len(jobs))
        running = [self._forked(job, lambda: start.wait(LONGEST_WAIT)) for job in jobs]
        return [one.result() for one in running]

    def writer(self, write: Job[object]) -> Writer:
        """Return a call of a process that exists already: a sweep may hold what a fork copies."""
        go = self._context.Event()
        running = self._forked(write, lambda: go.wait(LONGEST_WAIT))

        def write_there() -> None:
            go.set()
            running.result()

        return Writer(write_there)

    def _forked(self, job: Job[T], begin: Callable[[], object]) -> _Running:
        ready = self._context.Event()
        receiver, sender = self._context.Pipe(duplex=False)

        def run() -> None:
            try:
                with closing(self._reopen(self.backend)) as own:
                    ready.set()
                    begin()
                    sender.send((job(own), None))
            except Exception as error:
                sender.send((str(error), type(error)))

        process = self._context.Process(target=run, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads do not matter here
            process.start()
        sender.close()
        assert ready.wait(LONGEST_WAIT)
        return _Running(process, receiver)


class _Running:
    """A process that runs a job."""

    def __init__(self, process: Any, receiver: Any) -> None:
        self._process = process
        self._receiver = receiver

    def result(self) -> Any:
        """Wait for the result. Raises the error of the job, without its cause."""
        try:
            assert self._receiver.poll(LONGEST_WAIT), "a process does not return"
            result, error = self._receiver.recv()
        except EOFError:
            raise AssertionError("a process died") from None
        finally:
            self._receiver.close()
        self._process.join(LONGEST_WAIT)
        if error is not None:
            # Not by its own constructor: it may take other arguments.
            raised = error.__new__(error)
            raised.args = (result,)
            raise raised
        return result


class CrowdHooks(BackendHooks):
    """Adds the fixture `crowd`, with which each test runs in threads and in processes."""

    @pytest.fixture(params=["threads", "processes"])
    def crowd(self, request: pytest.FixtureRequest, backend: Backend) -> Crowd:
        """Fixture: threads on the backend; processes, if they reach its data."""
        if request.param == "threads":
            return Crowd(backend)
        if not hasattr(os, "fork"):
            pytest.skip("needs os.fork")
        return processes_or_threads(backend, self.reopen)


def processes_or_threads(backend: Backend, reopen: Callable[[Backend], Backend]) -> Crowd:
    """Return processes if they reach the data of a backend; threads if it is in memory."""
    processes = ProcessCrowd(backend, reopen)
    processes.at_once(lambda own: own.append(_PROBE, b"probe"))
    entries = backend.read(_PROBE)
    backend.remove(_PROBE, [entry.seq for entry in entries])
    if entries:
        return processes
    # A backend that others can open must not pass like this.
    assert backend.properties.url is None
    assert backend.properties.path is None
    return Crowd(backend)
