"""Conformance tests for streams: `append`, the commit point, `remove`, `read` and `streams`.

Covers numbers, conflicts, required objects, ranges of a stream, and the list of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from itertools import product

import pytest

from agent_checkpoint.backends.base import Append, Backend
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    MissingObjectsError,
    NotFoundError,
)
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id

BIG_ENTRY = bytes(range(256)) * 4096


def fill(backend: Backend, stream: str, count: int) -> None:
    """Append the entries b"1", b"2", … to a stream."""
    for number in range(1, count + 1):
        backend.append(stream, b"%d" % number)


def seqs(backend: Backend, stream: str) -> list[int]:
    """Return the numbers of the existing entries."""
    return [entry.seq for entry in backend.read(stream)]


class AppendTests(BackendHooks):
    """Appending entries, the only commit point, and removing them."""

    def test_numbers_count_up_from_1(self, backend: Backend) -> None:
        """The number that `append` returns is the one under which the entry is read."""
        numbers = [backend.append("key/a", b"entry %d" % number) for number in (1, 2, 3)]
        assert numbers == [1, 2, 3]
        assert backend.read("key/a") == [
            Entry(1, b"entry 1"),
            Entry(2, b"entry 2"),
            Entry(3, b"entry 3"),
        ]

    def test_each_stream_has_its_own_numbers(self, backend: Backend) -> None:
        """Streams with the same name but different prefixes are separate streams."""
        for stream in ("key/a", "key/b", "fx/a", "meta/a"):
            assert backend.append(stream, stream.encode()) == 1
        for stream in ("key/a", "key/b", "fx/a", "meta/a"):
            assert backend.read(stream) == [Entry(1, stream.encode())]

    @pytest.mark.parametrize(
        "entry",
        [b"", b"\0", b"\n", b"\xff\xfe", b'{"json": 1}', bytes(range(256)), BIG_ENTRY],
        ids=lambda entry: repr(entry[:8]),
    )
    def test_an_entry_is_any_bytes(self, backend: Backend, entry: bytes) -> None:
        """Entries are returned, and stored on the medium, byte for byte."""
        assert backend.append("key/a", entry) == 1
        assert backend.read("key/a") == [Entry(1, entry)]
        assert self.raw_entry(backend, "key/a", 1) == entry

    def test_equal_entries_are_still_two(self, backend: Backend) -> None:
        """Appending is not idempotent: every acknowledged append is an entry."""
        assert [backend.append("key/a", b"same") for _ in range(2)] == [1, 2]
        assert backend.read("key/a") == [Entry(1, b"same"), Entry(2, b"same")]

    # -- after= ----------------------------------------------------------------------------------

    def test_after_0_wants_an_empty_stream(self, backend: Backend) -> None:
        """`after=0` creates a stream; a second append with `after=0` is a conflict."""
        assert backend.append("key/a", b"first", after=0) == 1
        with pytest.raises(ConflictError):
            backend.append("key/a", b"second", after=0)
        assert backend.read("key/a") == [Entry(1, b"first")]

    def test_after_the_newest_appends(self, backend: Backend) -> None:
        """The compare-and-swap succeeds if `after` is the newest number."""
        assert backend.append("key/a", b"1", after=0) == 1
        assert backend.append("key/a", b"2", after=1) == 2
        assert backend.append("key/a", b"3", after=2) == 3

    @pytest.mark.parametrize("after", [0, 1, 2, 4, 5, 1000])
    def test_after_anything_else_is_a_conflict(self, backend: Backend, after: int) -> None:
        """A conflict appends nothing and does not consume a number."""
        fill(backend, "key/a", 3)
        with pytest.raises(ConflictError):
            backend.append("key/a", b"refused", after=after, objects=named(b"of the refused"))
        assert seqs(backend, "key/a") == [1, 2, 3]
        assert self.raw_entry(backend, "key/a", 4) is None
        assert backend.append("key/a", b"4", after=3) == 4

    def test_after_on_an_unknown_stream_is_a_conflict(self, backend: Backend) -> None:
        """A conflict does not create the stream."""
        with pytest.raises(ConflictError):
            backend.append("key/a", b"refused", after=1)
        assert list(backend.streams()) == []
        assert backend.append("key/a", b"first") == 1

    def test_after_means_the_newest_present_entry(self, backend: Backend) -> None:
        """If the newest entry was removed, `after` is the one before; its number is not reused."""
        fill(backend, "key/a", 3)
        backend.remove("key/a", [3])
        with pytest.raises(ConflictError):
            backend.append("key/a", b"refused", after=3)
        assert backend.append("key/a", b"4", after=2) == 4

    def test_after_0_when_all_entries_were_removed(self, backend: Backend) -> None:
        """A stream whose entries were all removed counts as empty; numbers continue."""
        fill(backend, "key/a", 3)
        backend.remove("key/a", [1, 2, 3])
        with pytest.raises(ConflictError):
            backend.append("key/a", b"refused", after=3)
        assert backend.append("key/a", b"4", after=0) == 4
        assert backend.read("key/a") == [Entry(4, b"4")]

    # -- objects= and requires= ------------------------------------------------------------------

    def test_objects_are_stored_with_the_entry(self, backend: Backend) -> None:
        """An append stores its objects durably."""
        objects = named(b"one", b"two", b"")
        assert backend.append("key/a", b"entry", objects=objects) == 1
        assert backend.get_objects(objects) == objects
        assert {name: self.raw_object(backend, name) for name in objects} == objects

    def test_objects_that_are_there_are_left_as_they_are(self, backend: Backend) -> None:
        """An existing object is not changed by an append, as with `put_objects`."""
        name = object_id(b"first")
        backend.put_objects({name: b"first"})
        assert backend.append("key/a", b"entry", objects={name: b"second"}) == 1
        assert backend.get_objects([name]) == {name: b"first"}

    @pytest.mark.parametrize("collect", [list, tuple, set, frozenset, dict.fromkeys])
    def test_required_objects_that_are_there(
        self, backend: Backend, collect: Callable[[Iterable[str]], Collection[str]]
    ) -> None:
        """`requires` accepts any collection of ids, including an empty one."""
        backend.put_objects(named(b"one", b"two"))
        ids = collect(named(b"one", b"two"))
        assert backend.append("key/a", b"entry", requires=ids) == 1
        assert backend.append("key/a", b"entry", requires=collect([])) == 2

    def test_missing_objects_are_named_and_nothing_is_appended(self, backend: Backend) -> None:
        """`MissingObjectsError.ids` contains exactly the missing ids."""
        backend.put_objects(named(b"here"))
        with pytest.raises(MissingObjectsError) as caught:
            backend.append("key/a", b"refused", requires=[*named(b"here", b"gone", b"too")])
        assert caught.value.ids == set(named(b"gone", b"too"))
        assert isinstance(caught.value, NotFoundError)
        assert backend.read("key/a") == []
        assert self.raw_entry(backend, "key/a", 1) is None
        assert list(backend.streams()) == []
        assert backend.append("key/a", b"entry", requires=[object_id(b"here")]) == 1

    def test_a_deleted_object_is_missing(self, backend: Backend) -> None:
        """What gc took away is not taken for granted by a later append."""
        backend.append("key/a", b"entry", objects=named(b"shared"))
        backend.delete_objects(named(b"shared"))
        with pytest.raises(MissingObjectsError) as caught:
            backend.append("key/a", b"refused", requires=[object_id(b"shared")])
        assert caught.value.ids == set(named(b"shared"))
        assert seqs(backend, "key/a") == [1]

    def test_a_malformed_required_id_is_missing(self, backend: Backend) -> None:
        """It names nothing that is stored."""
        with pytest.raises(MissingObjectsError) as caught:
            backend.append("key/a", b"refused", requires=["../objects"])
        assert caught.value.ids == {"../objects"}
        assert backend.read("key/a") == []

    def test_new_and_required_objects_go_together(self, backend: Backend) -> None:
        """Some are reused and some are new, in one append with a compare-and-swap."""
        backend.put_objects(named(b"old"))
        seq = backend.append(
            "key/a", b"entry", after=0, objects=named(b"new"), requires=[object_id(b"old")]
        )
        assert seq == 1
        assert backend.missing_objects(named(b"old", b"new")) == set()

    # -- remove ----------------------------------------------------------------------------------

    def test_each_of_several_entries_has_its_own_outcome(self, backend: Backend) -> None:
        """One that fails does not keep the others from being appended, in order."""
        absent, present = object_id(b"absent"), named(b"present")
        outcomes = backend.append_all(
            [
                Append("key/a", b"1"),
                Append("key/a", b"2", after=1),
                Append("key/a", b"conflict", after=7),
                Append("key/b", b"missing", objects=named(b"unused"), requires=[absent]),
                Append("not a stream", b"invalid"),
                Append("key/b", b"1", objects=present),
                Append("fx/c", b"1", requires=list(present)),
            ]
        )
        kinds = [item if isinstance(item, int) else type(item) for item in outcomes]
        failed = [ConflictError, MissingObjectsError, InvalidInputError]
        assert kinds == [1, 2, *failed, 1, 1]
        again = self.reopen(backend)
        with closing(again):
            assert again.read("key/a") == [Entry(1, b"1"), Entry(2, b"2")]
            assert again.read("key/b") == again.read("fx/c") == [Entry(1, b"1")]
            assert again.get_objects(present) == present

    def test_several_entries_may_be_none(self, backend: Backend) -> None:
        """Nothing is written."""
        assert backend.append_all([]) == []
        assert list(backend.streams()) == []

    def test_removed_entries_are_gone(self, backend: Backend) -> None:
        """From the middle, the others keep their numbers."""
        fill(backend, "key/a", 4)
        backend.remove("key/a", [2, 3])
        assert backend.read("key/a") == [Entry(1, b"1"), Entry(4, b"4")]
        assert self.raw_entry(backend, "key/a", 2) is None
        assert self.raw_entry(backend, "key/a", 4) == b"4"

    def test_removing_what_is_not_there_is_ignored(self, backend: Backend) -> None:
        """Unknown numbers and streams, repeated removals and empty lists are ignored."""
        fill(backend, "key/a", 2)
        backend.remove("key/a", [99, 0, -1, 2])
        backend.remove("key/a", [2])
        backend.remove("key/a", [])
        backend.remove("key/unknown", [1])
        assert backend.read("key/a") == [Entry(1, b"1")]
        assert list(backend.streams()) == ["key/a"]

    def test_numbers_to_remove_come_from_any_iterable(self, backend: Backend) -> None:
        """`remove` consumes a generator once, and accepts repeated numbers."""
        fill(backend, "key/a", 4)
        backend.remove("key/a", (number for number in (4, 2, 4)))
        assert seqs(backend, "key/a") == [1, 3]

    def test_removing_from_one_stream_leaves_the_others(self, backend: Backend) -> None:
        """Streams with similar names are not affected."""
        for stream in ("key/a", "key/ab", "key/a/b", "fx/a"):
            fill(backend, stream, 2)
        backend.remove("key/a", [1, 2])
        assert sorted(backend.streams()) == ["fx/a", "key/a/b", "key/ab"]
        assert seqs(backend, "key/ab") == [1, 2]

    @pytest.mark.parametrize("removed", [[3], [2, 3], [1, 2, 3], [1], [2]], ids=str)
    def test_a_number_is_never_used_again(self, backend: Backend, removed: list[int]) -> None:
        """A removed number is not reused, not even after reopening."""
        fill(backend, "key/a", 3)
        backend.remove("key/a", removed)
        assert backend.append("key/a", b"4") == 4
        backend.remove("key/a", [4])
        with closing(self.reopen(backend)) as again:
            assert again.append("key/a", b"5") == 5
            left = [number for number in (1, 2, 3) if number not in removed]
            assert seqs(again, "key/a") == [*left, 5]

    def test_a_number_is_never_used_again_when_entries_go_one_by_one(
        self, backend: Backend
    ) -> None:
        """Numbers are not reused if entries are removed one by one, from newest to oldest."""
        fill(backend, "key/a", 4)
        for number in (4, 3, 2, 1):
            backend.remove("key/a", [number])
        with closing(self.reopen(backend)) as again:
            assert again.append("key/a", b"5") == 5

    def test_a_number_is_never_used_again_over_many_rounds(self, backend: Backend) -> None:
        """Numbers keep increasing even if each new entry is removed."""
        for number in range(1, 8):
            assert backend.append("key/a", b"x") == number
            backend.remove("key/a", [number])
        assert backend.read("key/a") == []

    def test_objects_of_a_removed_entry_stay(self, backend: Backend) -> None:
        """Only `delete_objects` deletes objects: other entries may reference them."""
        backend.append("key/a", b"entry", objects=named(b"shared"))
        backend.remove("key/a", [1])
        assert backend.get_objects(named(b"shared")) == named(b"shared")

    # -- durability and closing ------------------------------------------------------------------

    def test_entries_are_there_after_reopening(self, backend: Backend) -> None:
        """Acknowledged appends, their objects and removals are durable."""
        fill(backend, "key/a", 3)
        backend.append("fx/b", b"effect", objects=named(b"object"))
        backend.remove("key/a", [2])
        with closing(self.reopen(backend)) as again:
            assert again.read("key/a") == [Entry(1, b"1"), Entry(3, b"3")]
            assert again.read("fx/b") == [Entry(1, b"effect")]
            assert again.get_objects(named(b"object")) == named(b"object")
            assert sorted(again.streams()) == ["fx/b", "key/a"]
            assert again.append("key/a", b"4", after=3) == 4

    def test_closing_twice_does_nothing(self, backend: Backend) -> None:
        """`close` may be called twice after a write."""
        backend.append("key/a", b"entry")
        backend.close()
        backend.close()

    def test_closing_a_new_backend_does_nothing(self, backend: Backend) -> None:
        """`close` may be called on a backend that was never used."""
        backend.close()
        backend.close()


class ReadTests(BackendHooks):
    """Reading ranges of entries, and listing streams by prefix."""

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_every_window(self, backend: Backend, newest_first: bool) -> None:
        """`after < seq < before`, at most `limit`, in either order, in all combinations."""
        fill(backend, "key/a", 6)
        backend.remove("key/a", [3])
        edges = (None, 0, 1, 3, 4, 6, 99)
        for before, after, limit in product(edges, edges, (None, 0, 1, 2, 99)):
            expected = [
                Entry(seq, b"%d" % seq)
                for seq in (1, 2, 4, 5, 6)
                if (before is None or seq < before) and (after is None or seq > after)
            ]
            if newest_first:
                expected.reverse()
            found = backend.read(
                "key/a", before=before, after=after, limit=limit, newest_first=newest_first
            )
            assert found == expected[:limit], f"before={before} after={after} limit={limit}"

    def test_the_head_alone(self, backend: Backend) -> None:
        """`limit=1, newest_first=True` returns the head."""
        fill(backend, "key/a", 12)
        assert backend.read("key/a", limit=1, newest_first=True) == [Entry(12, b"12")]

    def test_pages_from_the_newest_to_the_oldest(self, backend: Backend) -> None:
        """Paging with `before=` returns every entry once, in numerical order (9 before 10)."""
        fill(backend, "key/a", 25)
        found: list[int] = []
        before = None
        for _ in range(9):
            page = backend.read("key/a", before=before, limit=3, newest_first=True)
            found += [entry.seq for entry in page]
            before = found[-1]
        assert found == list(range(25, 0, -1))
        assert backend.read("key/a", before=before, limit=3, newest_first=True) == []

    def test_entries_come_as_records(self, backend: Backend) -> None:
        """`read` returns a list of `Entry`, each with an int and bytes."""
        backend.append("key/a", b"entry")
        found = backend.read("key/a")
        assert type(found) is list
        assert [(type(e), type(e.seq), type(e.data)) for e in found] == [(Entry, int, bytes)]

    def test_an_unknown_stream_is_empty(self, backend: Backend) -> None:
        """Reading an unknown stream returns nothing, for any range."""
        assert backend.read("key/a") == []
        backend.append("key/b", b"entry")
        assert backend.read("key/a") == []
        assert backend.read("key/a", before=5, after=1, limit=1, newest_first=True) == []

    def test_reading_brings_no_stream_into_being(self, backend: Backend) -> None:
        """Only an append creates a stream, not `read` or `remove`."""
        backend.read("key/a")
        backend.remove("key/a", [1])
        assert list(backend.streams()) == []
        assert backend.append("key/a", b"entry", after=0) == 1

    def test_a_list_that_was_read_stays_as_it_is(self, backend: Backend) -> None:
        """The returned list is a snapshot; changing it does not change the store."""
        fill(backend, "key/a", 2)
        found = backend.read("key/a")
        backend.append("key/a", b"3")
        assert len(found) == 2
        found.clear()
        assert seqs(backend, "key/a") == [1, 2, 3]

    def test_streams_with_entries_are_listed(self, backend: Backend) -> None:
        """`streams` yields each stream once, in any order."""
        assert list(backend.streams()) == []
        for stream in ("key/a", "fx/a", "meta/a", "key/a"):
            backend.append(stream, b"entry")
        assert sorted(backend.streams()) == ["fx/a", "key/a", "meta/a"]

    def test_streams_by_prefix(self, backend: Backend) -> None:
        """A prefix is a plain, case-sensitive string, not a pattern or a path."""
        names = ["key/a", "key/a/b", "key/ab", "key/A", "key/%", "key/_b", "key/[a]", "fx/a"]
        for name in names:
            backend.append(name, b"entry")
        prefixes = ["", "k", "key/", "key/a", "key/a/", "key/A", "key/%", "key/_", "key/[", "fx/"]
        for prefix in [*prefixes, "key/a/b", "key/a/bc", "*", "/", "K", "key/?", "key/\0"]:
            expected = sorted(name for name in names if name.startswith(prefix))
            assert sorted(backend.streams(prefix)) == expected, f"prefix {prefix!r}"

    def test_a_stream_without_entries_is_not_listed(self, backend: Backend) -> None:
        """A stream is listed only while it has entries."""
        fill(backend, "key/a", 2)
        fill(backend, "key/b", 1)
        backend.remove("key/a", [1, 2])
        assert list(backend.streams()) == ["key/b"]
        with closing(self.reopen(backend)) as again:
            assert list(again.streams()) == ["key/b"]
            again.append("key/a", b"3")
            assert sorted(again.streams()) == ["key/a", "key/b"]

    def test_streams_may_be_changed_while_they_are_listed(self, backend: Backend) -> None:
        """Streams that exist during the whole iteration are listed once."""
        for number in range(5):
            backend.append(f"key/{number}", b"entry")
        seen = []
        for stream in backend.streams():
            seen.append(stream)
            backend.append(stream, b"another")
            backend.remove(stream, [1])
        assert sorted(seen) == [f"key/{number}" for number in range(5)]
