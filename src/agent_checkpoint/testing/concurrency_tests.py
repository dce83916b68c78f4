"""Conformance tests for thread safety: any thread may call any method at any time.

Also tests that no commit happens while `delete_objects` consumes its ids. Covers threads of one
process. Tests with several processes belong to each backend.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError, MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id
from agent_checkpoint.testing.stream_tests import seqs

T = TypeVar("T")

THREADS = 8
LONGEST_WAIT = 60.0
A_WHILE = 0.2  # seconds; a writer that is not blocked commits within this time


def at_once(*jobs: Callable[[], T]) -> list[T]:
    """Run the jobs concurrently, each in its own thread, and return their results."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        start.wait(LONGEST_WAIT)
        return job()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # switch threads as often as possible
    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            return [future.result() for future in [pool.submit(run, job) for job in jobs]]
    finally:
        sys.setswitchinterval(usual)


def append_at_once(*backends: Backend) -> list[Entry]:
    """Append to one stream from one thread per backend; return the acknowledged entries.

    Each entry has an object of the same content. The numbers must be without gaps.
    """

    def writer(backend: Backend, thread: int) -> list[Entry]:
        contents = [b"%d of thread %d" % (number, thread) for number in range(12)]
        return [Entry(backend.append("key/a", one, objects=named(one)), one) for one in contents]

    jobs = [partial(writer, backend, thread) for thread, backend in enumerate(backends)]
    acknowledged = sorted(entry for told in at_once(*jobs) for entry in told)
    assert [entry.seq for entry in acknowledged] == list(range(1, 12 * len(backends) + 1))
    return acknowledged


class Writer:
    """Runs one call in a separate thread, and records its exception, if any."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._write = write
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait as long as an unblocked call would take."""
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
            self.error = error


class ConcurrencyTests(BackendHooks):
    """Concurrent calls lose no entries or objects and assign each number once."""

    def test_threads_appending_to_one_stream(self, backend: Backend) -> None:
        """Every acknowledged append is stored under the returned number, without gaps."""
        acknowledged = append_at_once(*(backend,) * THREADS)
        assert backend.read("key/a") == acknowledged

    def test_numbers_rise_for_each_thread(self, backend: Backend) -> None:
        """An append that began after another was acknowledged has the higher number."""

        def writer() -> list[int]:
            return [backend.append("key/a", b"entry") for _ in range(8)]

        for told in at_once(*(writer for _ in range(THREADS))):
            assert told == sorted(told)

    def test_threads_beginning_a_stream_together(self, backend: Backend) -> None:
        """Concurrent first appends to a stream create one stream."""
        for round_ in range(20):
            # Long names, which a medium may have to shorten, may be created in another way.
            stream = f"key/{'Long' * (round_ % 2) * 60}{round_}"

            def writer(stream: str = stream) -> int:
                return backend.append(stream, b"entry", objects=named(stream.encode()))

            told = at_once(*(writer for _ in range(THREADS)))
            assert sorted(told) == list(range(1, THREADS + 1))
            assert seqs(backend, stream) == sorted(told)

    def test_threads_appending_to_streams_of_their_own(self, backend: Backend) -> None:
        """Appends to different streams do not affect each other."""
        each = 8

        def writer(stream: str) -> list[int]:
            return [backend.append(stream, stream.encode()) for _ in range(each)]

        streams = [f"key/{thread}" for thread in range(THREADS)]
        told = at_once(*(lambda stream=stream: writer(stream) for stream in streams))
        assert told == [list(range(1, each + 1))] * THREADS
        assert sorted(backend.streams()) == streams
        for stream in streams:
            assert {entry.data for entry in backend.read(stream)} == {stream.encode()}

    def test_one_winner_after_the_same_entry(self, backend: Backend) -> None:
        """Of several appends with the same `after=` exactly one succeeds."""

        def attempt(after: int) -> int | None:
            try:
                return backend.append("key/a", b"entry", after=after)
            except ConflictError:
                return None

        for newest in range(10):
            told = at_once(*(lambda newest=newest: attempt(newest) for _ in range(THREADS)))
            assert [seq for seq in told if seq is not None] == [newest + 1]
        assert seqs(backend, "key/a") == list(range(1, 11))

    def test_reading_while_others_append(self, backend: Backend) -> None:
        """Each read returns the entries of the previous read, followed by new ones."""
        writing = [None] * 4  # one item per writer; `pop` is atomic
        entry = b"entry" * 2000

        def writer() -> int:
            try:
                return sum(1 for _ in range(15) if backend.append("key/a", entry))
            finally:
                writing.pop()

        def reader() -> int:
            known: list[Entry] = []
            while True:
                last_round = not writing
                found = backend.read("key/a")
                assert found[: len(known)] == known
                assert [one.seq for one in found] == list(range(1, len(found) + 1))
                assert all(one.data == entry for one in found)
                newest = backend.read("key/a", limit=1, newest_first=True)
                assert not found or newest[0].seq >= found[-1].seq
                known = found
                if last_round:
                    return len(known)

        told = at_once(writer, writer, writer, writer, reader, reader)
        assert told == [15, 15, 15, 15, 60, 60]

    def test_removing_while_others_append(self, backend: Backend) -> None:
        """No number is reused, and exactly the removed entries are missing."""
        each = 10

        def writer() -> list[tuple[int, bool]]:
            told = []
            for number in range(each):
                seq = backend.append("key/a", b"entry")
                if number % 2:
                    backend.remove("key/a", [seq])
                told.append((seq, not number % 2))
            return told

        told = [one for all_of_one in at_once(*(writer,) * 4) for one in all_of_one]
        numbers = [seq for seq, _ in told]
        assert len(set(numbers)) == len(numbers)
        assert seqs(backend, "key/a") == sorted(seq for seq, stays in told if stays)
        assert backend.append("key/a", b"next") > max(numbers)

    def test_threads_putting_the_same_objects(self, backend: Backend) -> None:
        """Concurrent puts of the same object store it once, and completely."""
        objects = named(*(b"object %d" % number * 500 for number in range(10)))

        def saver() -> int:
            backend.put_objects(objects)
            return backend.append("key/a", b"entry", objects=objects, requires=list(objects))

        assert sorted(at_once(*(saver,) * THREADS)) == list(range(1, THREADS + 1))
        assert backend.get_objects(objects) == objects
        assert sorted(info.id for info in backend.list_objects()) == sorted(objects)

    def test_deleting_objects_while_others_write(self, backend: Backend) -> None:
        """Deleting unused objects does not affect objects that are being written."""
        unused = [named(b"unused %d" % number) for number in range(10)]
        for objects in unused:
            backend.put_objects(objects)

        def saver() -> int:
            for number in range(10):
                backend.append("key/a", b"entry", objects=named(b"used %d" % number))
            return 10

        def sweeper() -> int:
            for objects in unused:
                backend.delete_objects(objects)
            return 0

        assert at_once(saver, saver, sweeper) == [10, 10, 0]
        used = named(*(b"used %d" % number for number in range(10)))
        assert backend.get_objects(used) == used
        assert {info.id for info in backend.list_objects()} == set(used)
        assert seqs(backend, "key/a") == list(range(1, 21))


class DeletionTests(BackendHooks):
    """The guarantee that gc relies on: no commit happens between its last mark and its sweep."""

    def test_no_append_commits_while_ids_are_taken(self, backend: Backend) -> None:
        """An append is blocked until the deletion ends; then it fails if its object was deleted."""
        doomed = object_id(b"doomed")
        backend.put_objects(named(b"doomed", b"other"))
        writer = Writer(lambda: backend.append("key/a", b"entry", requires=[doomed]))

        def ids() -> Iterator[str]:
            writer.start()
            assert writer.is_waiting
            assert backend.read("key/a") == []
            yield doomed
            assert writer.is_waiting
            assert backend.read("key/a") == []

        backend.delete_objects(ids())
        writer.finish()
        assert isinstance(writer.error, MissingObjectsError)
        assert backend.read("key/a") == []
        assert backend.get_objects(named(b"doomed", b"other")) == named(b"other")

    def test_no_put_commits_while_ids_are_taken(self, backend: Backend) -> None:
        """A put is blocked until the deletion ends, and then stores the object again."""
        backend.put_objects(named(b"doomed"))
        writer = Writer(lambda: backend.put_objects(named(b"doomed", b"new")))

        def ids() -> Iterator[str]:
            writer.start()
            assert writer.is_waiting
            assert backend.missing_objects(named(b"new")) == set(named(b"new"))
            yield object_id(b"doomed")

        backend.delete_objects(ids())
        writer.finish()
        assert writer.error is None
        assert backend.get_objects(named(b"doomed", b"new")) == named(b"doomed", b"new")

    def test_reading_from_inside_sees_all_that_is_committed(self, backend: Backend) -> None:
        """The generator reads all committed data, so that gc can mark recent saves."""
        backend.append("key/a", b"first", objects=named(b"used"))
        backend.put_objects(named(b"doomed"))
        backend.append("key/b", b"second", objects=named(b"used too", bytes(200_000)))

        def ids() -> Iterator[str]:
            stored = named(b"used", b"used too", b"doomed", bytes(200_000))
            for _ in range(2):
                assert sorted(backend.streams()) == ["key/a", "key/b"]
                assert backend.read("key/b") == [Entry(1, b"second")]
                assert backend.read("key/a", newest_first=True, limit=1) == [Entry(1, b"first")]
                assert {info.id for info in backend.list_objects()} == set(stored)
                assert backend.get_objects(stored) == stored
                gone = object_id(b"never")
                assert backend.missing_objects([*stored, gone]) == {gone}
                # Nothing is deleted before the generator is consumed.
                yield object_id(b"doomed")

        backend.delete_objects(ids())
        assert backend.missing_objects(named(b"used", b"doomed")) == set(named(b"doomed"))

    def test_ids_that_raise_delete_nothing(self, backend: Backend) -> None:
        """If the generator raises, no object is deleted, and writers are unblocked."""
        objects = named(b"one", b"two", bytes(200_000))
        backend.put_objects(objects)

        def ids() -> Iterator[str]:
            yield from objects
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            backend.delete_objects(ids())
        assert backend.get_objects(objects) == objects
        writer = Writer(lambda: backend.append("key/a", b"entry", requires=[*objects]))
        writer.start()
        writer.finish()
        assert writer.error is None
        assert seqs(backend, "key/a") == [1]
        backend.delete_objects(objects)
        assert list(backend.list_objects()) == []
