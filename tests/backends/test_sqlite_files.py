"""A database that this process has open is known, and is never opened a second time."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.backends import sqlite_files
from agent_checkpoint.backends.sqlite_files import (
    database_open_lock,
    is_open_here,
    is_store_database,
    register,
    unregister,
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("k", {"n": 1})
    return tmp_path / "store" / "store.db"


def asked(path: Path, ask: object = is_store_database) -> bool:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        return ask(directory, os.fsencode(path.name))  # type: ignore[operator, no-any-return]
    finally:
        os.close(directory)


def test_a_database_is_open_as_long_as_a_connection_is(database: Path) -> None:
    assert not asked(database, is_open_here)
    with CheckpointManager(backend="sqlite", path=database.parent) as manager:
        manager.list_keys()
        assert asked(database, is_open_here)
        assert asked(database)
    assert not asked(database, is_open_here)
    assert asked(database)


def test_a_store_that_is_dropped_unclosed_is_not_open(database: Path) -> None:
    manager = CheckpointManager(backend="sqlite", path=database.parent)
    manager.list_keys()
    del manager
    assert not asked(database, is_open_here)


def test_a_database_that_is_refused_is_not_open(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    sqlite3.connect(tmp_path / "store" / "store.db").execute(
        "CREATE TABLE t (x)"
    ).connection.close()
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        with pytest.raises(Exception, match="not a store"):
            manager.list_keys()
        assert not asked(tmp_path / "store" / "store.db", is_open_here)
    assert not asked(tmp_path / "store" / "store.db")


def test_no_header_is_read_while_a_database_is_being_opened(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *options: object, **where: object) -> int:
        raise AssertionError("it is open in this process")

    found: list[bool] = []
    asking = threading.Thread(
        target=lambda: found.append(is_store_database(directory, b"store.db")), daemon=True
    )
    directory = os.open(database.parent, os.O_RDONLY)
    connection = object()
    try:
        with monkeypatch.context() as patch:
            with database_open_lock():
                asking.start()
                register(connection, database)
                patch.setattr(sqlite_files.os, "open", refuse)
            asking.join(60)
        assert found == [True]
    finally:
        unregister(connection)
        os.close(directory)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_can_ask_though_another_thread_was_opening(database: Path) -> None:
    inside, done = threading.Event(), threading.Event()

    def open_slowly() -> None:
        with database_open_lock():
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=open_slowly, daemon=True)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if asked(database) else 1)
    done.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0
