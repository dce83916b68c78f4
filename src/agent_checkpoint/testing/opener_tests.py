"""Conformance tests for two openers: two instances of a backend on the same data, both in use.

What one instance acknowledged, the other one sees and keeps. So an instance must not answer from a
copy of the data that it read earlier, nor write such a copy back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError, MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id
from agent_checkpoint.testing.concurrency_tests import all_acknowledged, append_each
from agent_checkpoint.testing.crowd import Crowd, Writer
from agent_checkpoint.testing.stream_tests import fill, seqs


class OpenerTests(BackendHooks):
    """Two instances that take turns, or write at the same time, lose nothing."""

    @pytest.fixture
    def openers(self, backend: Backend) -> Iterator[tuple[Backend, Backend]]:
        """Two instances on the data of a backend, which itself is not used any more."""
        with ExitStack() as stack:
            first = stack.enter_context(closing(self.reopen(backend)))
            yield first, stack.enter_context(closing(self.reopen(backend)))

    def test_openers_append_in_turns(
        self, backend: Backend, openers: tuple[Backend, Backend]
    ) -> None:
        """Each one sees the entries of the other at once; a third instance sees all of them."""
        expected: list[Entry] = []
        for number in range(1, 9):
            writer, reader = openers[number % 2], openers[1 - number % 2]
            entry = Entry(number, b"entry %d" % number)
            assert writer.append("key/a", entry.data, after=number - 1) == number
            expected.append(entry)
            assert reader.read("key/a") == expected
            assert reader.read("key/a", limit=1, newest_first=True) == [entry]
        with closing(self.reopen(backend)) as third:
            assert third.read("key/a") == expected
            assert [self.raw_entry(third, "key/a", item.seq) for item in expected] == [
                item.data for item in expected
            ]

    def test_a_stale_opener_gets_a_conflict(self, openers: tuple[Backend, Backend]) -> None:
        """`after` is compared with the newest entry of the store, not of the instance."""
        one, other = openers
        fill(one, "key/a", 2)
        assert seqs(other, "key/a") == [1, 2]
        one.append("key/a", b"3")
        with pytest.raises(ConflictError):
            other.append("key/a", b"stale", after=2)
        assert other.append("key/a", b"4", after=3) == 4
        assert seqs(one, "key/a") == [1, 2, 3, 4]

    def test_openers_write_different_streams(self, openers: tuple[Backend, Backend]) -> None:
        """A write of one instance leaves the streams and objects of the other."""
        one, other = openers
        for number in (1, 2, 3):
            one.append("key/one", b"one", objects=named(b"one %d" % number))
            other.append("key/other", b"other", objects=named(b"other %d" % number))
        stored = named(*(b"%s %d" % (who, n) for who in (b"one", b"other") for n in (1, 2, 3)))
        for backend in openers:
            assert sorted(backend.streams()) == ["key/one", "key/other"]
            assert backend.read("key/one") == [Entry(n, b"one") for n in (1, 2, 3)]
            assert backend.read("key/other") == [Entry(n, b"other") for n in (1, 2, 3)]
            assert {info.id for info in backend.list_objects()} == set(stored)
            assert backend.get_objects(stored) == stored

    def test_objects_of_one_opener_are_those_of_the_other(
        self, openers: tuple[Backend, Backend]
    ) -> None:
        """Put, required and deleted by either of them."""
        one, other = openers
        objects = named(b"shared", bytes(200_000))
        assert other.missing_objects(objects) == set(objects)
        one.put_objects(objects)
        for backend in openers:
            assert backend.missing_objects(objects) == set()
            assert backend.get_objects(objects) == objects
        assert other.append("key/a", b"entry", requires=list(objects)) == 1
        other.delete_objects(objects)
        # Not by `get_objects`: content never changes, so an instance may cache it.
        assert one.missing_objects(objects) == set(objects)
        with pytest.raises(MissingObjectsError):
            one.append("key/a", b"refused", requires=list(objects))
        one.put_objects(objects)
        assert other.get_objects(objects) == objects

    def test_a_number_removed_by_one_opener_is_not_reused_by_the_other(
        self, openers: tuple[Backend, Backend]
    ) -> None:
        """Removed entries are gone for both, their numbers too."""
        one, other = openers
        fill(one, "key/a", 3)
        assert other.append("key/a", b"4") == 4
        one.remove("key/a", [3, 4])
        assert seqs(other, "key/a") == [1, 2]
        assert other.append("key/a", b"5", after=2) == 5
        other.remove("key/a", [1, 2, 5])
        assert list(one.streams()) == []
        assert one.append("key/a", b"6", after=0) == 6

    def test_openers_append_at_the_same_time(self, openers: tuple[Backend, Backend]) -> None:
        """Every acknowledged append has its own number, and both instances read all of them."""
        jobs = [
            lambda _, opener=opener, number=number: append_each(opener, number)
            for number, opener in enumerate((*openers, *openers))
        ]
        acknowledged = all_acknowledged(Crowd(openers[0]).at_once(*jobs))
        objects = named(*(entry.data for entry in acknowledged))
        for backend in openers:
            assert backend.read("key/a") == acknowledged
            assert backend.get_objects(objects) == objects

    def test_no_append_of_one_opener_commits_while_the_other_takes_ids(
        self, openers: tuple[Backend, Backend]
    ) -> None:
        """The exclusive part of `delete_objects` holds for all instances, not for one."""
        one, other = openers
        doomed = object_id(b"doomed")
        one.put_objects(named(b"doomed"))
        writer = Writer(lambda: other.append("key/a", b"entry", requires=[doomed]))

        def ids() -> Iterator[str]:
            writer.start()
            assert writer.is_waiting
            yield doomed

        one.delete_objects(ids())
        writer.finish()
        assert writer.error is MissingObjectsError
        assert one.read("key/a") == other.read("key/a") == []
