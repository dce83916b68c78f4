"""F17: the store is removed, moved or replaced by a copy while it is open.

Nothing is acknowledged that is not at the path, and no external effect runs without its record.
"""

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from agent_checkpoint import (
    CheckpointManager,
    FileBackend,
    IntegrityError,
    Session,
    StorageError,
    tool,
)
from agent_checkpoint.backends.os_support.posix import exclusive_lock
from agent_checkpoint.backends.sqlite import LOOSE_FROM, SQLiteBackend

BACKENDS = {"sqlite": SQLiteBackend, "file": FileBackend}
ID = "ab" * 32


@pytest.fixture(params=list(BACKENDS))
def kind(request):
    return request.param


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def backend(kind, store):
    opened = BACKENDS[kind](store)
    opened.append("key/a", b"one")
    yield opened
    opened.close()


def remove(store):
    shutil.rmtree(store)


def move(store):
    store.rename(store.with_name("elsewhere"))


def replace_by_copy(store):
    shutil.copytree(store, store.with_name("copy"))
    shutil.rmtree(store)
    store.with_name("copy").rename(store)


def replace_by_new(store):
    kind = FileBackend if not (store / "store.db").exists() else SQLiteBackend
    shutil.rmtree(store)
    fresh = kind(store)
    fresh.append("key/a", b"somebody else's")
    fresh.close()


CHANGES = [remove, move, replace_by_copy, replace_by_new]
VERBS = {
    "append": lambda backend: backend.append("key/a", b"two"),
    "append large": lambda backend: backend.append(
        "key/a", b"two", objects={ID: bytes(LOOSE_FROM)}
    ),
    "put_objects": lambda backend: backend.put_objects({ID: b"x"}),
    "read": lambda backend: backend.read("key/a"),
    "streams": lambda backend: list(backend.streams()),
    "get_objects": lambda backend: backend.get_objects([ID]),
    "missing_objects": lambda backend: backend.missing_objects([ID]),
    "list_objects": lambda backend: list(backend.list_objects()),
    "find_objects": lambda backend: backend.find_objects(b"x"),
    "replace_objects": lambda backend: backend.replace_objects({ID: b"x"}),
    "remove": lambda backend: backend.remove("key/a", [1]),
    "delete_objects": lambda backend: backend.delete_objects([ID]),
}


def files_in(place):
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_store_that_is_gone_is_neither_written_nor_read(tmp_path, backend, change, verb):
    change(backend.path)
    before = files_in(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match="removed, moved or replaced") as caught:
            VERBS[verb](backend)
        assert not caught.value.retryable
    assert backend.is_replaced()
    assert files_in(tmp_path) == before
    again = type(backend)(backend.path)
    assert len(again.read("key/a")) == (0 if change in (remove, move) else 1)
    again.close()


def test_a_store_that_is_moved_back_works_again(backend):
    elsewhere = backend.path.with_name("elsewhere")
    backend.path.rename(elsewhere)
    with pytest.raises(StorageError):
        backend.append("key/a", b"two")
    elsewhere.rename(backend.path)
    assert backend.append("key/a", b"two") == 2
    assert not backend.is_replaced()
    again = type(backend)(backend.path)
    assert [entry.data for entry in again.read("key/a")] == [b"one", b"two"]
    again.close()


def test_a_store_that_is_gone_stays_gone_when_its_connections_are_closed(backend):
    """What a process knows of a store is about that store, also before a fork."""
    replace_by_copy(backend.path)
    backend.close()
    with pytest.raises(StorageError, match="removed, moved or replaced"):
        backend.append("key/a", b"two")


def test_an_inode_number_is_not_taken_for_the_store(kind, store):
    """File systems give the number of a removed file to the next one."""
    backend = BACKENDS[kind](store)
    backend.append("key/a", b"one")
    backend.close()
    for _ in range(5):
        replace_by_new(store)
        with pytest.raises(StorageError, match="removed, moved or replaced"):
            backend.append("key/a", b"two")


def test_a_store_that_was_never_there_is_made_at_the_first_write(kind, store):
    backend = BACKENDS[kind](store)
    assert backend.read("key/a") == []
    store.mkdir()
    store.rmdir()
    assert not backend.is_replaced()
    assert backend.append("key/a", b"one") == 1
    backend.close()


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_committed_if_the_store_goes_within_the_write(backend, change, monkeypatch):
    """The last look is after everything was prepared."""
    module = sys.modules[type(backend).__module__]
    usual = module.link_new

    def link_new(*arguments, **options):
        usual(*arguments, **options)
        change(backend.path)

    monkeypatch.setattr(module, "link_new", link_new)
    with pytest.raises(StorageError):
        backend.append("key/a", b"two", objects={ID: bytes(LOOSE_FROM)})
    monkeypatch.undo()
    again = type(backend)(backend.path)
    assert all(entry.data != b"two" for entry in again.read("key/a"))
    again.close()


# -- the lock ------------------------------------------------------------------------------------


def test_a_lock_file_that_was_replaced_while_it_was_waited_for_is_taken_anew(tmp_path):
    lock = tmp_path / ".lock"
    with exclusive_lock(lock):
        lock.unlink()
        with exclusive_lock(lock) as identity:  # would wait for itself if it were the same file
            found = lock.stat()
            assert identity == (found.st_dev, found.st_ino)


def test_a_write_under_a_lock_that_is_gone_is_not_committed(backend, monkeypatch):
    module = sys.modules[type(backend).__module__]
    usual = module.link_new

    def link_new(*arguments, **options):
        usual(*arguments, **options)
        (backend.path / ".lock").unlink()

    monkeypatch.setattr(module, "link_new", link_new)
    with pytest.raises(StorageError, match=r"\.lock") as caught:
        backend.append("key/a", b"two", objects={ID: bytes(LOOSE_FROM)})
    assert caught.value.retryable
    monkeypatch.undo()
    assert backend.append("key/a", b"two") == 2


# -- SQLite's own files --------------------------------------------------------------------------


@pytest.fixture
def sqlite(store):
    opened = SQLiteBackend(store)
    opened.append("key/a", b"one")
    yield opened
    opened.close()


READER = """
import sys
from agent_checkpoint.backends.sqlite import SQLiteBackend
backend = SQLiteBackend(sys.argv[1])
backend.read("key/a")
print("open", flush=True)
sys.stdin.read()
"""

ENDS = [("-wal",), ("-shm",), ("-wal", "-shm")]


@pytest.mark.parametrize("ends", ENDS)
def test_a_log_that_is_removed_under_a_connection_loses_nothing(sqlite, ends):
    for end in ends:
        (sqlite.path / f"store.db{end}").unlink()
    assert sqlite.append("key/a", b"two") == 2
    sqlite.close()
    again = SQLiteBackend(sqlite.path)
    assert [entry.data for entry in again.read("key/a")] == [b"one", b"two"]
    again.close()


@pytest.mark.parametrize("ends", ENDS)
def test_a_log_that_is_removed_within_a_write_acknowledges_nothing(sqlite, ends):
    connections = sqlite._connections
    with (
        pytest.raises(StorageError, match="log") as caught,
        connections.write_lock(),
        connections.transaction() as db,
    ):
        db.execute("UPDATE streams SET last = 9")
        for end in ends:
            (sqlite.path / f"store.db{end}").unlink()
    assert caught.value.retryable
    assert sqlite.append("key/a", b"two") == 2


def test_copying_the_open_store_loses_nothing(sqlite):
    """It drops SQLite's locks, and the next process that ends removes the log."""
    shutil.copytree(sqlite.path, sqlite.path.with_name("copy"))
    program = READER.replace("sys.stdin.read()", "")
    subprocess.run([sys.executable, "-c", program, str(sqlite.path)], check=True)
    assert not (sqlite.path / "store.db-wal").exists()
    assert sqlite.append("key/a", b"two") == 2
    again = SQLiteBackend(sqlite.path)
    assert [entry.data for entry in again.read("key/a")] == [b"one", b"two"]
    again.close()


def test_a_copy_of_the_database_alone_is_not_taken_for_the_store(sqlite):
    """Without its log it lacks the last saves."""
    database = sqlite.path / "store.db"
    shutil.copy(database, sqlite.path / "copy.db")
    os.replace(sqlite.path / "copy.db", database)
    with pytest.raises(StorageError, match="removed, moved or replaced"):
        sqlite.append("key/a", b"two")
    with pytest.raises(StorageError, match="removed, moved or replaced"):
        sqlite.read("key/a")


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.slow
def test_a_log_that_is_removed_while_another_process_reads(sqlite, ends):
    """Until that one ends, nothing is acknowledged that goes with the log."""
    command = [sys.executable, "-c", READER, str(sqlite.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"
        for end in ends:
            (sqlite.path / f"store.db{end}").unlink()
        for _ in range(3):  # never an acknowledgement that the next opening does not find
            if ends == ("-shm",):
                sqlite.append("key/a", b"more")
            else:
                with pytest.raises((StorageError, IntegrityError)):
                    sqlite.append("key/a", b"more")
        other.stdin.close()
    if ends == ("-wal", "-shm"):
        assert sqlite.is_replaced()
    again = SQLiteBackend(sqlite.path)
    assert len(again.read("key/a")) == (4 if ends == ("-shm",) else 1)
    assert again.append("key/a", b"last") > 1
    again.close()
    db = sqlite3.connect(sqlite.path / "store.db")
    try:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        db.close()


# -- a session -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("url", ["sqlite", "file"])
def test_no_mail_is_sent_without_its_record(tmp_path, store, url, change):
    sent = []

    @tool(effect="irreversible", key=lambda to, **_: to)
    def send_mail(to, *, effect):
        sent.append(to)
        return "sent"

    def work(session):
        for to in ("ann", "bob"):
            send_mail(to=to)
            if to == "ann":
                change(store)

    address = f"{url}://{store}"
    with pytest.raises(StorageError), Session("job", store=address) as session:
        work(session)
    assert sent == ["ann"]
    # Whoever resumes sends what is left, once.
    with Session("job", store=address):
        send_mail(to="bob")
    assert sent == ["ann", "bob"]


def test_a_manager_does_not_number_from_one_again(tmp_path, kind, store):
    manager = CheckpointManager(backend=kind, path=store)
    for n in range(3):
        manager.save("key", {"n": n})
    shutil.rmtree(store)
    with pytest.raises(StorageError, match="removed, moved or replaced"):
        manager.save("key", {"n": 3})
    with pytest.raises(StorageError, match="removed, moved or replaced"):
        manager.history("key")
    assert not store.exists()
    with CheckpointManager(backend=kind, path=store) as again:
        assert again.list_keys() == []
        again.save("key", {"n": 0})
