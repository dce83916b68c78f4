"""F18: the disk is filled by another program; the store is then only read, pruned and collected.

Each step begins with not a byte free: what a step takes of the reserve must be there for the next.
"""

import hashlib
import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    KeepLatest,
    Session,
    StorageError,
    tool,
)
from agent_checkpoint.backends.os_support.reserve import SIZE, size_at_rest
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.sqlite_connections import Connections
from tests.backends.full_disks import KINDS, fill, small_disk, use_up_inodes

LAST = 19
_RECORD = 1000  # bytes of a record, such as the outcome of a side effect


def noise(number):
    return random.Random(number).randbytes(20_000 if number % 3 else 3_000)


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with small_disk(request.param, tmp_path, 32) as mounted:
        yield mounted


@pytest.fixture(params=["file", "sqlite"])
def name(request):
    return request.param


def state(number):
    return {"n": number, "small": "s" * 3000, "large": f"{number:06}" * 30_000}


def make(disk, name, **options):
    manager = CheckpointManager(backend=name, path=disk / "store", **options)
    for number in range(LAST + 1):
        manager.save("a", state(number))
    for key in ("b", "c", "d"):
        manager.save(key, {"key": key})
    return manager


def at_rest(disk):
    return size_at_rest((disk / "store" / "store.db").stat().st_size)


def read_all(manager):
    assert manager.state_dict("a") == state(LAST)
    assert manager.history("a", n=1)[0]["id"].endswith(f"-{LAST + 1}")
    assert "a" in manager.list_keys()
    assert manager.verify().ok
    assert manager.stats()["keys"]["a"]


STEPS = [
    read_all,
    lambda manager: manager.delete("a", "a@3"),
    lambda manager: manager.delete("a", "a@4"),
    lambda manager: manager.gc(),
    lambda manager: manager.delete("b"),
    read_all,
    lambda manager: manager.prune("a", KeepLatest(9)),
    lambda manager: manager.gc(),
    lambda manager: manager.prune("a", KeepLatest(2)),
    lambda manager: manager.delete("c"),
    lambda manager: manager.gc(),
    lambda manager: manager.gc(),
    read_all,
]


@pytest.mark.parametrize("fresh", [True, False], ids=["opened when full", "open before"])
def test_reading_pruning_and_collecting_again_and_again(disk, name, fresh):
    manager = make(disk, name)
    for step in STEPS:
        if fresh:
            manager.close()
        fill(disk)
        if fresh:
            manager = CheckpointManager(backend=name, path=disk / "store")
        step(manager)
    assert set(manager.list_keys()) == {"a", "d"}
    assert len(manager.history("a")) == 2
    (disk / "filler").unlink()
    manager.save("a", {"n": "new"})
    assert manager.verify().ok
    manager.close()


@pytest.mark.parametrize("fresh", [True, False], ids=["opened when full", "open before"])
@pytest.mark.parametrize("full", [False, True], ids=["room left", "no room left"])
@pytest.mark.slow
def test_without_an_inode(disk, name, fresh, full):
    manager = make(disk, name)
    for step in STEPS:
        if fresh:
            manager.close()
        use_up_inodes(disk)
        if full:
            fill_what_is_left(disk)
        if fresh:
            manager = CheckpointManager(backend=name, path=disk / "store")
        step(manager)
    assert set(manager.list_keys()) == {"a", "d"}
    assert len(manager.history("a")) == 2
    manager.close()


def fill_what_is_left(disk):
    """Fill the disk by a file that is there already."""
    file = next((disk / "many").iterdir())
    if not (disk / "filler").exists():
        file.rename(disk / "filler")
    fill(disk)


def test_reading_takes_nothing_of_the_disk(disk):
    make(disk, "sqlite").close()
    fill(disk)
    reserve = disk / "store" / ".reserve"
    for _ in range(3):
        with CheckpointManager(backend="sqlite", path=disk / "store") as manager:
            read_all(manager)
        assert reserve.stat().st_size == at_rest(disk)


def test_deletions_that_free_nothing_leave_the_reserve_whole(disk):
    backend = SQLiteBackend(disk / "store", min_free=0)
    for _ in range(60):
        backend.append("key/a", b"x")
    backend.close()
    fill(disk)
    for number in range(1, 60):
        backend.remove("key/a", [number])
        backend.close()
    assert [entry.seq for entry in backend.read("key/a")] == [60]
    assert (disk / "store" / ".reserve").stat().st_size == at_rest(disk)


def test_a_small_store_has_a_reserve_wherever_it_is(tmp_path):
    reserve = tmp_path / "store" / ".reserve"
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("a", {"n": 1})
        assert reserve.stat().st_blocks * 512 >= SIZE
    assert reserve.stat().st_size == at_rest(tmp_path)
    assert reserve.stat().st_blocks * 512 >= at_rest(tmp_path)


def test_the_reserve_is_whole_while_growth_of_the_database_is_pending(tmp_path):
    reserve = tmp_path / "store" / ".reserve"
    one, other = (SQLiteBackend(tmp_path / "store") for _ in range(2))
    one.append("key/a", b"x")
    assert other.read("key/a")
    one.close()  # the connection of the other keeps the log
    assert reserve.stat().st_size == SIZE
    other.close()  # has written nothing
    assert reserve.stat().st_size == SIZE
    one.append("key/a", b"x")
    one.close()
    assert reserve.stat().st_size == at_rest(tmp_path)
    one.close()
    assert one.read("key/a")
    one.close()
    assert reserve.stat().st_size == at_rest(tmp_path)


def test_the_reserve_of_a_closed_store_grows_with_it():
    assert size_at_rest(0) == size_at_rest(2_000_000) == 104 << 10
    assert size_at_rest(10 << 20) == 512 << 10
    assert size_at_rest(1 << 30) == SIZE


@pytest.mark.parametrize("count", [20, 300, 700])
def test_a_closed_store_of_any_size(disk, count):
    """Its reserve is as small as can be; objects and records are removed one by one, and all."""
    backend = SQLiteBackend(disk / "store", min_free=0)
    objects = {hashlib.sha256(data).hexdigest(): data for data in map(noise, range(count))}
    for number in range(count):
        backend.append("key/a", noise(number)[:400])
    backend.put_objects(objects)
    backend.close()
    names = list(objects)
    fill(disk)
    for name in names[:10]:
        backend.delete_objects([name])
        backend.close()
        fill(disk)
    backend.append("fx/a", noise(-1)[:_RECORD])
    backend.close()
    fill(disk)
    backend.remove("key/a", range(1, count))
    backend.close()
    fill(disk)
    backend.delete_objects(names)
    assert list(backend.list_objects()) == []
    assert [entry.seq for entry in backend.read("key/a")] == [count]
    assert [entry.data for entry in backend.read("fx/a")] == [noise(-1)[:_RECORD]]
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > (count - 10) * 8_000
    backend.close()


def test_without_the_memory_that_processes_share(tmp_path, monkeypatch):
    """The same for who cannot mount a disk: SQLite is refused what it needs for sharing."""
    make(tmp_path, "sqlite").close()
    usual = Connections._connect

    def refuse(self, how="mode=rw", *, shared=True):
        if shared:
            raise sqlite3.OperationalError("disk I/O error")
        return usual(self, how, shared=shared)

    monkeypatch.setattr(Connections, "_connect", refuse)
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        for step in STEPS:
            step(manager)
        with looked_at(tmp_path, 2):
            manager.save("a", state(LAST))
            manager.delete("d")
        assert manager.list_keys() == ["a"]
    assert not (tmp_path / "store" / "store.db-shm").exists()


def test_without_a_reserve_it_is_said_that_the_disk_is_full(disk):
    """As in a small store that an older version has made."""
    make(disk, "sqlite").close()
    (disk / "store" / ".reserve").unlink()
    fill(disk)
    with CheckpointManager(backend="sqlite", path=disk / "store") as manager:
        read_all(manager)
        with pytest.raises(StorageError, match="disk is full"):
            manager.delete("a", "a@3")
        read_all(manager)


@contextmanager
def looked_at(disk, count):
    """Let threads read, each time by new connections, until the block ends; raise what they met."""
    stop, met, reads = threading.Event(), [], []

    def look():
        while not stop.is_set() and not met:
            try:
                with CheckpointManager(backend="sqlite", path=disk / "store") as manager:
                    assert manager.state_dict("a") == state(LAST)
                    assert set(manager.list_keys()) <= {"a", "b", "c", "d"}
                    reads.append(1)
            except Exception as error:
                met.append(error)

    threads = [threading.Thread(target=look) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if met:
        raise met[0]
    assert reads


def test_others_read_meanwhile(disk):
    make(disk, "sqlite").close()
    fill(disk)
    with looked_at(disk, 3):
        for number in range(1, LAST):
            with CheckpointManager(backend="sqlite", path=disk / "store") as manager:
                manager.delete("a", f"a@{number}")
                if number % 5 == 0:
                    manager.gc()
    with CheckpointManager(backend="sqlite", path=disk / "store") as manager:
        assert len(manager.history("a")) == 2
        assert manager.verify().ok


KILLED = """
import os, sys
from agent_checkpoint.backends.os_support import reserve
from agent_checkpoint.backends import sqlite_connections, sqlite_space
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.sqlite_connections import Connections
from contextlib import contextmanager

at = sys.argv[2]
backend = SQLiteBackend(sys.argv[1], min_free=0)
if at == "given up":
    reserve.Reserve.release = lambda self: os._exit(9)
elif at == "committed":
    usual = sqlite_space.SpaceManager._delete
    sqlite_space.SpaceManager._delete = lambda *args: (usual(*args), os._exit(9))
else:
    sqlite_space.SpaceManager.shrink = lambda self: os._exit(9)
backend.remove("key/a", range(1, 21))
"""


@pytest.mark.parametrize("at", ["given up", "committed", "deleted"])
def test_killed_while_it_deletes(disk, at):
    """What is left is the old state or the new, it can be read, and deleting goes on."""
    backend = SQLiteBackend(disk / "store", min_free=0)
    for number in range(30):
        backend.append("key/a", b"%d" % number * 3000)
    backend.close()
    fill(disk)
    done = subprocess.run([sys.executable, "-c", KILLED, disk / "store", at])
    assert done.returncode == 9
    old = list(range(1, 31))
    present = [entry.seq for entry in backend.read("key/a")]
    assert present == (old if at == "given up" else old[20:])
    backend.remove("key/a", old[:29])
    backend.close()
    assert [entry.seq for entry in backend.read("key/a")] == [30]
    assert (disk / "store" / ".reserve").stat().st_size == at_rest(disk)


def test_the_log_that_a_killed_process_left(disk):
    """It is read without the memory that SQLite's processes share, for which there is no room."""
    code = (
        "import os, sys; from agent_checkpoint.backends.sqlite import SQLiteBackend\n"
        "backend = SQLiteBackend(sys.argv[1]); backend.append('key/a', b'one'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, disk / "store"])
    log, shared = disk / "store" / "store.db-wal", disk / "store" / "store.db-shm"
    assert log.stat().st_size
    shared.unlink()
    fill(disk)
    backend = SQLiteBackend(disk / "store")
    assert [entry.data for entry in backend.read("key/a")] == [b"one"]
    backend.remove("key/a", [1])
    assert backend.read("key/a") == []
    backend.close()


# -- sessions ------------------------------------------------------------------------------------


def test_the_key_of_a_session_can_be_deleted(disk, name):
    """Its end is recorded first, so that whoever still holds it begins nothing outside."""
    sent, refused = [], False

    @tool(effect="irreversible", key=lambda to: to)
    def send(to, *, effect):
        sent.append(to)

    store = CheckpointManager(backend=name, path=disk / "store")
    # The last checkpoint of a session cannot be written any more, either.
    with pytest.raises((StorageError, ConflictError)), Session("s", store=store):
        send("a")
        fill(disk)
        with CheckpointManager(backend=name, path=disk / "store") as other:
            other.delete("s")
            assert other.list_keys() == []
        with pytest.raises(ConflictError, match="opened again elsewhere"):
            send("b")
        refused = True  # so it was not the deletion that raised
    assert refused
    assert sent == ["a"]
    store.close()


# -- purge ---------------------------------------------------------------------------------------


def test_a_purge_says_how_much_room_it_needs(disk):
    backend = SQLiteBackend(disk / "store", min_free=0)
    for _ in range(60):
        backend.append("key/a", os.urandom(90_000))
    backend.close()
    fill(disk)
    with pytest.raises(
        StorageError, match=r"needs up to [0-9,]+ bytes on its file system, where [0-9,]+ are free"
    ):
        backend.scrub()
    backend.close()
    backend.remove("key/a", range(1, 55))
    assert len(backend.read("key/a")) == 6
    backend.close()


def test_a_purge_of_a_small_store_finds_room_in_the_reserve(disk):
    with CheckpointManager(backend="sqlite", path=disk / "store", min_free=0) as manager:
        manager.save("a", {"token": "hunter2-hunter2"})
        manager.save("a", {"token": "none"})
    fill(disk)
    with CheckpointManager(backend="sqlite", path=disk / "store", min_free=0) as manager:
        manager.purge("hunter2-hunter2")
        assert manager.state_dict("a") == {"token": "none"}
    for file in (disk / "store").rglob("*"):
        if file.is_file():
            assert b"hunter2" not in file.read_bytes(), file
