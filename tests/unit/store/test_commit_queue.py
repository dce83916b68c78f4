"""Group commit: entries of threads that append at the same time are committed together."""

import os
import threading
from contextlib import suppress

import pytest

from agent_checkpoint import ConflictError, MemoryBackend, StorageError
from agent_checkpoint.backends.base import Append
from agent_checkpoint.store import commit_queue
from agent_checkpoint.store.commit_queue import CommitQueue

LONG = 60.0
"""Seconds: a limit against hangs, and a wait that no test sits out."""


class GroupBackend(MemoryBackend):
    """Commits in groups, and can be held up in a commit."""

    def __init__(self):
        super().__init__()
        self.groups = []
        self.entered = threading.Event()
        self.proceed = threading.Event()
        self.proceed.set()
        self.failure = None

    def append(self, stream, entry, **options):
        self._commit([stream])
        return super().append(stream, entry, **options)

    def append_all(self, appends):
        self._commit([item.stream for item in appends])
        outcomes = []
        for item in appends:
            try:
                outcomes.append(super().append(item.stream, item.entry, after=item.after))
            except ConflictError as error:
                outcomes.append(error)
        return outcomes

    def _commit(self, streams):
        self.entered.set()
        assert self.proceed.wait(LONG)
        self.groups.append(sorted(streams))
        if self.failure is not None and len(streams) > 1:
            raise self.failure


@pytest.fixture
def backend():
    return GroupBackend()


@pytest.fixture
def queue(backend):
    return CommitQueue(backend)


@pytest.fixture
def waits(monkeypatch):
    """Released whenever a thread waits in the queue to be taken along."""
    signal = threading.Semaphore(0)

    class Signalling(threading.Event):
        def wait(self, timeout=None):
            signal.release()
            return super().wait(timeout)

    monkeypatch.setattr(commit_queue, "Event", Signalling)
    return signal


class Appending(threading.Thread):
    """Appends an entry in a thread of its own, and keeps the number or the error."""

    def __init__(self, queue, item, wait=0):
        super().__init__(daemon=True)
        self.queue, self.item, self.wait = queue, item, wait
        self.outcome = None
        self.start()

    def run(self):
        try:
            self.outcome = self.queue.append(self.item, wait=self.wait)
        except BaseException as error:
            self.outcome = error

    def result(self):
        self.join(LONG)
        return self.outcome


def test_an_entry_alone_is_appended_at_once(backend, queue):
    assert [queue.append(Append("key/a", b"1")), queue.append(Append("key/a", b"2"))] == [1, 2]
    assert backend.groups == [["key/a"], ["key/a"]]


def test_an_entry_that_waits_is_committed_with_the_next(backend, queue, waits):
    waiting = [Appending(queue, Append(f"key/{name}", b"x"), wait=LONG) for name in "ab"]
    for _ in waiting:
        assert waits.acquire(timeout=LONG)
    assert queue.append(Append("key/c", b"x")) == 1
    assert [thread.result() for thread in waiting] == [1, 1]
    assert backend.groups == [["key/a", "key/b", "key/c"]]


def test_an_entry_that_nobody_takes_along_is_committed_after_the_wait(backend, queue):
    assert queue.append(Append("key/a", b"x"), wait=0.001) == 1
    assert backend.groups == [["key/a"]]


def test_entries_that_come_during_a_commit_share_the_next_one(backend, queue, waits):
    backend.proceed.clear()
    first = Appending(queue, Append("key/first", b"x"))
    assert backend.entered.wait(LONG)
    others = [Appending(queue, Append(f"key/{name}", b"x"), wait=LONG) for name in "ab"]
    for _ in others:
        assert waits.acquire(timeout=LONG)
    last = Appending(queue, Append("key/last", b"x"))
    backend.proceed.set()
    assert [thread.result() for thread in (first, *others, last)] == [1, 1, 1, 1]
    assert backend.groups == [["key/first"], ["key/a", "key/b", "key/last"]]


def test_each_entry_has_its_own_outcome(backend, queue, waits):
    waiting = Appending(queue, Append("key/a", b"x", after=7), wait=LONG)
    assert waits.acquire(timeout=LONG)
    assert queue.append(Append("key/b", b"x")) == 1
    assert isinstance(waiting.result(), ConflictError)
    assert not backend.read("key/a")


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_commit_that_fails_is_confirmed_to_nobody(backend, queue, waits, interrupt):
    backend.failure = KeyboardInterrupt() if interrupt else StorageError("full", no_room=True)
    waiting = Appending(queue, Append("key/a", b"x"), wait=LONG)
    assert waits.acquire(timeout=LONG)
    with pytest.raises(type(backend.failure)):
        queue.append(Append("key/b", b"x"))
    found = waiting.result()
    assert isinstance(found, StorageError)
    assert (found.no_room, found.outcome_unknown) == (not interrupt, interrupt)
    backend.failure = None
    assert queue.append(Append("key/c", b"x")) == 1
    assert backend.groups[-1] == ["key/c"]


def test_an_entry_whose_thread_was_interrupted_is_not_appended_later(backend, queue, monkeypatch):
    class Interrupted(threading.Event):
        def wait(self, timeout=None):
            raise KeyboardInterrupt

    monkeypatch.setattr(commit_queue, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.append(Append("key/a", b"x"), wait=LONG)
    assert queue.append(Append("key/b", b"x")) == 1
    assert not backend.read("key/a")
    assert backend.groups == [["key/b"]]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_begins_with_an_empty_queue(backend, queue, waits):
    backend.proceed.clear()
    busy = Appending(queue, Append("key/busy", b"x"))
    assert backend.entered.wait(LONG)
    waiting = Appending(queue, Append("key/waiting", b"x"), wait=LONG)
    assert waits.acquire(timeout=LONG)
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            backend.proceed.set()
            queue.append(Append("key/child", b"x"))
            os._exit(0 if backend.groups == [["key/child"]] else 2)
        os._exit(1)
    backend.proceed.set()
    assert queue.append(Append("key/parent", b"x")) == 1
    assert [busy.result(), waiting.result()] == [1, 1]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_other_backends_append_beside_each_other():
    backend = MemoryBackend()
    assert not backend.properties.can_group
    assert CommitQueue(backend).append(Append("key/a", b"x"), wait=LONG) == 1
