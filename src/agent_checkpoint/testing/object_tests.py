"""Conformance tests for objects: put, get, missing, list, delete.

Covers the object half of the backend contract, without streams.
"""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import ObjectInfo
from agent_checkpoint.testing.backend_hooks import BackendHooks, named, object_id

A_DAY = 86_400
BIG = b"\x00\xff big " * 700_000

BAD_IDS = {
    "empty": "",
    "short": "ab",
    "one digit less": "a" * 63,
    "one digit more": "a" * 65,
    "capitals": "A" * 64,
    "not hex": "g" * 64,
    "a line break": "a" * 63 + "\n",
    "a line break more": "a" * 64 + "\n",
    "foreign digits": "\u0663" * 64,
    "a path": "../" * 21 + "a",
    "an absolute path": "/" + "a" * 63,
    "a NUL": "a" * 63 + "\0",
    "a lone surrogate": "a" * 63 + "\ud800",
}


class ObjectTests(BackendHooks):
    """Objects: immutable bytes with ids chosen by the caller."""

    @pytest.mark.parametrize(
        "data", [b"text", b"", bytes(range(256)), b"\0", b"\r\n", BIG], ids=lambda data: len(data)
    )
    def test_an_object_comes_back_as_it_was_put(self, backend: Backend, data: bytes) -> None:
        """An object may be any bytes, from empty to several megabytes."""
        backend.put_objects(named(data))
        assert backend.get_objects([object_id(data)]) == named(data)
        assert self.raw_object(backend, object_id(data)) == data

    def test_many_objects_are_put_and_got_at_once(self, backend: Backend) -> None:
        """One call may store or return hundreds of objects."""
        objects = named(*(b"object %d" % number for number in range(300)))
        backend.put_objects(objects)
        assert backend.get_objects(objects) == objects
        assert backend.missing_objects(objects) == set()

    def test_putting_nothing_is_allowed(self, backend: Backend) -> None:
        """An empty mapping stores nothing."""
        backend.put_objects({})
        assert list(backend.list_objects()) == []

    def test_an_object_that_is_there_is_left_as_it_is(self, backend: Backend) -> None:
        """A later put with the same id does not change the object."""
        name = object_id(b"first")
        backend.put_objects({name: b"first"})
        backend.put_objects({name: b"first"})
        backend.put_objects({name: b"second"})
        assert backend.get_objects([name]) == {name: b"first"}
        assert self.raw_object(backend, name) == b"first"
        assert [info.id for info in backend.list_objects()] == [name]

    def test_objects_that_are_not_stored_are_left_out(self, backend: Backend) -> None:
        """`get_objects` returns the existing objects; `missing_objects` returns the other ids."""
        backend.put_objects(named(b"here"))
        here, gone = object_id(b"here"), object_id(b"gone")
        assert backend.get_objects([gone, here]) == {here: b"here"}
        assert backend.missing_objects([gone, here]) == {gone}
        assert backend.get_objects([gone]) == {}
        assert backend.get_objects([]) == {}
        assert backend.missing_objects([]) == set()

    def test_many_ids_are_looked_up_whether_all_or_some_or_none_are_stored(
        self, backend: Backend
    ) -> None:
        """`missing_objects` returns the others of any number of ids, and invalid ones."""
        stored = named(*[b"here %d" % number for number in range(600)])
        others = [object_id(b"gone %d" % number) for number in range(600)]
        backend.put_objects(stored)
        for here, gone in ((600, 0), (0, 600), (599, 1), (1, 599), (300, 300)):
            ids = [*list(stored)[:here], *others[:gone]]
            assert backend.missing_objects(ids) == set(others[:gone])
            assert backend.missing_objects([*ids, "a" * 63]) == {*others[:gone], "a" * 63}

    def test_ids_may_come_from_any_iterable_and_twice(self, backend: Backend) -> None:
        """All methods consume a generator once, and accept repeated ids."""
        backend.put_objects(named(b"here"))
        here, gone = object_id(b"here"), object_id(b"gone")
        assert backend.get_objects(name for name in (here, gone, here)) == {here: b"here"}
        assert backend.missing_objects(name for name in (here, gone, gone)) == {gone}
        backend.delete_objects(name for name in (here, gone, here))
        assert backend.get_objects([here]) == {}

    def test_a_new_backend_is_empty(self, backend: Backend) -> None:
        """Reading and deleting before the first write is not an error."""
        name = object_id(b"x")
        assert list(backend.list_objects()) == []
        assert backend.get_objects([name]) == {}
        assert backend.missing_objects([name]) == {name}
        backend.delete_objects([name])
        assert self.raw_object(backend, name) is None

    def test_objects_are_listed_with_size_and_time(self, backend: Backend) -> None:
        """`list_objects` yields each object once, with its id, size and time in seconds."""
        objects = named(b"", b"1", b"twenty-two bytes of it")
        backend.put_objects(objects)
        infos = list(backend.list_objects())
        assert all(isinstance(info, ObjectInfo) for info in infos)
        assert len(infos) == len(objects)
        assert {info.id: info.size for info in infos} == {
            name: len(data) for name, data in objects.items()
        }
        # Seconds since 1970, not milliseconds, and not the time since the machine started.
        assert all(abs(info.ts - time.time()) < A_DAY for info in infos)

    def test_a_deleted_object_is_gone(self, backend: Backend) -> None:
        """No method returns a deleted object, and the medium does not contain it."""
        backend.put_objects(named(b"keep", b"drop"))
        keep, drop = object_id(b"keep"), object_id(b"drop")
        backend.delete_objects([drop])
        assert backend.get_objects([keep, drop]) == {keep: b"keep"}
        assert backend.missing_objects([keep, drop]) == {drop}
        assert [info.id for info in backend.list_objects()] == [keep]
        assert self.raw_object(backend, drop) is None

    def test_deleting_what_is_not_stored_is_ignored(self, backend: Backend) -> None:
        """Unknown ids are ignored; known ids in the same call are deleted."""
        backend.put_objects(named(b"drop"))
        backend.delete_objects([object_id(b"never"), object_id(b"drop")])
        backend.delete_objects([object_id(b"drop")])
        backend.delete_objects([])
        assert list(backend.list_objects()) == []

    def test_a_deleted_object_can_be_put_again(self, backend: Backend) -> None:
        """The id of a deleted object can be used again."""
        name = object_id(b"one")
        backend.put_objects({name: b"one"})
        backend.delete_objects([name])
        backend.put_objects({name: b"two"})
        assert backend.get_objects([name]) == {name: b"two"}

    def test_objects_may_be_deleted_while_they_are_listed(self, backend: Backend) -> None:
        """Each object is listed once, even if objects are deleted during the iteration."""
        objects = named(*(b"object %d" % number for number in range(20)))
        backend.put_objects(objects)
        seen = []
        for info in backend.list_objects():
            seen.append(info.id)
            backend.delete_objects([info.id])
        assert sorted(seen) == sorted(objects)
        assert list(backend.list_objects()) == []

    @pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
    def test_a_malformed_id_is_refused_where_it_would_be_written(
        self, backend: Backend, bad: str
    ) -> None:
        """An id must be exactly 64 lower-case hex digits."""
        with pytest.raises(InvalidInputError):
            backend.put_objects({bad: b"x"})
        with pytest.raises(InvalidInputError):
            backend.append("key/a", b"entry", objects={bad: b"x"})
        assert list(backend.list_objects()) == []
        assert backend.read("key/a") == []

    @pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
    def test_a_malformed_id_is_nowhere_to_be_found(self, backend: Backend, bad: str) -> None:
        """Reading or deleting a malformed id has no effect and is not an error."""
        backend.put_objects(named(b"other"))
        assert backend.get_objects([bad, object_id(b"other")]) == named(b"other")
        assert backend.missing_objects([bad, object_id(b"other")]) == {bad}
        backend.delete_objects([bad])
        assert backend.get_objects([object_id(b"other")]) == named(b"other")

    def test_objects_are_there_after_reopening(self, backend: Backend) -> None:
        """Acknowledged puts and deletions are durable."""
        backend.put_objects(named(b"one", b"two", b"", BIG))
        backend.delete_objects([object_id(b"two")])
        with closing(self.reopen(backend)) as again:
            left = named(b"one", b"", BIG)
            assert again.get_objects([*left, object_id(b"two")]) == left
            assert {info.id for info in again.list_objects()} == set(left)
