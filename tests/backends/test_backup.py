"""The backups of the operations page, made and restored for real."""

import shutil
import subprocess
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, Session, StorageError, tool
from tests.unit.store.archive.test_store_copy import content
from tests.unit.store.carried import fill

_published: "list[str]" = []


@tool(effect="irreversible", key=lambda version: version)
def publish_once(version):
    _published.append(version)
    return f"published {version}"


def work(store):
    """Fill a store, also with a session and its ledger; return what is in it."""
    _published.clear()
    with CheckpointManager(store) as manager:
        fill(manager)
        with Session("release", store=manager) as session:
            session.messages.append({"role": "user", "content": "publish it"})
            publish_once("1.0")
        return content(manager)


def check_restored(store, expected):
    """All is there, and goes on: numbers are not reused, and the effect is not repeated."""
    with CheckpointManager(f"{store}{'&' if '?' in store else '?'}read_only=1") as reading:
        assert reading.verify().ok
        assert content(reading) == expected
    with CheckpointManager(store) as manager:
        last = manager.history("key", n=1)[0]["id"]
        manager.save("key", {"n": "after the restore"}, expected_head=last)
        assert content(manager)["key"] != expected["key"]
        with Session("release", store=manager) as session:
            assert len(session.messages) == 1
            assert publish_once("1.0") == "published 1.0"
        manager.gc()
        assert manager.verify().ok
    assert _published == ["1.0"]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_copy_of_the_directory(tmp_path, scheme):
    url = f"{scheme}://{tmp_path}/store"
    expected = work(url)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    with CheckpointManager(url) as manager:
        newest = manager.save("key", {"n": "not in the backup"})
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "backup", tmp_path / "store")
    with CheckpointManager(url) as manager, pytest.raises(ConflictError, match="older copy"):
        manager.load("key", {}, expected_head=newest)
    check_restored(url, expected)


def run(server, program, *arguments):
    path = server.bin / program
    if not path.exists():
        pytest.skip(f"this PostgreSQL has no {program}: apt-get install postgresql-client")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("whereto", ["the same database", "another database"])
def test_pg_dump_and_pg_restore(server, tmp_path, whereto):
    schema = server.new_schema()
    url, database, dump = server.url(schema), "postgres", Path(tmp_path, "store.dump")
    expected = work(url)
    named = ("--format=custom", f"--schema={schema}", f"--file={dump}")
    run(server, "pg_dump", f"--dbname={server.url()}", *named)
    with CheckpointManager(url) as manager:
        newest = manager.save("key", {"n": "not in the backup"})
        if whereto == "the same database":
            server.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_old")
        else:
            database = server.new_schema()
            server.execute(f"CREATE DATABASE {database}")
        run(server, "pg_restore", f"--dbname={server.url(database=database)}", dump)
        if whereto == "the same database":  # a process that has the old one open notices
            with pytest.raises(StorageError, match="removed or replaced"):
                manager.save("key", {"n": "lost"})
    restored = server.url(schema, database=database)
    with CheckpointManager(restored) as manager, pytest.raises(ConflictError, match="older copy"):
        manager.load("key", {}, expected_head=newest)
    check_restored(restored, expected)
