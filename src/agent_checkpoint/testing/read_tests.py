"""Conformance tests for `read` and `streams`: ranges of a stream, and the list of streams.

Appending is tested in `append_tests.py`.
"""

from __future__ import annotations

from contextlib import closing
from itertools import product

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.append_tests import fill, seqs
from agent_checkpoint.testing.backend_hooks import BackendHooks


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
