"""The room that an SQLite store takes: it comes back, and deleted bytes can be made to vanish."""

import hashlib
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from agent_checkpoint import FileBackend, MemoryBackend, StorageError
from agent_checkpoint.backends import sqlite_space
from agent_checkpoint.backends.sqlite import LOOSE_FROM, SQLiteBackend

MEGABYTE = 1 << 20


@pytest.fixture
def backend(tmp_path):
    opened = SQLiteBackend(tmp_path / "store")
    yield opened
    opened.close()


def size_of(path):
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".reserve"]
    return sum(file.stat().st_size for file in files)


def log_size(backend):
    return (backend.path / "store.db-wal").stat().st_size


def many(count, size):
    contents = [os.urandom(size) for _ in range(count)]
    return {hashlib.sha256(data).hexdigest(): data for data in contents}


# -- space comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 50_000, 2 * LOOSE_FROM])
def test_deleted_objects_give_their_room_back(backend, size):
    objects = many(20 * MEGABYTE // size, size)
    names = list(objects)
    backend.put_objects(objects)
    assert size_of(backend.path) > 19 * MEGABYTE
    kept = names[:: max(2, len(names) // 10)]
    backend.delete_objects(name for name in names if name not in kept)
    assert size_of(backend.path) < 5 * MEGABYTE
    assert backend.get_objects(names) == {name: objects[name] for name in kept}


def test_removed_entries_give_their_room_back(backend):
    for _ in range(200):
        backend.append("key/a", os.urandom(100_000))
    assert size_of(backend.path) > 19 * MEGABYTE
    backend.remove("key/a", range(1, 200))
    assert size_of(backend.path) < 5 * MEGABYTE
    assert [entry.seq for entry in backend.read("key/a")] == [200]


def test_who_reads_is_not_in_the_way_of_a_deletion(backend, monkeypatch):
    """What cannot be given back now is given back the next time."""
    objects = many(200, 50_000)
    backend.put_objects(objects)
    reader = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM objects").fetchone()
    started = time.monotonic()
    backend.delete_objects(objects)
    assert time.monotonic() - started < 30  # not the timeout of a lock
    assert list(backend.list_objects()) == []
    assert size_of(backend.path) > 9 * MEGABYTE
    reader.close()
    backend.delete_objects([])
    assert size_of(backend.path) < 5 * MEGABYTE


def test_shrinking_takes_no_longer_than_it_may(backend, monkeypatch):
    monkeypatch.setattr(sqlite_space, "_SHRINK_SECONDS", 0.0)
    objects = many(100, 50_000)
    backend.put_objects(objects)
    backend.delete_objects(objects)
    assert (backend.path / "store.db").stat().st_size > 4 * MEGABYTE
    monkeypatch.undo()
    backend.delete_objects([])
    assert (backend.path / "store.db").stat().st_size < MEGABYTE


def test_small_deletions_cost_no_more_than_their_commit(backend, monkeypatch):
    """Few free pages are used again soon; moving pages about for them is not worth it."""
    for _ in range(50):
        backend.append("key/a", b"x" * 5000)
    emptied = []
    usual = sqlite_space._truncate_wal
    monkeypatch.setattr(sqlite_space, "_truncate_wal", lambda db: emptied.append(db) or usual(db))
    for number in range(1, 11):
        backend.remove("key/a", [number])
    assert emptied == []


def test_deleting_writes_less_than_was_deleted(backend, monkeypatch):
    """Pages that become free are not overwritten: a full disk has no room for that."""
    objects = many(40, 90_000)
    backend.put_objects(objects)
    backend.close()  # which deletes the log
    monkeypatch.setattr(backend._space, "shrink", lambda: None)
    backend.delete_objects(objects)
    assert 0 < log_size(backend) < MEGABYTE // 2


# -- the log -------------------------------------------------------------------------------------


def test_the_log_stays_short(backend):
    for _ in range(100):
        backend.append("key/a", os.urandom(90_000))
        assert log_size(backend) < 6 * MEGABYTE
    backend.put_objects(many(300, 90_000))
    backend.append("key/a", b"next")
    assert log_size(backend) < 6 * MEGABYTE


def test_the_log_stays_short_beside_readers_without_a_gap(backend, monkeypatch):
    """SQLite itself begins the log anew only when nobody reads from it."""
    monkeypatch.setattr(sqlite_space, "_MAX_WAL_BYTES", 4 * MEGABYTE)
    backend._space._log_bound = 4 * MEGABYTE
    backend.append("key/a", b"first")
    over = threading.Event()
    turns = [threading.Event(), threading.Event()]

    def reader(mine, other):
        db = sqlite3.connect(backend.path / "store.db", isolation_level=None)
        while not over.is_set():
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM entries").fetchone()
            other.set()  # the other begins before this one ends
            mine.wait(0.05)
            mine.clear()
            db.execute("COMMIT")
        db.close()

    threads = [
        threading.Thread(target=reader, args=turns),
        threading.Thread(target=reader, args=turns[::-1]),
    ]
    for thread in threads:
        thread.start()
    try:
        longest = 0
        for _ in range(200):
            backend.append("key/a", os.urandom(90_000))
            longest = max(longest, log_size(backend))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert longest < 12 * MEGABYTE


def test_a_reader_that_stays_does_not_slow_every_write(backend, monkeypatch):
    monkeypatch.setattr(sqlite_space, "_MAX_WAL_BYTES", 4 * MEGABYTE)
    backend._space._log_bound = 4 * MEGABYTE
    backend.append("key/a", b"first")
    reader = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchone()
    waits = []
    usual = sqlite_space._truncate_wal
    monkeypatch.setattr(sqlite_space, "_truncate_wal", lambda db: waits.append(db) or usual(db))
    for _ in range(150):
        backend.append("key/a", os.urandom(90_000))
    assert 0 < len(waits) < 8
    reader.close()
    backend.append("key/a", os.urandom(5 * MEGABYTE))
    assert log_size(backend) < 6 * MEGABYTE


# -- scrub ---------------------------------------------------------------------------------------

MARKER = b"sk-leaked-secret-0123456789"


def files_with(path, marker=MARKER):
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and marker in file.read_bytes()
    )


def leak(backend):
    """Put a marker into many rows and files among others that stay, and delete them.

    Fewer than it takes to have the file cut at once.
    """
    doomed, kept = {}, {}
    for number in range(24):
        size = (10, 3000, 40_000, LOOSE_FROM)[number % 4]
        for objects, text in ((doomed, MARKER), (kept, b"harmless")):
            data = b"%d" % number + text * (size // len(text) + 1)
            objects[hashlib.sha256(data).hexdigest()] = data
    backend.put_objects({**doomed, **kept})
    for number in range(60):
        backend.append(f"key/{number % 3}", b"%d" % number + MARKER * 100)
        backend.append(f"key/{number % 3}", b"harmless" * 100)
    for number in range(3):
        backend.remove(f"key/{number}", range(1, 40, 2))
    backend.delete_objects(doomed)
    return kept


def check_kept(backend, kept):
    assert {info.id for info in backend.list_objects()} == set(kept)
    assert backend.get_objects(kept) == kept
    for number in range(3):
        found = backend.read(f"key/{number}")
        assert [entry.seq for entry in found] == list(range(2, 41, 2))
        assert {entry.data for entry in found} == {b"harmless" * 100}
        assert backend.append(f"key/{number}", b"next") == 41


@pytest.fixture
def without_shrinking(monkeypatch):
    """What is deleted stays in the files until it is scrubbed."""
    monkeypatch.setattr(sqlite_space.SpaceManager, "shrink", lambda self: None)


@pytest.mark.usefixtures("without_shrinking")
def test_scrubbed_bytes_are_in_no_file(backend):
    kept = leak(backend)
    (backend.path / ".tmp" / ("0a" * 12)).write_bytes(MARKER)  # of a writer that died
    orphan = backend.path / "objects" / "cd" / ("cd" * 32)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(MARKER)
    assert any(name.startswith("store.db") for name in files_with(backend.path))
    backend.scrub()
    assert files_with(backend.path) == []
    assert log_size(backend) == 0
    check_kept(backend, kept)


@pytest.mark.usefixtures("without_shrinking")
def test_scrubbing_beside_open_connections(backend):
    """Those of the pool that nobody uses, and those of another process."""
    kept = leak(backend)
    with backend._connections.read_connection(), backend._connections.read_connection():
        pass  # two are in the pool now
    assert len(backend._connections._idle) == 2
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from agent_checkpoint.backends.sqlite import SQLiteBackend\n"
            "backend = SQLiteBackend(sys.argv[1])\n"
            "print(len(backend.read('key/1')), flush=True)\n"
            "sys.stdin.read()\n",
            backend.path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout.readline() == b"20\n"
        assert files_with(backend.path) != []
        backend.scrub()
        assert files_with(backend.path) == []
    finally:
        other.communicate(timeout=60)
    check_kept(backend, kept)


def test_scrubbing_while_somebody_reads_is_refused(backend, monkeypatch):
    monkeypatch.setattr(sqlite_space, "_SCRUB_READER_WAIT", 100)
    kept = leak(backend)
    with backend._connections.read_connection() as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM objects").fetchone()
        # It must see the state of now also when others write, so its pages cannot be overwritten.
        backend.append("key/0", b"next")
        with pytest.raises(StorageError, match="another connection is reading it") as caught:
            backend.scrub()
        db.execute("COMMIT")
    assert caught.value.retryable
    backend.remove("key/0", [41])
    backend.scrub()
    assert files_with(backend.path) == []
    assert backend.append("key/0", b"next") == 42
    backend.remove("key/0", [42])
    assert backend.get_objects(kept) == kept


def test_a_store_that_is_not_there_needs_no_scrubbing(tmp_path):
    SQLiteBackend(tmp_path / "store").scrub()
    assert list(tmp_path.iterdir()) == []


def test_who_scrubs_says_so(backend, tmp_path):
    assert backend.properties.can_scrub
    assert not MemoryBackend().properties.can_scrub
    assert not FileBackend(tmp_path).properties.can_scrub
