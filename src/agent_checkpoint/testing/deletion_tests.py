"""Conformance tests for sweeping: no commit can happen while `delete_objects` consumes its ids.

Covers the generator passed to `delete_objects`. Other tests of deletion are in `object_tests.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.append_tests import seqs
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id

LONGEST_WAIT = 60.0
A_WHILE = 0.2  # seconds; a writer that is not blocked commits within this time


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
