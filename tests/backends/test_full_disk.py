"""F2: on a disk that is really full, reading and deleting work, and saving works afterwards."""

import errno
import hashlib
import os
from contextlib import closing

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    FileBackend,
    KeepLatest,
    StorageError,
)
from agent_checkpoint.backends import file_sequence
from agent_checkpoint.backends.os_support.reserve import SIZE, Reserve, size_at_rest
from agent_checkpoint.backends.sqlite import SQLiteBackend
from tests.backends.full_disks import KINDS, fill, small_disk

ENTRIES = 30


def object_of(number, size=20_000):
    data = (b"%06d" % number) * (size // 6)
    return hashlib.sha256(data).hexdigest(), data


OBJECTS = dict(object_of(number) for number in range(100))


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with small_disk(request.param, tmp_path, 32) as mounted:
        yield mounted


@pytest.fixture(params=[FileBackend, SQLiteBackend])
def kind(request):
    return request.param


def fill_store(backend):
    backend.put_objects(OBJECTS)
    for number in range(ENTRIES):
        backend.append("key/a", b"%d" % number * 10_000)


def on_full_disk(disk, kind, fresh):
    """A backend whose disk became full when it was open or, if fresh, before it was opened."""
    backend = kind(disk / "store", min_free=0)
    fill_store(backend)
    if fresh:
        backend.close()
    fill(disk)
    return kind(disk / "store", min_free=0) if fresh else backend


def save_until_refused(backend):
    """Use up what room there is in the store's own files; return the number of the last entry."""
    last = ENTRIES
    for size in (90_000, 1):
        with pytest.raises(StorageError, match="Free some space") as caught:
            while last < 1000:
                last = backend.append("key/a", os.urandom(size))
        assert not caught.value.retryable
    with pytest.raises(StorageError, match="Free some space"):
        backend.put_objects(dict([object_of(-1, 90_000)]))
    assert [entry.seq for entry in backend.read("key/a")] == list(range(1, last + 1))
    assert backend.get_objects(OBJECTS) == OBJECTS
    return last


@pytest.mark.parametrize("fresh", [False, True], ids=["open before", "opened when full"])
def test_deleting_objects(disk, kind, fresh):
    backend = on_full_disk(disk, kind, fresh)
    last = save_until_refused(backend)
    doomed = list(OBJECTS)[:90]
    backend.delete_objects(doomed)
    left = {name: OBJECTS[name] for name in list(OBJECTS)[90:]}
    assert backend.get_objects(OBJECTS) == left
    # There is room again, without anything else having been freed.
    assert backend.append("key/a", os.urandom(90_000)) == last + 1
    backend.put_objects(dict([object_of(-1, 90_000)]))
    backend.close()
    with closing(kind(disk / "store", min_free=0)) as again:
        assert len(again.read("key/a")) == last + 1
        assert set(again.get_objects(OBJECTS)) == set(left)


@pytest.mark.parametrize("fresh", [False, True], ids=["open before", "opened when full"])
@pytest.mark.parametrize("count", [1, ENTRIES])
@pytest.mark.slow
def test_removing_the_newest_entries(disk, kind, fresh, count):
    """Their numbers are not used again, although there is no room to write them down."""
    backend = on_full_disk(disk, kind, fresh)
    last = save_until_refused(backend)
    backend.remove("key/a", range(last - count + 1, last + 1))
    kept = list(range(1, last - count + 1))
    assert [entry.seq for entry in backend.read("key/a")] == kept
    (disk / "filler").unlink()  # the newest may have been small: what it took is no room for more
    assert backend.append("key/a", b"next") == last + 1
    backend.close()
    with closing(kind(disk / "store", min_free=0)) as again:
        assert [entry.seq for entry in again.read("key/a")] == [*kept, last + 1]
        again.remove("key/a", [last + 1])
        assert again.append("key/a", b"next") == last + 2


def test_a_deletion_whose_log_is_longer_than_the_reserve(disk):
    """It is made in pieces, in order. Every second object touches every page."""
    objects = dict(object_of(number, 600) for number in range(12_000))
    with closing(SQLiteBackend(disk / "store", min_free=0)) as backend:
        backend.put_objects(objects)
    planned = size_at_rest((disk / "store" / "store.db").stat().st_size)
    assert 104 << 10 < planned < SIZE
    fill(disk)
    with closing(SQLiteBackend(disk / "store", min_free=0)) as backend:
        half = list(objects)[::2]
        backend.delete_objects(half)
        assert backend.missing_objects(objects) == set(half)
        backend.delete_objects(objects)
        assert list(backend.list_objects()) == []
        # The reserve is whole again, and most of the database's file is given back.
        assert (disk / "store" / ".reserve").stat().st_size == planned
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_frsize > 5_000_000
        some = {name: objects[name] for name in half}
        backend.put_objects(some)
        assert backend.missing_objects(some) == set()


def test_the_reserve_is_real_and_is_made_anew(disk):
    reserve = disk / "store" / ".reserve"
    with closing(SQLiteBackend(disk / "store", min_free=0)) as backend:
        fill_store(backend)
        assert reserve.stat().st_size == SIZE
        assert reserve.stat().st_blocks * 512 >= SIZE
        assert reserve.stat().st_mode & 0o777 == 0o600
        filler = fill(disk)
        reserve.unlink()
        fill(disk)
        with pytest.raises(StorageError, match="Free some space"):
            backend.append("key/a", os.urandom(2 << 20))
        filler.unlink()
        backend.append("key/a", b"next")
        assert reserve.stat().st_blocks * 512 >= SIZE
        fill(disk)
        backend.remove("key/a", range(ENTRIES + 1))
        assert [entry.seq for entry in backend.read("key/a")] == [ENTRIES + 1]
        assert reserve.stat().st_blocks * 512 >= SIZE


def test_as_much_of_the_reserve_as_there_is_room_for(disk):
    reserve = Reserve(disk / ".reserve")
    reserve.plan(SIZE // 4)
    assert reserve.size == SIZE
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - (900 << 10))
    reserve.refill()
    assert 800 << 10 < reserve.path.stat().st_size < SIZE
    assert reserve.path.stat().st_blocks * 512 >= reserve.path.stat().st_size
    assert not reserve.cut(SIZE // 2)  # it is less than the half that is for deletions
    filler.unlink()
    reserve.refill()
    assert reserve.path.stat().st_size == SIZE
    assert reserve.cut(SIZE // 2)
    assert reserve.path.stat().st_size == SIZE // 2


def test_what_is_in_the_place_of_the_reserve_is_left_alone(tmp_path):
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / ".reserve").symlink_to("precious")
    reserve = Reserve(tmp_path / ".reserve")
    reserve.plan(SIZE)
    reserve.refill()
    assert not reserve.cut(SIZE // 2)
    assert (tmp_path / "precious").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["file", "sqlite"])
def test_the_advice_of_the_manager_helps(disk, name):
    with CheckpointManager(backend=name, path=disk / "store", min_free=0) as manager:
        for number in range(20):
            manager.save("a", {"n": number, "data": os.urandom(40_000).hex()})
        fill(disk)
        with pytest.raises(StorageError):
            for number in range(20):
                manager.save("a", {"n": number, "data": os.urandom(40_000).hex()})
        manager.prune("a", KeepLatest(2))
        manager.gc()
        manager.save("a", {"n": "new"})
        assert manager.state_dict("a") == {"n": "new"}
        assert manager.verify().ok


def in_order(scan, turned):
    """List a directory in order of name, which file systems do as they like."""
    return lambda folder: iter(sorted(scan(folder), key=lambda item: item.name, reverse=turned))


def test_a_mark_goes_when_its_number_can_be_written(tmp_path, monkeypatch):
    """Without a full disk: what is in the directory, step by step."""
    backend = FileBackend(tmp_path)
    for _ in range(4):
        backend.append("key/a", b"x")
    folder = tmp_path / "a"

    def refuse(directory, data):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("agent_checkpoint.backends.file_sequence.write_new", refuse)
        backend.remove("key/a", [4])
        assert sorted(os.listdir(folder)) == ["1.json", "2.json", "3.json", "4.gone"]
        assert (folder / "4.gone").stat().st_size == 0
        assert (folder / "4.gone").stat().st_mode & 0o777 == 0o600
        backend.remove("key/a", [3])
        assert backend.append("key/a", b"y", after=2) == 5
        (folder / "5.gone").touch()  # as a version did that died before the entry went
        for turned in (False, True):
            patch.setattr(
                file_sequence, "scan_directory", in_order(file_sequence.scan_directory, turned)
            )
            assert [entry.seq for entry in backend.read("key/a")] == [1, 2, 5]
        with pytest.raises(ConflictError, match="is 5, expected 2"):
            backend.append("key/a", b"z", after=2)
    backend.remove("key/a", [5])
    assert sorted(os.listdir(folder)) == ["1.json", "2.json", "last"]
    assert (folder / "last").read_bytes() == b"5\n"
    assert backend.append("key/a", b"z", after=2) == 6


def test_another_error_than_a_full_disk_keeps_the_entry(tmp_path, monkeypatch):
    backend = FileBackend(tmp_path)
    backend.append("key/a", b"x")

    def refuse(directory, data):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("agent_checkpoint.backends.file_sequence.write_new", refuse)
    with pytest.raises(StorageError, match="broken"):
        backend.remove("key/a", [1])
    assert os.listdir(tmp_path / "a") == ["1.json"]
