"""Limits on the room that a store takes: they stop saving, never reading or deleting."""

import hashlib
import os

import pytest

from agent_checkpoint import CheckpointManager, FileBackend, KeepLatest, StorageError
from agent_checkpoint.backends.os_support import space_limits as limits_module
from agent_checkpoint.backends.os_support.space_limits import SpaceLimits
from agent_checkpoint.backends.sqlite import SQLiteBackend

MANY = 1 << 60  # more bytes than any disk has


def named(*contents):
    return {hashlib.sha256(data).hexdigest(): data for data in contents}


def size_of(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.fixture(params=[FileBackend, SQLiteBackend])
def kind(request):
    return request.param


def test_a_disk_with_too_little_room_is_not_written_to(tmp_path, kind):
    filled = kind(tmp_path / "store")
    filled.append("key/a", b"one", objects=named(b"object"))
    filled.append("key/a", b"two")
    before = size_of(tmp_path)
    backend = kind(tmp_path / "store", min_free=MANY)
    for write in (
        lambda: backend.append("key/a", b"three"),
        lambda: backend.put_objects(named(b"other")),
    ):
        with pytest.raises(StorageError) as caught:
            write()
        text = str(caught.value)
        assert str(tmp_path / "store") in text
        assert "bytes free" in text
        assert f"min_free={MANY:,}" in text
        assert "Run prune and gc, or free some space" in text
    assert size_of(tmp_path) == before
    # Reading and deleting go through.
    assert len(backend.read("key/a")) == 2
    assert backend.get_objects(named(b"object")) == named(b"object")
    backend.remove("key/a", [2])
    backend.delete_objects(named(b"object"))
    assert [entry.seq for entry in backend.read("key/a")] == [1]
    assert list(backend.list_objects()) == []
    filled.close()
    backend.close()


def test_a_store_that_is_not_there_yet_is_limited_by_its_parent(tmp_path, kind):
    backend = kind(tmp_path / "new" / "store", min_free=MANY)
    with pytest.raises(StorageError, match="bytes free"):
        backend.append("key/a", b"one")
    assert list(tmp_path.iterdir()) == []


def test_the_free_bytes_are_those_of_the_file_system(tmp_path, monkeypatch):
    limits = SpaceLimits(tmp_path, min_free=100, max_bytes=None)
    monkeypatch.setattr(limits_module, "disk_space", lambda path: (110, 10**6))
    limits.check({}, b"x" * 10)
    with pytest.raises(StorageError, match="has 110 bytes free, and 11 more would leave less"):
        limits.check({"id": b"123456"}, b"12345")
    SpaceLimits(tmp_path, min_free=0, max_bytes=None).check({}, b"x" * 1000)


def test_a_store_does_not_grow_beyond_its_size(tmp_path, kind):
    most = 8_000_000
    backend = kind(tmp_path / "store", max_bytes=most)
    stored = 0
    with pytest.raises(StorageError) as caught:
        for number in range(1000):
            backend.append("key/a", b"%d" % number + os.urandom(50_000))
            stored += 1
    assert stored > 50
    assert f"max_bytes={most:,}" in str(caught.value)
    assert "The file system has" in str(caught.value)
    assert "Run prune and gc" in str(caught.value)
    assert len(backend.read("key/a")) == stored
    # The advice helps, in the same process and in a new one.
    backend.remove("key/a", range(1, stored))
    assert backend.append("key/a", b"again") == stored + 1
    other = kind(tmp_path / "store", max_bytes=most)
    assert other.append("key/a", b"and again") == stored + 2
    backend.close()
    other.close()


def test_what_other_processes_write_is_found_in_time(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(limits_module, "_MEASURE_EVERY", 10)
    backend = kind(tmp_path / "store", max_bytes=5_000_000)
    backend.append("key/a", b"first")
    other = kind(tmp_path / "store")
    for _ in range(10):
        other.put_objects(named(os.urandom(600_000)))
    with pytest.raises(StorageError, match="max_bytes"):
        for _ in range(10):
            backend.append("key/a", b"next")
    backend.close()
    other.close()


def test_what_others_delete_is_found_before_a_save_is_refused(tmp_path, kind):
    backend = kind(tmp_path / "store", max_bytes=4_000_000)
    objects = named(os.urandom(1_500_000))
    backend.put_objects(objects)
    other = kind(tmp_path / "store")
    other.delete_objects(objects)
    backend.put_objects(named(os.urandom(1_500_000)))
    backend.close()
    other.close()


def test_the_store_is_not_measured_at_every_write(tmp_path, monkeypatch):
    measured = []
    usual = limits_module.directory_size
    monkeypatch.setattr(
        limits_module,
        "directory_size",
        lambda *where, **options: measured.append(where) or usual(*where, **options),
    )
    limits = SpaceLimits(tmp_path, min_free=0, max_bytes=1_000_000)
    for _ in range(600):
        limits.check({}, b"x")
    assert 1 < len(measured) < 5


def test_the_reserve_of_a_small_store_does_not_count(tmp_path):
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store", max_bytes=1_000_000)
    manager.save("a", {"x": 1})
    assert (tmp_path / "store" / ".reserve").stat().st_size > 1_000_000
    manager.save("a", {"x": 2})


def test_limits_change_nothing_else(tmp_path):
    file = CheckpointManager(backend="file", path=tmp_path / "file", max_bytes=MANY)
    sqlite = CheckpointManager(backend="sqlite", path=tmp_path / "sqlite", max_bytes=MANY)
    assert isinstance(file.store.backend, FileBackend)
    assert file.store.backend.readable
    assert file.store.backend.path == tmp_path / "file"
    assert not file.store.backend.properties.can_scrub
    assert sqlite.store.backend.properties.can_scrub
    for manager in (file, sqlite):
        for number in range(3):
            manager.save("a", {"n": number})
        manager.prune("a", KeepLatest(1))
        assert manager.state_dict("a") == {"n": 2}
        manager.close()
