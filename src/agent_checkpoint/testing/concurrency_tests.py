"""Conformance tests for thread safety: any thread may call any method at any time.

Covers threads of one process. Tests with several processes belong to each backend.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.append_tests import seqs
from agent_checkpoint.testing.backend_hooks import BackendHooks, named

T = TypeVar("T")

THREADS = 8
LONGEST_WAIT = 60.0


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


class ConcurrencyTests(BackendHooks):
    """Concurrent calls lose no entries or objects and assign each number once."""

    def test_threads_appending_to_one_stream(self, backend: Backend) -> None:
        """Every acknowledged append is stored under the returned number, without gaps."""
        each = 12

        def writer(thread: int) -> dict[int, bytes]:
            entries = [b"%d of thread %d" % (number, thread) for number in range(each)]
            return {backend.append("key/a", entry): entry for entry in entries}

        told = at_once(*(lambda thread=thread: writer(thread) for thread in range(THREADS)))
        acknowledged = {seq: entry for one in told for seq, entry in one.items()}
        assert sorted(acknowledged) == list(range(1, THREADS * each + 1))
        assert backend.read("key/a") == [
            Entry(seq, acknowledged[seq]) for seq in sorted(acknowledged)
        ]

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
