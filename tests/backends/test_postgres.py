"""The PostgreSQL backend passes the shipped suite on a real server, and what is its own."""

import _thread
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

from hypothesis import settings

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    ConflictError,
    FormatError,
    IntegrityError,
    InvalidInputError,
    Log,
    RetryBackend,
    StorageError,
)
from agent_checkpoint.backends.postgres import PostgresBackend
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.testing import BackendMachine, BackendTests
from agent_checkpoint.testing.concurrency_tests import DeletionTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from tests.backends import postgres_server
from tests.backends.postgres_proxy import Proxy

pytestmark = pytest.mark.usefixtures("use_server")

ID = "ab" * 32


def schema_of(backend):
    return re.search("schema=([a-z0-9_]+)", backend.url)[1]


class PostgresHooks:
    server: postgres_server.PostgresServer

    def make(self, place):
        return PostgresBackend(self.server.url(self.server.new_schema()))

    def reopen(self, backend):
        backend.close()
        self.server.wait_until_idle(schema_of(backend))
        return PostgresBackend(backend.url)


class RawRows(PostgresHooks):
    def raw_entry(self, backend, stream, seq):
        schema = schema_of(backend)
        return self.value(
            backend,
            f"SELECT data FROM {schema}.entries JOIN {schema}.streams ON streams.id = stream "
            "WHERE name = %s AND seq = %s",
            (stream.encode(), seq),
        )

    def raw_object(self, backend, object_id):
        query = f"SELECT data FROM {schema_of(backend)}.objects WHERE id = %s"
        return self.value(backend, query, (bytes.fromhex(object_id),))

    def value(self, backend, query, values):
        (found,) = self.server.execute(f"SELECT to_regclass('{schema_of(backend)}.store')")
        rows = self.server.execute(query, values) if found[0] else []
        return rows[0][0] if rows else None


@pytest.mark.slow  # about a minute
class TestPostgresBackend(RawRows, BackendTests):
    pass


class TestPostgresSmoke(RawRows, DeletionTests, OpenerTests):
    """The parts of the suite that are most about locks."""


class PostgresMachine(PostgresHooks, BackendMachine):
    pass


TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.pytestmark = [pytest.mark.slow]
TestPostgresMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


@pytest.fixture
def url(server):
    return server.url(server.new_schema())


@pytest.fixture
def backend(url):
    with closing(PostgresBackend(url)) as backend:
        yield backend


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the URL and the properties ------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_manager_opens_a_url(server, url, scheme):
    class Agent(Checkpointable):
        def __init__(self, memory):
            self.memory = memory

    agent, other = Agent(["one" * 9000]), Agent([])
    with CheckpointManager(url.replace("postgresql", scheme, 1)) as manager:
        first = manager.save("k", agent)
        agent.memory.append("two")
        manager.save("k", agent)
        with CheckpointManager(manager.store.backend.properties.url) as again:
            again.load("k", other)
        assert other.memory == agent.memory
        manager.delete("k", first)
        manager.gc()
        assert manager.verify().ok
        manager.purge("one" * 9000)
        assert "one" not in str(manager.state_dict("k"))


def test_the_options_of_the_url_and_its_properties():
    url = (
        "postgresql://me:pa%40ss@db1:5432,db2/prod?sslmode=require&schema=mine&shared=1"
        "&password=pa%40ss&sslpassword=pa%40ss&compression=zstd"
    )
    backend = PostgresBackend(url)
    public = (
        "postgresql://me@db1:5432,db2/prod?sslmode=require&schema=mine&shared=1&compression=zstd"
    )
    assert backend.properties.url == backend.url == public
    assert repr(backend) == f"PostgresBackend({public!r})"
    properties = backend.properties
    assert (properties.shared, properties.compression) == (True, "zstd")
    assert (properties.durability, properties.can_scrub) == ("full", True)
    assert (properties.is_local, properties.path, properties.marker) == (False, None, None)


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql://u:sec%ret@host/db",
        "postgresql://u:secret@host/db?nonsense=1",
        "postgresql://u:secret@host:port/db?connect_timeout",
        "postgresql://u:secret@host/db?schema=a&schema=b",
        "postgresql://u:secret@host/db?schema=",
        "postgresql://u:secret@host/db?schema=a;DROP",
        'postgresql://u:secret@host/db?schema="a"',
        f"postgresql://u:secret@host/db?schema={'a' * 64}",
        "postgresql://u:secret@host/db?shared=yes",
        "postgresql://u:a/secret@host/db",
        "postgresql://u:a@secret@host/db",
        "postgresql://u:a?secret@host/db",
        "postgresql://u:12/secret@host/db",
        "postgresql://u:secret/db",
        "postgresql://u:secret@host/db?compression=lzma",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(bad):
    with pytest.raises(InvalidInputError) as caught:
        CheckpointManager(bad)
    assert "secret" not in str(caught.value)
    assert "sec%ret" not in str(caught.value)
    assert caught.value.__cause__ is None


# -- errors --------------------------------------------------------------------------------------


def refused(url):
    with closing(PostgresBackend(url)) as backend, pytest.raises(StorageError) as caught:
        backend.append("key/a", b"entry")
    return caught.value


def test_a_server_that_cannot_be_reached(server, url):
    error = refused(url.replace(f":{server.port}", f":{postgres_server.free_port()}"))
    assert error.retryable
    assert "refused" in str(error)


def test_a_database_or_role_that_is_missing(server, url):
    for bad in (url.replace("/postgres?", "/none?"), url.replace("postgres@", "none@")):
        error = refused(bad)
        assert not error.retryable
        assert '"none" does not exist' in str(error)


def test_a_wrong_password_is_in_no_message(server, url):
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + before)
    server.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    server.reload()
    try:
        for user in ("locked:WrOnG", "locked"):
            error = refused(url.replace("postgres@", f"{user}@"))
            assert "password" in str(error)
            assert not error.retryable
            assert "WrOnG" not in f"{error} {error.__cause__} {error.__cause__!r}"
    finally:
        rules.write_text(before)
        server.reload()
        server.execute("DROP ROLE locked")


def test_a_role_without_permissions(server, url):
    server.execute("CREATE ROLE guest LOGIN")
    guest = url.replace("postgres@", "guest@")
    schema = re.search("schema=([a-z0-9]+)", url)[1]
    try:
        error = refused(guest)  # it may not create the schema
        assert not error.retryable
        assert "CREATE on the database" in str(error)
        with closing(PostgresBackend(url)) as owner:
            owner.append("key/a", b"entry")
        assert "permission denied" in str(refused(guest))
        # The permissions of the how-to page suffice.
        server.execute(f"GRANT USAGE ON SCHEMA {schema} TO guest")
        server.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO guest"
        )
        with closing(PostgresBackend(guest)) as backend:
            assert backend.append("key/a", b"entry", objects={ID: b"x"}) == 2
            assert backend.append("key/a", b"entry", requires=[ID]) == 3
            assert backend.append("key/b", b"entry", requires=[ID]) == 1
            backend.delete_objects([ID])
            backend.remove("key/a", [1, 2, 3])
            with pytest.raises(StorageError, match="owner"):
                backend.scrub()
    finally:
        server.execute("DROP OWNED BY guest")
        server.execute("DROP ROLE guest")


def test_a_schema_that_its_owner_made(server, url):
    """Who may create tables in a schema need not be allowed to create schemas."""
    schema = re.search("schema=([a-z0-9]+)", url)[1]
    server.execute("CREATE ROLE tenant LOGIN")
    try:
        server.execute(f"CREATE SCHEMA {schema} AUTHORIZATION tenant")
        with closing(PostgresBackend(url.replace("postgres@", "tenant@"))) as backend:
            assert backend.append("key/a", b"entry") == 1
            backend.scrub()
    finally:
        server.execute("DROP OWNED BY tenant")
        server.execute("DROP ROLE tenant")


def test_a_schema_with_other_tables_is_left_alone(server, url):
    schema = re.search("schema=([a-z0-9]+)", url)[1]
    server.execute(f"CREATE SCHEMA {schema}")
    server.execute(f"CREATE TABLE {schema}.objects (mine int)")
    assert "choose another" in str(refused(url))
    assert server.execute(f"SELECT to_regclass('{schema}.store')") == [(None,)]


def test_a_newer_schema_is_refused(server, backend):
    backend.append("key/a", b"entry")
    server.execute(f"UPDATE {schema_of(backend)}.store SET version = 9")
    for opened in (backend, PostgresBackend(backend.url)):
        for verb in (
            lambda opened=opened: opened.read("key/a"),
            lambda opened=opened: opened.append("key/a", b"2"),
            lambda opened=opened: opened.delete_objects([ID]),
        ):
            with pytest.raises(FormatError, match="schema version 9"):
                verb()
        opened.close()


@pytest.mark.parametrize(
    ("state", "kind", "retryable", "text"),
    [
        ("53100", StorageError, False, "Free some space"),
        ("53200", StorageError, True, "Try again"),
        ("57014", StorageError, True, "Try again"),
        ("XX001", IntegrityError, None, "damaged"),
        ("XX000", StorageError, False, "Cannot use"),
    ],
)
def test_errors_of_the_server_are_typed(server, backend, state, kind, retryable, text):
    backend.append("key/a", b"1")
    failing(server, schema_of(backend), f"RAISE EXCEPTION 'broken' USING ERRCODE = '{state}';")
    with pytest.raises(kind, match=text) as caught:
        backend.append("key/a", b"2")
    assert getattr(caught.value, "retryable", None) is retryable
    assert getattr(caught.value, "no_room", None) is (
        None if retryable is None else state == "53100"
    )
    assert caught.value.__cause__.sqlstate == state
    server.execute(f"DROP TRIGGER fault ON {schema_of(backend)}.entries")
    assert backend.append("key/a", b"2") == 2


def failing(server, schema, body):
    """Run PL/pgSQL at every new entry."""
    server.execute(
        f"CREATE FUNCTION {schema}.fault() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN {body} RETURN NEW; END$$"
    )
    server.execute(
        f"CREATE TRIGGER fault BEFORE INSERT ON {schema}.entries FOR EACH ROW "
        f"EXECUTE FUNCTION {schema}.fault()"
    )


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_the_server_sacrifices_is_repeated(server, backend, state):
    backend.append("key/a", b"1")
    schema = schema_of(backend)
    server.execute(f"CREATE SEQUENCE {schema}.tries")
    failing(
        server,
        schema,
        f"IF nextval('{schema}.tries') < 3 THEN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; "
        "END IF;",
    )
    assert backend.append("key/a", b"2") == 2
    assert backend.append("key/a", b"3") == 3


# -- settings, schema, identity ------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", "local", "remote_apply"])
def test_a_commit_is_durable_whatever_the_role_prefers(server, url, level):
    backend = PostgresBackend(f"{url}&options=-csynchronous_commit%3D{level}")
    backend.append("key/a", b"1")
    schema = schema_of(backend)
    server.execute(f"CREATE TABLE {schema}.seen (level text)")
    failing(
        server, schema, f"INSERT INTO {schema}.seen SELECT current_setting('synchronous_commit');"
    )
    backend.append("key/a", b"2")
    assert server.execute(f"SELECT level FROM {schema}.seen") == [
        (level if level == "remote_apply" else "on",)
    ]
    backend.close()


def test_a_role_that_prefers_other_transactions(url):
    options = (
        "-cdefault_transaction_isolation%3Dserializable%20-cdefault_transaction_read_only%3Don"
    )
    with closing(PostgresBackend(f"{url}&options={options}")) as backend:
        assert backend.append("key/a", b"1", objects={ID: b"x"}) == 1
        assert backend.append("key/a", b"2", requires=[ID]) == 2
        backend.delete_objects(iter([ID]))
        assert backend.missing_objects([ID]) == {ID}


def test_a_role_that_prefers_old_snapshots_sees_what_a_sweep_deleted(server, url):
    """A statement that waited for the sweep must not decide by a snapshot from before it."""
    options = "-cdefault_transaction_isolation%3Drepeatable%5C%20read"
    backend, other = PostgresBackend(f"{url}&options={options}"), PostgresBackend(url)
    with closing(backend), closing(other), ThreadPoolExecutor(1) as pool:
        backend.append("key/a", b"1", objects={ID: b"x"})

        def ids():
            ids.append = pool.submit(backend.append, "key/a", b"2", requires=[ID])
            wait_for(lambda: waiting(server, backend) == 1)
            yield ID

        other.delete_objects(ids())
        with pytest.raises(MissingObjectsError):
            ids.append.result(60)


def test_openers_create_one_store(server):
    for _ in range(4):
        url = server.url(server.new_schema())
        openers = [PostgresBackend(url) for _ in range(8)]
        start = threading.Barrier(len(openers))

        def append(opened, start=start):
            start.wait(60)
            return opened.append("key/a", b"entry")

        with ThreadPoolExecutor(len(openers)) as pool:
            assert sorted(pool.map(append, openers)) == list(range(1, 9))
        for opened in openers:
            opened.close()


def test_reading_makes_nothing(server, backend):
    assert list(backend.streams()) == backend.read("key/a") == list(backend.list_objects()) == []
    assert backend.get_objects([ID]) == {}
    backend.remove("key/a", [1])
    backend.delete_objects([ID])
    backend.scrub()
    assert server.execute(f"SELECT to_regnamespace('{schema_of(backend)}')") == [(None,)]


VERBS = [
    lambda backend: backend.read("key/a"),
    lambda backend: backend.append("key/a", b"2"),
    lambda backend: backend.put_objects({ID: b"x"}),
    lambda backend: backend.missing_objects([ID]),
    lambda backend: backend.remove("key/a", [1]),
    lambda backend: backend.delete_objects([ID]),
    lambda backend: list(backend.streams()),
]


@pytest.mark.parametrize("how", ["removed", "new", "copied"])
def test_a_store_that_is_replaced_while_it_is_open(server, backend, how):
    backend.append("key/a", b"1")
    assert not backend.is_replaced()
    schema = schema_of(backend)
    if how == "copied":  # as by a restored dump: the same rows in other tables
        server.execute(f"CREATE TABLE {schema}.copy AS SELECT * FROM {schema}.store")
        server.execute(f"DROP TABLE {schema}.store")
        server.execute(f"ALTER TABLE {schema}.copy RENAME TO store")
    else:
        server.execute(f"DROP SCHEMA {schema} CASCADE")
    other = PostgresBackend(backend.url)
    if how == "new":
        other.append("key/b", b"1")
    for verb in VERBS:
        with pytest.raises(StorageError, match="removed or replaced") as caught:
            verb(backend)
        assert not caught.value.retryable
    assert backend.is_replaced()
    assert list(other.streams()) == {"removed": [], "new": ["key/b"], "copied": ["key/a"]}[how]
    other.close()


def test_scrubbing_erases_deleted_bytes_from_the_tables(server, backend):
    secret = os.urandom(24).hex().encode()
    backend.append("key/a", b"entry " + secret, objects={ID: secret * 200})
    backend.append("key/a", b"kept")

    def is_in_files():
        server.execute("CHECKPOINT")
        files = [path for path in (server.data / "base").rglob("*") if path.is_file()]
        return any(secret in path.read_bytes() for path in files)

    assert is_in_files()
    backend.remove("key/a", [1])
    backend.delete_objects([ID])
    assert is_in_files()
    backend.scrub()
    assert not is_in_files()
    assert [entry.data for entry in backend.read("key/a")] == [b"kept"]
    assert not backend.is_replaced()


# -- names ---------------------------------------------------------------------------------------


HOSTILE = "x') UNION SELECT id, data FROM objects; DROP TABLE entries; --%s%(a)s\\ \"$$"


def test_names_are_bound_parameters(url):
    with CheckpointManager(url) as manager:
        for key in (HOSTILE, "a\0b", "../..", "%2e%2e", "\n", "\U0001f9ea", "k" * 1024):
            cid = manager.save(key, {"x": key})
            assert manager.state_dict(key) == manager.state_dict(key, checkpoint_id=cid)
            assert manager.list_keys(prefix=key) == [key]
            assert [row["id"] for row in manager.history(key)] == [cid]
            manager.delete(key)
            assert manager.list_keys() == []
        for key in ("", "\ud800", "k" * 1025):
            with pytest.raises(InvalidInputError):
                manager.save(key, {"x": 1})


def test_hostile_arguments_find_nothing(backend):
    backend.append("key/a", b"entry", objects={ID: b"x"})
    assert list(backend.streams(HOSTILE)) == list(backend.streams("\ud800")) == []
    assert backend.read(HOSTILE) == backend.read(f"key/{HOSTILE}") == []
    assert backend.get_objects([HOSTILE, "'", "%"]) == {}
    backend.remove(f"key/{HOSTILE}", [1])
    backend.delete_objects([HOSTILE])
    with pytest.raises(InvalidInputError, match="bytes"):
        backend.append("key/" + "n" * 3000, b"entry")
    assert backend.read("key/a", before=2**70, after=-(2**70), limit=2**70)[0].data == b"entry"


# -- processes, threads, interrupts --------------------------------------------------------------


def test_a_forked_child_uses_its_own_connections(backend):
    backend.append("key/a", b"1", objects={ID: b"x"})
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if backend.append("key/a", b"2") == 2:
                backend.close()
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.append("key/a", b"3") == 3


def test_a_child_forked_within_a_sweep_leaves_the_transaction_of_its_parent(backend):
    backend.append("key/a", b"1", objects={ID: b"x"})

    def ids():
        child = os.fork()
        if child == 0:
            os._exit(0 if len(backend.read("key/a")) == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(backend.read("key/a")) == 1
        yield ID

    backend.delete_objects(ids())
    assert backend.missing_objects([ID]) == {ID}


def waiting(server, backend):
    """The number of sessions of a store that wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s "
        "AND wait_event_type = 'Lock'"
    )
    return server.execute(query, (schema_of(backend),))[0][0]


def test_an_interrupt_while_waiting_for_a_lock(server, backend):
    backend.append("key/a", b"1")

    def interrupt():
        wait_for(lambda: waiting(server, backend) == 1)
        _thread.interrupt_main()

    other = PostgresBackend(backend.url)

    def ids():
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            backend.append("key/a", b"interrupted")
        thread.join()
        yield ID

    other.delete_objects(ids())
    other.close()
    assert backend.append("key/a", b"2") == 2
    assert [entry.data for entry in backend.read("key/a")] == [b"1", b"2"]


def test_an_interrupt_in_a_sweep_releases_the_lock(backend):
    backend.put_objects({ID: b"x"})

    def ids():
        yield ID
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.delete_objects(ids())
    assert backend.append("key/a", b"1", requires=[ID]) == 1


def test_changes_include_what_a_transaction_had_not_committed_yet(server, backend):
    """The position is before the oldest transaction that runs, and not after the newest."""
    import psycopg

    backend.append("key/old", b"1", objects={ID: b"old"})
    schema = schema_of(backend)
    with psycopg.connect(server.url()) as slow:
        slow.execute(f"INSERT INTO {schema}.objects VALUES (%s, 0, 'x')", (b"\xcd" * 32,))
        slow.execute(f"UPDATE {schema}.streams SET last = last WHERE name = 'key/old'")
        backend.append("key/fast", b"1")
        position = backend.changes().position
        slow.commit()
    for _ in range(3):
        backend.append("key/other", b"1")
    streams, objects, later = backend.changes(position)
    assert {"key/old", "key/fast", "key/other"} <= set(streams)
    assert {info.id for info in objects} == {"cd" * 32}
    assert list(backend.changes(later).objects) == []
    assert "key/old" not in backend.changes(later).streams


def test_changes_are_found_where_transaction_numbers_wrap_around(server, backend):
    """They have 32 bits in rows: a position is compared modulo 2**32."""
    backend.append("key/a", b"1", objects={ID: b"x"})
    position = backend.changes().position
    backend.append("key/b", b"1")
    for epoch in (1, 2):
        assert backend.changes(position + epoch * 2**32).streams == ["key/b"]


@pytest.mark.parametrize("stored", [0, 1])
def test_a_saver_behind_a_sweep_gives_up_and_names_it(backend, stored):
    """With an entry before, it appends by one statement."""
    hasty = PostgresBackend(backend.url, lock_timeout=0.2)
    backend.put_objects({ID: b"x"})
    for _ in range(stored):
        hasty.append("key/a", b"1")

    def ids():
        for verb in (
            lambda: hasty.append("key/a", b"1"),
            lambda: hasty.put_objects({ID: b"x"}),
            lambda: hasty.delete_objects([ID]),
        ):
            with pytest.raises(
                StorageError, match=r"garbage collection held it for 0\.2 s"
            ) as caught:
                verb()
            assert caught.value.retryable
            assert f"{schema_of(backend)}, server process " in str(caught.value)
        assert len(hasty.read("key/a")) == stored
        yield ID

    backend.delete_objects(ids())
    assert hasty.append("key/a", b"1") == stored + 1
    hasty.close()


def test_the_server_ends_a_sweep_that_stalls(backend):
    """As of a stopped process: savers behind it go on, and it deletes nothing."""
    stalled = PostgresBackend(backend.url, lock_timeout=0.6)
    backend.append("key/a", b"1", objects={ID: b"x"})

    def ids():
        assert backend.append("key/a", b"2", requires=[ID]) == 2  # waits 0.3 s
        yield ID

    with pytest.raises(StorageError, match="idle-in-transaction timeout") as caught:
        stalled.delete_objects(ids())
    assert caught.value.retryable
    assert "committed is unknown" not in str(caught.value)
    assert backend.get_objects([ID]) == {ID: b"x"}
    stalled.close()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_writer_of_the_same_stream_that_stalls_is_waited_for_and_named(server, backend, is_known):
    import psycopg

    hasty = PostgresBackend(backend.url, lock_timeout=0.2)
    (hasty if is_known else backend).append("key/a", b"1")  # if it is known: by one statement
    with psycopg.connect(server.url()) as db:
        db.execute(f"SELECT 1 FROM {schema_of(backend)}.streams FOR UPDATE")
        with pytest.raises(StorageError, match="Another writer held it") as caught:
            hasty.append("key/a", b"2")
        assert caught.value.retryable
        assert hasty.append("key/b", b"1") == 1
    assert hasty.append("key/a", b"2") == 2
    hasty.close()


# -- round trips and lost commits ----------------------------------------------------------------


@pytest.fixture
def proxy(server):
    with closing(Proxy(server.port)) as proxy:
        yield proxy


@pytest.fixture
def remote(server, proxy):
    """A backend behind the proxy, already connected, with one entry."""
    plain = "&sslmode=disable&gssencmode=disable"  # so that the proxy can count messages
    url = server.url(server.new_schema(), port=proxy.port, more=plain)
    with closing(PostgresBackend(url)) as backend:
        backend.append("key/a", b"1", objects={ID: b"x"})
        yield backend


def test_round_trips_do_not_grow_with_history(remote, proxy):
    objects = {f"{number:064x}": b"%d" % number * 1000 for number in range(50)}

    def trips(call):
        before = proxy.round_trips
        call()
        return proxy.round_trips - before

    for _ in range(2):
        save = lambda: remote.append("key/a", b"2", objects=objects, requires=[ID])  # noqa: E731
        assert trips(save) == 1
        assert trips(lambda: remote.append("key/a", b"3", after=remote_head(remote))) == 2
        assert trips(lambda: remote.read("key/a")) == 1
        assert trips(lambda: remote.get_objects(objects)) == 1
        assert trips(lambda: remote.put_objects(objects)) == 2
        for _ in range(30):
            remote.append("key/a", b"more")


def test_a_save_takes_one_round_trip_however_long_the_history_is(server, proxy):
    """Those with more than 16 kB of new objects first ask which exist: here one in 25."""

    class Talker(Checkpointable):
        def __init__(self):
            self.messages = Log()

    plain = "&sslmode=disable&gssencmode=disable"
    url = server.url(server.new_schema(), port=proxy.port, more=plain)
    talker = Talker()
    with CheckpointManager(url) as manager:
        counts = []
        for number in range(80):
            talker.messages.append({"role": "user", "content": f"{number} " * 400})
            before = proxy.round_trips
            manager.save("k", talker)
            counts.append(proxy.round_trips - before)
    few = [count for count in counts[2:] if count == 1]
    assert (counts[1], len(few) >= 70, max(counts[2:]) <= 3) == (2, True, True), counts


def remote_head(backend):
    return backend.read("key/a", limit=1, newest_first=True)[0].seq


@pytest.mark.parametrize("how", ["before", "after", "late"])
@pytest.mark.parametrize("after", [None, 1])
@pytest.mark.parametrize("stream", ["key/a", "key/new"])
def test_a_commit_whose_reply_is_lost(remote, proxy, how, after, stream):
    """Neither a duplicate nor a hole, and no conflict with itself."""
    if after is not None and stream == "key/new":
        after = 0
    expected = 1 if stream == "key/new" else 2
    proxy.lose = how
    assert remote.append(stream, b"mine", after=after, objects={"cd" * 32: b"y"}) == expected
    assert proxy.lost == 1
    found = remote.read(stream)
    assert [entry.data for entry in found if entry.data == b"mine"] == [b"mine"]
    assert [entry.seq for entry in found] == list(range(1, expected + 1))
    assert remote.append(stream, b"next") == expected + 1


@pytest.mark.parametrize("how", ["before", "after"])
def test_other_writes_whose_reply_is_lost(remote, proxy, how):
    proxy.lose = how
    remote.put_objects({"cd" * 32: b"y"})
    assert remote.get_objects(["cd" * 32]) == {"cd" * 32: b"y"}
    proxy.lose = how
    remote.remove("key/a", [1])
    assert remote.read("key/a") == []
    proxy.lose = how
    with pytest.raises(StorageError, match="Whether it was committed is unknown") as caught:
        remote.delete_objects([ID])
    assert caught.value.retryable
    assert proxy.lost == 3


@pytest.mark.parametrize("after", [None, 1])
def test_a_late_statement_stores_nothing_after_its_append_has_failed(server, remote, proxy, after):
    """The retry finds a required object missing. Then the object is there, and the statement."""
    other = PostgresBackend(remote.url.replace(f":{proxy.port}", f":{server.port}"))
    failed, done = threading.Event(), threading.Event()

    def lose(client, server, data):
        proxy.lose = None
        other.delete_objects([ID])
        client.close()
        assert failed.wait(60)
        server.sendall(data)
        server.recv(1)
        done.set()

    proxy.lose_commit, proxy.lose = lose, "late"
    with pytest.raises(MissingObjectsError):
        remote.append("key/a", b"mine", after=after, requires=[ID])
    other.put_objects({ID: b"x"})
    failed.set()
    assert done.wait(60)
    assert [entry.data for entry in other.read("key/a")] == [b"1"]
    assert remote.append("key/a", b"next", after=1) > 1
    other.close()


def test_an_append_that_is_not_as_expected_takes_the_other_way(server, remote, monkeypatch):
    """Another process was first; too many bytes; a function that a dump of tables does not have."""
    with closing(PostgresBackend(remote.url)) as other:
        assert other.append("key/a", b"2") == 2
        assert remote.append("key/a", b"3", requires=[ID]) == 3
        with pytest.raises(ConflictError, match="is 3, expected 2"):
            other.append("key/a", b"4", after=2)
        other.remove("key/a", [3])
        with pytest.raises(ConflictError, match="is 2, expected 3"):
            remote.append("key/a", b"4", after=3)
    with monkeypatch.context() as patch:
        patch.setattr("agent_checkpoint.backends.postgres._BATCH_BYTES", 4)
        many = {f"{number:064x}": b"abc" for number in range(5)}
        assert remote.append("key/a", b"4", objects=many) == 4
        assert remote.missing_objects(many) == set()
    with pytest.raises(MissingObjectsError):
        remote.append("key/a", b"5", objects={"cd" * 32: b"y"}, requires=["ef" * 32])
    assert remote.missing_objects(["cd" * 32]) == {"cd" * 32}
    objects = {"cd" * 32: b"y"}
    assert remote.append("key/a", b"5", objects=objects, requires=["cd" * 32]) == 5
    (found,) = server.execute(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = %s::regnamespace",
        (schema_of(remote),),
    )
    server.execute(f"DROP FUNCTION {found[0]}")
    assert [remote.append("key/a", b"more") for _ in range(2)] == [6, 7]


def test_an_entry_that_is_not_the_one_that_was_written(server, remote):
    """As after the server was set back to an earlier state, and another process went on."""
    schema = schema_of(remote)
    server.execute(f"UPDATE {schema}.entries SET write_id = gen_random_uuid(), data = 'other'")
    with pytest.raises(ConflictError, match="set back"):
        remote.append("key/a", b"2", after=1)
    assert [entry.data for entry in remote.read("key/a")] == [b"other"]
    assert remote.append("key/a", b"2", after=1) == 2


def test_a_commit_that_cannot_be_found_out_about(server, remote, proxy):
    """The entry was stored, and removed by another process before the retry."""
    other = PostgresBackend(remote.url.replace(f":{proxy.port}", f":{server.port}"))
    forward = proxy.lose_commit

    def lose(*arguments):
        forward(*arguments)
        other.remove("key/a", [2])

    proxy.lose_commit = lose
    proxy.lose = "after"
    with pytest.raises(StorageError, match="is unknown") as caught:
        remote.append("key/a", b"mine")
    assert caught.value.retryable
    assert caught.value.outcome_unknown
    assert remote.append("key/a", b"next") == 3
    other.close()


def test_the_server_goes_away_in_a_commit_and_stays_away(remote, proxy, monkeypatch):
    monkeypatch.setattr("agent_checkpoint.backends.postgres_connections._RETRY_SECONDS", 0.3)
    forward = proxy.lose_commit

    def lose(*arguments):
        proxy.close()
        proxy.target = ("127.0.0.1", postgres_server.free_port())
        forward(*arguments)

    proxy.lose_commit = lose
    proxy.lose = "after"
    with pytest.raises(CheckpointError, match="is unknown") as caught:
        remote.append("key/a", b"mine")
    assert caught.value.retryable
    assert caught.value.outcome_unknown


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("after", [None, 1])
def test_a_retry_after_the_server_comes_back(remote, proxy, monkeypatch, how, after):
    """With a condition the retry finds out about the lost commit; without one it does not guess."""
    monkeypatch.setattr("agent_checkpoint.backends.postgres_connections._RETRY_SECONDS", 0.1)
    forward, target = proxy.lose_commit, proxy.target

    def lose(*arguments):
        proxy.target = ("127.0.0.1", postgres_server.free_port())
        forward(*arguments)

    def come_back(_):
        proxy.target = target

    proxy.lose_commit = lose
    proxy.lose = how
    retrying = RetryBackend(remote, sleep=come_back)
    stored = [b"1", b"mine"]
    if after is None:
        with pytest.raises(StorageError) as caught:
            retrying.append("key/a", b"mine")
        assert caught.value.outcome_unknown
        come_back(0)
        stored = stored if how == "after" else [b"1"]
    else:
        assert retrying.append("key/a", b"mine", after=after) == 2
    assert [entry.data for entry in remote.read("key/a")] == stored


def test_the_example_of_the_how_to_page(url, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "postgresql.md"
    blocks = re.findall(r"^```(?:python|text)\n(.*?)^```", page.read_text(), re.M | re.S)
    source, output, *_ = blocks  # the others are for a person
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env={**os.environ, "STORE": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (output, "")
    with CheckpointManager(url) as manager:
        assert manager.list_keys() == ["session_1"]
