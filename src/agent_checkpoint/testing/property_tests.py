"""Conformance tests for `Backend.properties` and the methods that it announces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint.backends.base import Backend, BackendProperties
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import Entry
from agent_checkpoint.testing.backend_hooks import BackendHooks, named


class PropertyTests(BackendHooks):
    """The properties are of the right types, and the optional methods do no harm."""

    def test_properties_are_of_the_declared_types(self, backend: Backend) -> None:
        """Paths, texts and truth values; the same before and after a write."""
        properties = backend.properties
        assert isinstance(properties, BackendProperties)
        for path in (properties.path, properties.marker):
            assert path is None or isinstance(path, Path)
        for text in (properties.url, properties.durability, properties.compression):
            assert text is None or isinstance(text, str)
        for flag in ("readable", "shared", "is_local", "can_scrub", "can_repack", "can_group"):
            assert isinstance(getattr(properties, flag), bool), flag
        backend.append("key/a", b"entry")
        assert backend.properties == properties

    def test_the_marker_exists_after_the_first_append(self, backend: Backend) -> None:
        """So that a command can tell an empty store from one that does not exist."""
        backend.append("key/a", b"entry")
        marker = backend.properties.marker
        assert marker is None or marker.exists()

    def test_scrubbing_keeps_all_that_is_stored(self, backend: Backend) -> None:
        """It erases deleted bytes, and those alone."""
        backend.scrub()
        backend.append("key/a", b"1", objects=named(b"kept", b"deleted", bytes(200_000)))
        backend.append("key/a", b"2")
        backend.remove("key/a", [1])
        backend.delete_objects(named(b"deleted"))
        backend.scrub()
        kept = named(b"kept", bytes(200_000))
        assert backend.read("key/a") == [Entry(2, b"2")]
        assert backend.get_objects([*kept, *named(b"deleted")]) == kept
        assert backend.append("key/a", b"3", requires=list(kept)) == 3

    def test_an_open_store_is_not_replaced(self, backend: Backend) -> None:
        """Neither before nor after the first write."""
        assert not backend.is_replaced()
        backend.append("key/a", b"entry")
        assert not backend.is_replaced()

    def test_changes_since_a_position_miss_nothing(self, backend: Backend) -> None:
        """Also within `delete_objects`, where gc calls it; without a position they are all."""

        def changed(position: object) -> tuple[set[str], set[str], object]:
            streams, objects, reached = backend.changes(position)
            return set(streams), {info.id for info in objects}, reached

        backend.append("key/a", b"1", objects=named(b"one"))
        backend.append("key/b", b"1")
        streams, objects, position = changed(None)
        assert (streams, objects) == ({"key/a", "key/b"}, set(named(b"one")))
        backend.append("key/a", b"2", objects=named(b"two"))
        backend.put_objects(named(b"three", b"one"))
        backend.append("key/c", b"1")
        for expected in ("key/a", "key/c"):
            assert expected in changed(position)[0]
        assert set(named(b"two", b"three")) <= changed(position)[1]
        late = changed(position)[2]
        backend.append("key/d", b"1", objects=named(b"four"))

        def ids() -> Iterator[str]:
            streams, objects, last = changed(late)
            assert "key/d" in streams
            assert set(named(b"four")) <= objects
            changed(last)
            yield from named(b"four")

        backend.delete_objects(ids())
        backend.put_objects(named(b"four"))
        assert set(named(b"four")) <= changed(late)[1]

    def test_objects_are_found_by_their_first_byte_and_replaced(self, backend: Backend) -> None:
        """If the backend can repack; otherwise both methods raise."""
        objects = named(b"zebra", b"ape", b"zz" * 100_000)
        backend.put_objects(objects)
        found = named(b"zebra", b"zz" * 100_000)
        if not backend.properties.can_repack:
            with pytest.raises(StorageError):
                backend.find_objects(b"z")
            with pytest.raises(StorageError):
                backend.replace_objects(found)
            return
        assert set(backend.find_objects(b"z").ids) == set(found)
        deleted = named(b"deleted")
        replaced = dict.fromkeys(found, b"ape too")
        backend.replace_objects({**replaced, **deleted})
        assert backend.get_objects([*objects, *deleted]) == {**objects, **replaced}
        assert backend.find_objects(b"z").ids == []
