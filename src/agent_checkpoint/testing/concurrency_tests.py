"""Conformance tests for concurrency: any thread of any process may call any method at any time.

Also tests that no commit happens while `delete_objects` consumes its ids. Each test runs in threads
of one process, and in several processes if the medium can be opened by them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError, MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import named, object_id
from agent_checkpoint.testing.crowd import LONGEST_WAIT, Crowd, CrowdHooks
from agent_checkpoint.testing.stream_tests import seqs

EACH = 12


def append_each(backend: Backend, writer: int) -> list[Entry]:
    """Append entries to one stream; return the acknowledged ones. Each has an object like it."""
    contents = [b"%d of writer %d" % (number, writer) for number in range(EACH)]
    return [Entry(backend.append("key/a", one, objects=named(one)), one) for one in contents]


def all_acknowledged(told: list[list[Entry]]) -> list[Entry]:
    """Return the entries that all writers were told, in order. There must be no gap."""
    acknowledged = sorted(entry for entries in told for entry in entries)
    assert [entry.seq for entry in acknowledged] == list(range(1, EACH * len(told) + 1))
    return acknowledged


class ConcurrencyTests(CrowdHooks):
    """Concurrent calls lose no entries or objects and assign each number once."""

    def test_appending_to_one_stream(self, backend: Backend, crowd: Crowd) -> None:
        """Every acknowledged append is stored under the returned number, without gaps."""
        jobs = [partial(append_each, writer=number) for number in range(crowd.size)]
        acknowledged = all_acknowledged(crowd.at_once(*jobs))
        assert backend.read("key/a") == acknowledged
        objects = named(*(entry.data for entry in acknowledged))
        assert backend.get_objects(objects) == objects

    def test_numbers_rise_for_each_writer(self, crowd: Crowd) -> None:
        """An append that began after another was acknowledged has the higher number."""

        def writer(backend: Backend) -> list[int]:
            return [backend.append("key/a", b"entry") for _ in range(8)]

        for told in crowd.at_once(*(writer,) * crowd.size):
            assert told == sorted(told)

    def test_beginning_a_stream_together(self, backend: Backend, crowd: Crowd) -> None:
        """Concurrent first appends to a stream create one stream."""
        # Long names, which a medium may have to shorten, may be created in another way.
        streams = [f"key/{'Long' * (turn % 2) * 60}{turn}" for turn in range(20)]
        turn = crowd.barrier(crowd.size)

        def writer(backend: Backend) -> list[int]:
            told = []
            for stream in streams:
                turn.wait(LONGEST_WAIT)
                told.append(backend.append(stream, b"entry", objects=named(stream.encode())))
            return told

        told = crowd.at_once(*(writer,) * crowd.size)
        numbers = list(range(1, crowd.size + 1))
        for stream, of_stream in zip(streams, zip(*told)):
            assert sorted(of_stream) == numbers
            assert seqs(backend, stream) == numbers

    def test_appending_to_streams_of_their_own(self, backend: Backend, crowd: Crowd) -> None:
        """Appends to different streams do not affect each other."""
        each = 8

        def writer(backend: Backend, stream: str) -> list[int]:
            return [backend.append(stream, stream.encode()) for _ in range(each)]

        streams = [f"key/{number}" for number in range(crowd.size)]
        told = crowd.at_once(*(partial(writer, stream=stream) for stream in streams))
        assert told == [list(range(1, each + 1))] * crowd.size
        assert sorted(backend.streams("key/")) == streams
        for stream in streams:
            assert {entry.data for entry in backend.read(stream)} == {stream.encode()}

    def test_one_winner_after_the_same_entry(self, backend: Backend, crowd: Crowd) -> None:
        """Of several appends with the same `after=` exactly one succeeds."""
        turn = crowd.barrier(crowd.size)

        def attempt(backend: Backend) -> list[int]:
            won = []
            for newest in range(10):
                turn.wait(LONGEST_WAIT)
                with suppress(ConflictError):
                    won.append(backend.append("key/a", b"entry", after=newest))
                turn.wait(LONGEST_WAIT)
            return won

        told = crowd.at_once(*(attempt,) * crowd.size)
        assert sorted(seq for won in told for seq in won) == list(range(1, 11))
        assert seqs(backend, "key/a") == list(range(1, 11))

    def test_reading_while_others_append(self, crowd: Crowd) -> None:
        """Each read returns the entries of the previous read, followed by new ones."""
        entry = b"entry" * 2000

        def writer(backend: Backend) -> int:
            return sum(1 for _ in range(15) if backend.append("key/a", entry))

        def reader(backend: Backend) -> int:
            known: list[Entry] = []
            ends = time.monotonic() + LONGEST_WAIT
            while len(known) < 60 and time.monotonic() < ends:
                found = backend.read("key/a")
                assert found[: len(known)] == known
                assert [one.seq for one in found] == list(range(1, len(found) + 1))
                assert all(one.data == entry for one in found)
                newest = backend.read("key/a", limit=1, newest_first=True)
                assert not found or newest[0].seq >= found[-1].seq
                known = found
            return len(known)

        told = crowd.at_once(writer, writer, writer, writer, reader, reader)
        assert told == [15, 15, 15, 15, 60, 60]

    def test_removing_while_others_append(self, backend: Backend, crowd: Crowd) -> None:
        """No number is reused, and exactly the removed entries are missing."""
        each = 10

        def writer(backend: Backend) -> list[tuple[int, bool]]:
            told = []
            for number in range(each):
                seq = backend.append("key/a", b"entry")
                if number % 2:
                    backend.remove("key/a", [seq])
                told.append((seq, not number % 2))
            return told

        told = [one for all_of_one in crowd.at_once(*(writer,) * 4) for one in all_of_one]
        numbers = [seq for seq, _ in told]
        assert len(set(numbers)) == len(numbers)
        assert seqs(backend, "key/a") == sorted(seq for seq, stays in told if stays)
        assert backend.append("key/a", b"next") > max(numbers)

    def test_putting_the_same_objects(self, backend: Backend, crowd: Crowd) -> None:
        """Concurrent puts of the same object store it once, and completely."""
        objects = named(*(b"object %d" % number * 500 for number in range(10)))

        def saver(backend: Backend) -> int:
            backend.put_objects(objects)
            return backend.append("key/a", b"entry", objects=objects, requires=list(objects))

        told = crowd.at_once(*(saver,) * crowd.size)
        assert sorted(told) == list(range(1, crowd.size + 1))
        assert backend.get_objects(objects) == objects
        assert sorted(info.id for info in backend.list_objects()) == sorted(objects)

    def test_deleting_objects_while_others_write(self, backend: Backend, crowd: Crowd) -> None:
        """Deleting unused objects does not affect objects that are being written."""
        unused = [named(b"unused %d" % number) for number in range(10)]
        for objects in unused:
            backend.put_objects(objects)

        def saver(backend: Backend) -> int:
            for number in range(10):
                backend.append("key/a", b"entry", objects=named(b"used %d" % number))
            return 10

        def sweeper(backend: Backend) -> int:
            for objects in unused:
                backend.delete_objects(objects)
            return 0

        assert crowd.at_once(saver, saver, sweeper) == [10, 10, 0]
        used = named(*(b"used %d" % number for number in range(10)))
        assert backend.get_objects(used) == used
        assert {info.id for info in backend.list_objects()} == set(used)
        assert seqs(backend, "key/a") == list(range(1, 21))


class DeletionTests(CrowdHooks):
    """The guarantee that gc relies on: no commit happens between its last mark and its sweep."""

    def test_no_append_commits_while_ids_are_taken(self, backend: Backend, crowd: Crowd) -> None:
        """An append is blocked until the deletion ends; then it fails if its object was deleted."""
        doomed = object_id(b"doomed")
        backend.put_objects(named(b"doomed", b"other"))
        writer = crowd.writer(lambda own: own.append("key/a", b"entry", requires=[doomed]))

        def ids() -> Iterator[str]:
            writer.start()
            assert writer.is_waiting
            assert backend.read("key/a") == []
            yield doomed
            assert writer.is_waiting
            assert backend.read("key/a") == []

        backend.delete_objects(ids())
        writer.finish()
        assert writer.error is MissingObjectsError
        assert backend.read("key/a") == []
        assert backend.get_objects(named(b"doomed", b"other")) == named(b"other")

    def test_no_put_commits_while_ids_are_taken(self, backend: Backend, crowd: Crowd) -> None:
        """A put is blocked until the deletion ends, and then stores the object again."""
        backend.put_objects(named(b"doomed"))
        writer = crowd.writer(lambda own: own.put_objects(named(b"doomed", b"new")))

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

    def test_ids_that_raise_delete_nothing(self, backend: Backend, crowd: Crowd) -> None:
        """If the generator raises, no object is deleted, and writers are unblocked."""
        objects = named(b"one", b"two", bytes(200_000))
        backend.put_objects(objects)

        def ids() -> Iterator[str]:
            yield from objects
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            backend.delete_objects(ids())
        assert backend.get_objects(objects) == objects
        writer = crowd.writer(lambda own: own.append("key/a", b"entry", requires=[*objects]))
        writer.start()
        writer.finish()
        assert writer.error is None
        assert seqs(backend, "key/a") == [1]
        backend.delete_objects(objects)
        assert list(backend.list_objects()) == []
