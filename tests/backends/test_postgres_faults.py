"""PostgreSQL stores under load: many processes, a killed server, garbage collection, a pooler."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'agent-checkpoint[postgres]'")

import psycopg

from agent_checkpoint import CheckpointManager, KeepLatest, StorageError
from agent_checkpoint.backends.postgres import PostgresBackend
from agent_checkpoint.store.maintenance import gc as gc_module
from agent_checkpoint.testing.concurrency_tests import ConcurrencyTests, DeletionTests
from agent_checkpoint.testing.opener_tests import OpenerTests
from tests.backends import postgres_server, test_postgres
from tests.backends.full_disks import run, small_disk
from tests.backends.postgres_proxy import BadNetwork

LONGEST_WAIT = 300
KILLS = 20

SAVER = """
import sys
from pathlib import Path
from agent_checkpoint import CheckpointManager, StorageError
url, key, name, count, end = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
with CheckpointManager(url) as manager:
    sys.stdin.readline()
    for number in range(count):
        if end and Path(end[0]).exists():
            break
        state = {"shared": "x" * 3000, "own": f"{name} {number}", "big": [f"{number % 7}" * 2000]}
        while True:
            try:
                print(manager.save(key, state), number, flush=True)
                break
            except StorageError as error:
                if not error.retryable or "unknown" in str(error):
                    raise
"""


def start(url, key, name, count, *end):
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", SAVER, url, key, str(name), str(count), *map(str, end)],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def run_savers(url, keys, each, meanwhile=lambda savers: None, *, check_url=None):
    """Save from one process a key; check that exactly what was acknowledged is there."""
    savers = [start(url, key, name, each) for name, key in enumerate(keys)]
    for saver in savers:
        saver.stdin.write("go\n")
        saver.stdin.flush()
    meanwhile(savers)
    acknowledged = {}
    for saver, key in zip(savers, keys):
        output, errors = saver.communicate(timeout=LONGEST_WAIT)
        assert saver.returncode == 0, errors
        ids = [line.split()[0] for line in output.splitlines()]
        assert len(ids) == each
        acknowledged.setdefault(key, []).extend(ids)
    check(check_url or url, acknowledged)


def check(url, acknowledged):
    """Check that a store has exactly these checkpoints, by key, without a hole or a duplicate."""
    with CheckpointManager(url) as manager:
        for key, ids in acknowledged.items():
            stored = [row["id"] for row in manager.history(key)]
            assert len(stored) == len(set(stored))
            assert sorted(stored) == sorted(ids)
            numbers = [int(one.rpartition("-")[2]) for one in stored]
            assert numbers == list(range(len(ids), 0, -1))
        assert manager.verify().ok


@pytest.mark.parametrize(
    ("processes", "each"),
    [(3, 8), pytest.param(8, 200, marks=[pytest.mark.slow, pytest.mark.long])],
)
@pytest.mark.parametrize("how", ["one key", "a key each"])
def test_processes_save(server, how, processes, each):
    keys = [f"k{number if how == 'a key each' else ''}" for number in range(processes)]
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"
    before = server.execute(query)
    run_savers(server.url(server.new_schema()), keys, each)
    assert server.execute(query) == before


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("objects_of_a_sweep", [1, 1000])
def test_gc_and_deletion_beside_savers(server, objects_of_a_sweep, monkeypatch):
    """Savers reuse objects that a garbage collection is about to delete, in one sweep or many."""
    monkeypatch.setattr(gc_module, "_SWEEP_OBJECTS", objects_of_a_sweep)
    url = server.url(server.new_schema())

    def collect(savers):
        with CheckpointManager(url) as manager:
            while any(saver.poll() is None for saver in savers[1:]):
                manager.save("doomed", {"shared": "x" * 3000, "big": ["3" * 2000]})
                manager.delete("doomed")
                manager.gc()

    run_savers(url, ["k", "k", "other"], 60, collect)


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_server_loses_nothing_acknowledged(tmp_path):
    """Killed 20 times, each time after every saver has gone on."""
    server = postgres_server.started()
    savers = []
    try:
        url, end = server.url(server.new_schema()), tmp_path / "end"
        savers = [start(url, "k", name, 100_000, end) for name in range(3)]
        for saver in savers:
            saver.stdin.write("go\n")
            saver.stdin.flush()
        lines = []
        for kill in range(KILLS + 1):
            for saver in savers:
                lines += [saver.stdout.readline() for _ in range(2)]
                assert lines[-1], saver.stderr.read()
            if kill < KILLS:
                server.kill_and_restart()
        end.touch()
        for saver in savers:
            lines += saver.stdout.readlines()  # `communicate` would miss what `readline` buffered
            _, errors = saver.communicate(timeout=LONGEST_WAIT)
            assert saver.returncode == 0, errors
        check(url, {"k": [line.split()[0] for line in lines]})
    finally:
        for saver in savers:
            saver.kill()
            saver.communicate()
        server.stop()


@pytest.mark.parametrize(
    ("seed", "processes", "each"),
    [
        (0, 1, 200),
        *(
            pytest.param(seed, 3, 150, marks=[pytest.mark.slow, pytest.mark.long])
            for seed in range(1, 5)
        ),
    ],
)
@pytest.mark.parametrize("faults", [("drop", "cut", "delay"), ("repeat",)], ids=["lost", "repeat"])
def test_a_network_that_loses_delays_and_repeats_replies(server, faults, seed, processes, each):
    schema = server.new_schema()
    with closing(BadNetwork(server.port, seed, faults)) as network:
        plain = "&sslmode=disable&gssencmode=disable"
        url = server.url(schema, port=network.port, more=plain)
        keys = ["own", "k", "k"][:processes]
        run_savers(url, keys, each, check_url=server.url(schema))
        assert sum(network.done.values()) > 2


@pytest.fixture
def full_tablespace(server):
    """The directory of a tablespace on a disk of 24 MB. The write-ahead log is elsewhere."""
    place = Path(server.directory) / "small"
    place.mkdir()
    with small_disk("tmpfs", place, 24) as disk:
        for folder in (place, disk):
            os.chown(folder, 65534, 65534)
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        yield disk
        server.execute("DROP TABLESPACE small")
    shutil.rmtree(place)


def test_a_full_disk_of_the_server(server, full_tablespace):
    """One clear error; nothing that was acknowledged is lost; deleting and saving go on."""
    schema = server.new_schema()
    options = "&options=-cdefault_tablespace%3Dsmall"
    acknowledged = []
    try:
        with CheckpointManager(server.url(schema, more=options)) as manager:
            with pytest.raises(StorageError, match="Free some space on the server") as caught:
                for number in range(100):
                    state = {"n": number, "data": os.urandom(1 << 20)}
                    acknowledged.append(manager.save("k", state))
            assert (caught.value.no_room, caught.value.retryable) == (True, False)
            assert caught.value.__cause__.sqlstate == "53100"
            assert len(acknowledged) > 5
            check(server.url(schema), {"k": acknowledged})
            assert manager.state_dict("k")["n"] == len(acknowledged) - 1
            manager.prune("k", KeepLatest(1))
            manager.gc()
            assert run("mount", "-o", "remount,size=48m", full_tablespace).returncode == 0
            manager.save("k", {"n": -1, "data": os.urandom(1 << 20)})
            assert manager.state_dict("k")["n"] == -1
    finally:
        server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.mark.parametrize("skew", [-86_400, 86_400])
def test_a_machine_whose_clock_is_a_day_off(server, monkeypatch, skew):
    """Order and parents follow the numbers of entries. gc refuses objects from the future."""
    url = server.url(server.new_schema())
    now, now_ns = time.time, time.time_ns
    with CheckpointManager(url) as here, CheckpointManager(url) as there:
        ids = [here.save("k", {"n": 0, "text": "a" * 5000})]
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: now() + skew)
            clock.setattr(time, "time_ns", lambda: now_ns() + skew * 10**9)
            ids.append(there.save("k", {"n": 1, "text": "b" * 5000}))
            there.save("doomed", {"text": "c" * 5000})
            there.delete("doomed")
        ids.append(here.save("k", {"n": 2, "text": "a" * 5000}))
        rows = here.history("k")
        assert [row["id"] for row in rows] == ids[::-1]
        assert [row["parents"] for row in rows] == [[ids[1]], [ids[0]], []]
        if skew > 0:
            with pytest.raises(StorageError, match="seconds in the future") as caught:
                here.gc()
            assert not caught.value.retryable
        assert here.gc(ignore_clock=skew > 0).objects >= 1
        assert [here.state_dict("k", one)["n"] for one in ids] == [0, 1, 2]
        assert here.verify().ok


STOPPED = """
import os, signal, sys
from agent_checkpoint.backends.postgres import PostgresBackend

backend = PostgresBackend(sys.argv[1], lock_timeout=2)

def ids():
    yield "ab" * 32
    print("locked", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

backend.delete_objects(ids())
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_stopped_gc_is_ended_by_the_server(server):
    """F19: savers behind it go on after half of its lock timeout, and it deletes nothing."""
    url = server.url(server.new_schema())
    with closing(PostgresBackend(url)) as backend:
        backend.append("key/a", b"1", objects={"ab" * 32: b"x"})
        command = [sys.executable, "-c", STOPPED, url]
        stopped = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with stopped:
            assert stopped.stdout.readline() == "locked\n"
            assert backend.append("key/a", b"2", requires=["ab" * 32]) == 2
            stopped.send_signal(signal.SIGCONT)
            _, errors = stopped.communicate(timeout=LONGEST_WAIT)
        assert stopped.returncode == 1
        assert "idle-in-transaction timeout" in errors
        assert backend.get_objects(["ab" * 32]) == {"ab" * 32: b"x"}


@pytest.mark.slow
@pytest.mark.long
def test_an_older_server():
    """The oldest version that was tried, if the machine has it."""
    older = [version for version in postgres_server.binaries() if version != "18"]
    server = postgres_server.started(older[-1] if older else "15")
    try:
        run_savers(server.url(server.new_schema()), ["k", "k"], 10)
    finally:
        server.stop()


# -- a pooler in transaction mode ----------------------------------------------------------------


@pytest.fixture(scope="module")
def pooler_port(server):
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer on this machine: apt-get install pgbouncer")
    port = postgres_server.free_port()
    settings = Path(server.directory) / "pgbouncer.ini"
    settings.write_text(
        "[databases]\n"
        # With auth_type = any, the user is set here.
        f"* = host=127.0.0.1 port={server.port} user=postgres dbname=postgres\n"
        "[pgbouncer]\n"
        "listen_addr = 127.0.0.1\n"
        f"listen_port = {port}\n"
        f"pidfile = {settings.with_suffix('.pid')}\n"
        "unix_socket_dir =\n"
        "auth_type = any\n"
        "pool_mode = transaction\n"
        "default_pool_size = 12\n"
    )
    settings.chmod(0o644)
    process = postgres_server.start_and_wait(
        [program, settings],
        lambda: psycopg.connect(server.url(port=port)).close(),
        Path(server.directory) / "pgbouncer.log",
    )
    yield port
    process.terminate()
    process.wait(60)


class PoolerHooks(test_postgres.RawRows):
    port = 0

    def make(self, place):
        return PostgresBackend(self.server.url(self.server.new_schema(), port=self.port))


@pytest.fixture(autouse=True, scope="module")
def use_server(server):
    PoolerHooks.server = server


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("behind_pooler")
class TestBehindPooler(PoolerHooks, ConcurrencyTests, DeletionTests, OpenerTests):
    pass


@pytest.fixture
def behind_pooler(pooler_port):
    PoolerHooks.port = pooler_port


def test_a_pooler_in_transaction_mode(server, pooler_port):
    """Consecutive transactions of a client run in different sessions of the server."""
    url = server.url(server.new_schema(), port=pooler_port)
    opened = [PostgresBackend(url) for _ in range(3)]
    for number in range(1, 31):
        assert opened[number % 3].append("key/a", b"x", objects={"ab" * 32: b"y"}) == number
    opened[0].delete_objects(iter(["ab" * 32]))
    assert opened[1].missing_objects(["ab" * 32]) == {"ab" * 32}
    assert len(opened[2].read("key/a")) == 30
    for backend in opened:
        backend.close()
    # Nothing is left in the sessions that the next client gets.
    with closing(PostgresBackend(url)) as backend:
        assert len(backend.read("key/a")) == 30
    with psycopg.connect(server.url(port=pooler_port), autocommit=True) as db:
        for setting in ("lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout"):
            assert db.execute(f"SHOW {setting}").fetchone() == ("0",)
        assert db.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
