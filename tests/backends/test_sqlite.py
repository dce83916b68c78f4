"""The SQLite backend passes the shipped suite, and what is its own."""

import gc
import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from agent_checkpoint import (
    CheckpointManager,
    FormatError,
    IntegrityError,
    InvalidInputError,
    StorageError,
)
from agent_checkpoint.backends import sqlite as sqlite_module
from agent_checkpoint.backends.base import Append
from agent_checkpoint.backends.os_support.mounts import network_file_system
from agent_checkpoint.backends.sqlite import LOOSE_FROM, SQLiteBackend
from agent_checkpoint.testing import BackendMachine, BackendTests

ID = "ab" * 32


class SQLiteHooks:
    def make(self, place):
        return SQLiteBackend(place / "store")

    def reopen(self, backend):
        backend.close()
        return SQLiteBackend(backend.path)


def row(backend, query, *values):
    if not (backend.path / "store.db").exists():
        return None
    db = sqlite3.connect(backend.path / "store.db")
    try:
        found = db.execute(query, values).fetchone()
    finally:
        db.close()
    return None if found is None else found[0]


class TestSQLiteBackend(SQLiteHooks, BackendTests):
    def raw_entry(self, backend, stream, seq):
        query = (
            "SELECT data FROM entries JOIN streams ON streams.id = stream "
            "WHERE name = ? AND seq = ?"
        )
        return row(backend, query, stream.encode(), seq)

    def raw_object(self, backend, object_id):
        loose = backend.path / "objects" / object_id[:2] / object_id
        if loose.exists():
            return loose.read_bytes()
        return row(backend, "SELECT data FROM objects WHERE id = ?", bytes.fromhex(object_id))


class SQLiteMachine(SQLiteHooks, BackendMachine):
    pass


TestSQLiteMachine = SQLiteMachine.TestCase
TestSQLiteMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


@pytest.fixture
def backend(tmp_path):
    opened = SQLiteBackend(tmp_path / "store")
    yield opened
    opened.close()


def test_several_entries_are_one_transaction(backend):
    backend.append("key/a", b"0")
    begins = []
    with backend._connections.connection() as db:
        db.set_trace_callback(begins.append)
    found = backend.append_all([Append(f"key/{name}", b"1") for name in "abc"])
    assert found == [2, 1, 1]
    assert [text for text in begins if text in ("COMMIT", "ROLLBACK")] == ["COMMIT"]


def test_a_damaged_stream_does_not_keep_others_from_being_appended(backend):
    backend.append("key/a", b"1")
    backend.close()
    db = sqlite3.connect(backend.path / "store.db")
    db.execute("UPDATE streams SET last = -5")
    db.commit()
    db.close()
    failed, number = backend.append_all([Append("key/a", b"2"), Append("key/b", b"1")])
    assert isinstance(failed, IntegrityError)
    assert number == 1


def test_a_commit_that_failed_is_not_tried_again(backend, monkeypatch):
    backend.append("key/a", b"1")

    def fail(db):
        raise StorageError("the disk failed")

    monkeypatch.setattr(backend._connections, "_check", fail)
    with pytest.raises(StorageError, match="the disk failed"):
        backend.append_all([Append("key/a", b"2"), Append("key/b", b"1")])
    monkeypatch.undo()
    assert len(backend.read("key/a")) == 1
    assert not backend.read("key/b")


def test_the_own_append_of_a_subclass_is_called_for_each_entry(tmp_path):
    class Mine(SQLiteBackend):
        def append(self, stream, entry, **options):
            return super().append(stream, entry.upper(), **options)

    mine = Mine(tmp_path / "store")
    assert mine.append_all([Append("key/a", b"x"), Append("key/a", b"y")]) == [1, 2]
    assert [entry.data for entry in mine.read("key/a")] == [b"X", b"Y"]
    mine.close()


def test_a_large_object_is_a_file_and_goes_when_it_is_deleted(backend):
    data = os.urandom(LOOSE_FROM)
    backend.append("key/k", b"entry", objects={ID: data})
    loose = backend.path / "objects" / "ab" / ID
    assert loose.read_bytes() == data
    assert row(backend, "SELECT data FROM objects") is None
    assert backend.get_objects([ID]) == {ID: data}
    backend.delete_objects([ID])
    assert not loose.exists()
    assert backend.missing_objects([ID]) == {ID}


def test_files_that_no_row_names_are_swept(backend):
    backend.put_objects({ID: b"x"})
    orphan = backend.path / "objects" / "cd" / ("cd" * 32)
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left by a writer that died")
    backend.delete_objects([])
    assert not orphan.exists()
    assert backend.get_objects([ID]) == {ID: b"x"}


def test_reading_a_store_that_is_not_there_makes_nothing(tmp_path):
    backend = SQLiteBackend(tmp_path / "store")
    assert list(backend.streams()) == []
    assert list(backend.list_objects()) == []
    backend.remove("key/k", [1])
    backend.delete_objects([ID])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("fast", 1)])
def test_durability_is_what_was_asked_for(tmp_path, durability, level):
    backend = SQLiteBackend(tmp_path, durability=durability)
    backend.append("key/k", b"1")
    with backend._connections.read_connection() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert db.execute("PRAGMA journal_mode").fetchone() == (b"wal",)
        assert db.execute("PRAGMA page_size").fetchone() == (8192,)
        assert db.execute("PRAGMA trusted_schema").fetchone() == (0,)
    backend.close()


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="'full' or 'fast'"):
        SQLiteBackend(tmp_path, durability="none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="store is a directory"):
        SQLiteBackend(tmp_path / "file")


def test_everything_is_private_also_under_umask_0(tmp_path):
    before = os.umask(0)
    try:
        backend = SQLiteBackend(tmp_path / "store")
        backend.append("key/k", b"1", objects={ID: os.urandom(LOOSE_FROM)})
        modes = {
            path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
            for path in tmp_path.rglob("*")
        }
        backend.close()
    finally:
        os.umask(before)
    assert {"store/store.db", "store/store.db-wal", "store/store.db-shm"} <= set(modes)
    for path, mode in modes.items():
        assert mode == (0o700 if (tmp_path / path).is_dir() else 0o600), path


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM objects; END",
        "CREATE VIEW v AS SELECT * FROM entries",
        "CREATE TABLE extra (x)",
        "CREATE INDEX i ON objects (size)",
        "DROP TABLE objects",
        "PRAGMA application_id=1",
    ],
)
def test_a_prepared_database_is_refused(backend, statement):
    backend.append("key/k", b"1")
    backend.close()
    db = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    db.execute(statement)
    db.close()
    for verb in (lambda: backend.read("key/k"), lambda: backend.append("key/k", b"2")):
        with pytest.raises(IntegrityError):
            verb()


def test_a_newer_schema_is_refused(backend):
    backend.append("key/k", b"1")
    backend.close()
    db = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    db.execute("PRAGMA user_version=9")
    db.close()
    with pytest.raises(FormatError, match="schema version 9"):
        backend.read("key/k")


@pytest.mark.parametrize(
    "garbage", [b"", b"not a database at all", b"SQLite format 3\0" + b"x" * 500]
)
def test_a_damaged_database_is_an_integrity_error(backend, garbage):
    backend.append("key/k", b"1")
    backend.close()
    (backend.path / "store.db").write_bytes(garbage)
    with pytest.raises(IntegrityError):
        backend.read("key/k")


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/with\\040space rw - nfs4 host:/x rw\n"
    )
    monkeypatch.setattr("agent_checkpoint.backends.os_support.mounts.TABLE", table)
    assert network_file_system(Path("/mnt/with space/store")) == "nfs4"
    assert network_file_system(Path("/mnt/other")) is None
    monkeypatch.setattr(sqlite_module, "network_file_system", lambda path: "nfs4")
    with pytest.raises(InvalidInputError, match=r"network file system \(nfs4\)"):
        SQLiteBackend(tmp_path / "store")
    monkeypatch.setattr("agent_checkpoint.backends.os_support.mounts.TABLE", tmp_path / "none")
    assert network_file_system(Path("/mnt/with space/store")) is None


def test_a_database_that_stays_busy_is_a_retryable_error(tmp_path):
    backend = SQLiteBackend(tmp_path / "store", lock_timeout=0.01)
    backend.append("key/k", b"1")
    other = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StorageError) as caught:
            backend.append("key/k", b"2")
    finally:
        other.close()
    assert caught.value.retryable
    assert backend.append("key/k", b"2") == 2
    backend.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(backend):
    backend.append("key/k", b"1")
    child = os.fork()
    if not child:
        try:
            os._exit(0 if backend.append("key/k", b"2") == 2 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert backend.append("key/k", b"3") == 3
    assert [entry.data for entry in backend.read("key/k")] == [b"1", b"2", b"3"]


def test_an_error_in_a_block_rolls_the_transaction_back(backend):
    backend.append("key/k", b"1")
    connections = backend._connections
    with (
        pytest.raises(ZeroDivisionError),
        connections.write_lock(),
        connections.transaction() as db,
    ):
        db.execute("DELETE FROM entries")
        raise ZeroDivisionError
    assert len(backend.read("key/k")) == 1


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_a_store_that_is_dropped_is_closed(tmp_path):
    backend = SQLiteBackend(tmp_path / "store")
    backend.append("key/k", b"1")
    assert (tmp_path / "store" / "store.db-wal").exists()
    del backend
    gc.collect()
    assert not (tmp_path / "store" / "store.db-wal").exists()


def test_threads_save_through_the_manager(tmp_path):
    manager = CheckpointManager(SQLiteBackend(tmp_path / "store"))
    threads = [
        threading.Thread(target=lambda: [manager.save("k", {"n": n}) for n in range(25)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(manager.history("k")) == 100
    assert manager.verify().ok
    manager.close()


@pytest.mark.parametrize("bad", [5, None, b"a" * 64])
def test_an_id_that_is_no_text_is_refused_like_a_malformed_one(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(InvalidInputError):
        SQLiteBackend(tmp_path / "store").put_objects({bad: b"x"})
