"""What people do wrong with a PostgreSQL store: one typed error each, and a line from the command.

The full disk of a server and a clock that is a day off are in `test_postgres_faults`.
"""

import subprocess
import sys
from typing import Callable, NamedTuple

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from agent_checkpoint import CheckpointError, CheckpointManager, FormatError, Session, StorageError
from tests.backends import postgres_server
from tests.backends.postgres_server import free_port


class Mistake(NamedTuple):
    """What is wrong: how the URL of a good store becomes a bad one, and the error."""

    spoil: Callable
    error: type
    retryable: bool
    says: str


def unreachable(server, url, schema):
    return url.replace(f":{server.port}/", f":{free_port()}/")


def wrong_password(server, url, schema):
    return url.replace("postgres@", "errs_locked:WrOnG@")


def no_permission(server, url, schema):
    return url.replace("postgres@", "errs_guest@")


def no_database(server, url, schema):
    return url.replace("/postgres?", "/none?")


def no_encrypted_connections(server, url, schema):
    return f"{url}&sslmode=require"


def malformed_option(server, url, schema):
    return f"{url}&connect_timeout=soon"


def newer_schema(server, url, schema):
    server.execute(f"UPDATE {schema}.store SET version = 9")
    return url


MISTAKES = {
    "unreachable host": Mistake(unreachable, StorageError, True, "Try again"),
    "wrong password": Mistake(wrong_password, StorageError, False, "Check user, password"),
    "no permission": Mistake(no_permission, StorageError, False, "needs"),
    "no such database": Mistake(no_database, StorageError, False, "does not exist"),
    "no TLS": Mistake(no_encrypted_connections, StorageError, False, "and options of the URL"),
    "malformed option": Mistake(malformed_option, StorageError, False, "and options of the URL"),
    "newer schema": Mistake(newer_schema, FormatError, False, "schema version 9"),
}


@pytest.fixture(scope="module", autouse=True)
def roles(server):
    """A role with a password, and one without permissions."""
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("host all errs_locked 127.0.0.1/32 scram-sha-256\n" + before)
    server.execute("CREATE ROLE errs_locked LOGIN PASSWORD 'right'")
    server.execute("CREATE ROLE errs_guest LOGIN")
    server.reload()
    yield
    rules.write_text(before)
    server.reload()
    server.execute("DROP ROLE errs_locked")
    server.execute("DROP ROLE errs_guest")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_clear_error(server, mistake, tmp_path):
    spoil, kind, retryable, says = MISTAKES[mistake]
    schema = server.new_schema()
    url = server.url(schema)
    with CheckpointManager(url) as manager:
        saved = manager.save("key", {"n": 1})
    bad = spoil(server, url, schema)

    def open_session():
        Session("work", workspace=tmp_path, store=bad).close()

    with CheckpointManager(bad) as manager:
        verbs = (lambda: manager.save("key", {"n": 2}), lambda: manager.load("key", {}))
        for verb in (*verbs, manager.list_keys, manager.gc, manager.verify, open_session):
            with pytest.raises(CheckpointError, match=says) as caught:
                verb()
            assert type(caught.value) is kind
            assert getattr(caught.value, "retryable", False) is retryable
            assert "WrOnG" not in f"{caught.value} {caught.value.__cause__!r}"
            assert "SELECT " not in str(caught.value)  # the statement of the server's message
    command = [sys.executable, "-m", "agent_checkpoint", "--store", bad, "keys"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) <= 2
    assert says in done.stderr
    assert "WrOnG" not in done.stderr
    if mistake == "newer schema":
        server.execute(f"UPDATE {schema}.store SET version = 1")
    with CheckpointManager(url) as manager:  # nothing is lost
        assert [row["id"] for row in manager.history("key")] == [saved]
        assert manager.list_keys() == ["key"]


def test_a_replica_is_named():
    server = postgres_server.started()
    try:
        url = server.url(server.new_schema())
        with CheckpointManager(url) as manager:
            manager.save("key", {"n": 1})
        (server.data / "standby.signal").touch()
        server.kill_and_restart()
        with CheckpointManager(url) as manager:
            assert manager.state_dict("key") == {"n": 1}
            assert manager.verify().ok
            for verb in (lambda: manager.save("key", {"n": 2}), lambda: manager.delete("key")):
                with pytest.raises(StorageError, match="use the address of the primary") as caught:
                    verb()
                assert not caught.value.retryable
    finally:
        server.stop()
