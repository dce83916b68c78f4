"""The chapter on sweeping: objects are chosen and deleted while nobody can commit.

Owns what the contract says about the ids that `delete_objects` takes; the rest of deleting is in
the chapter on objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.append_tests import seqs
from agent_checkpoint.testing.hooks import BackendHooks, named, object_id

LONGEST_WAIT = 60.0
A_WHILE = 0.2  # seconds in which a writer that nothing stops would have committed


class Writer:
    """One call on a thread of its own, and how it ended."""

    def __init__(self, write: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._write = write
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Let it begin, and give it the time that it would need."""
        self._thread.start()
        assert self._started.wait(LONGEST_WAIT)
        self._thread.join(A_WHILE)

    @property
    def is_waiting(self) -> bool:
        """Whether the call has not come back."""
        return self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the end."""
        self._thread.join(LONGEST_WAIT)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self._started.set()
        try:
            self._write()
        except Exception as error:
            self.error = error


class DeletionTests(BackendHooks):
    """What gc stands on: what it looked at last is what is there when it deletes."""

    def test_no_append_commits_while_ids_are_taken(self, backend: Backend) -> None:
        """From the first id to the end of the deletion: who needs a doomed object is told so."""
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
        """A doomed object that is put meanwhile is put after the deletion, and stays."""
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
        """So that gc can look again at what was saved since it looked first."""
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
                # Nothing goes before all ids are taken.
                yield object_id(b"doomed")

        backend.delete_objects(ids())
        assert backend.missing_objects(named(b"used", b"doomed")) == set(named(b"doomed"))

    def test_ids_that_raise_delete_nothing(self, backend: Backend) -> None:
        """Not even those that came before; and everybody can write again."""
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
