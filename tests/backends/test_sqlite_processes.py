"""Several processes on one SQLite store, and some that die."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from agent_checkpoint.backends.sqlite import SQLiteBackend

LONGEST_WAIT = 120
PROCESSES = 8

WRITER = """
import sys
from agent_checkpoint.backends.sqlite import SQLiteBackend
path, name, count, stays_open = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "open"
backend = SQLiteBackend(path)
sys.stdin.readline()
for number in range(count):
    seq = backend.append("key/shared", f"{name} {number}".encode() * 50)
    print(seq, flush=True)
    backend.read("key/shared", limit=1, newest_first=True)
    if number % 5 == 4:
        backend.remove("key/shared", [seq])
    if not stays_open:
        backend.close()  # the last one to close deletes the log, under the others' hands
"""


def start(source, *arguments):
    command = [sys.executable, "-c", source, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    ("stays_open", "each"), [("open", 40), pytest.param("closes", 30, marks=pytest.mark.slow)]
)
def test_processes_append_to_one_stream(tmp_path, stays_open, each):
    """Nobody is told that the database is locked, and what was acknowledged is there."""
    writers = [start(WRITER, tmp_path, name, each, stays_open) for name in range(PROCESSES)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    told = []
    for writer in writers:
        output, errors = writer.communicate(timeout=LONGEST_WAIT)
        assert writer.returncode == 0, errors
        numbers = [int(line) for line in output.split()]
        assert numbers == sorted(numbers)
        told.append(numbers)
    everything = sorted(number for numbers in told for number in numbers)
    assert everything == list(range(1, PROCESSES * each + 1))
    removed = {number for numbers in told for number in numbers[4::5]}
    backend = SQLiteBackend(tmp_path)
    found = backend.read("key/shared")
    assert [entry.seq for entry in found] == [n for n in everything if n not in removed]
    for name, numbers in enumerate(told):
        mine = {entry.seq for entry in found if entry.data.startswith(b"%d " % name)}
        assert mine == set(numbers) - removed
    backend.close()


HOLDER = """
import os, sys
from agent_checkpoint.backends.sqlite import SQLiteBackend
backend = SQLiteBackend(sys.argv[1])
backend.append("key/a", b"acknowledged")
def held(where):
    print(where, flush=True)
    sys.stdin.read()
if sys.argv[2] == "lock":
    with backend._connections.write_lock():
        held("lock")
elif sys.argv[2] == "transaction":
    with backend._connections.write_lock(), backend._connections.transaction() as db:
        db.execute("DELETE FROM entries")
        db.execute("PRAGMA cache_spill=1")
        held("transaction")
elif sys.argv[2] == "sweep":
    backend.put_objects({"ab" * 32: b"object"})
    def ids():
        yield "ab" * 32
        held("sweep")
    backend.delete_objects(ids())
else:
    with backend._connections.read_connection() as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM entries").fetchone()
        held("reading")
"""


@pytest.mark.parametrize("what", ["lock", "transaction", "sweep", "reading"])
def test_a_process_that_is_killed_holding_something_stops_nobody(tmp_path, what):
    holder = start(HOLDER, tmp_path, what)
    assert holder.stdout.readline() == f"{what}\n"
    waiting = SQLiteBackend(tmp_path)
    assert [entry.data for entry in waiting.read("key/a")] == [b"acknowledged"]
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate(timeout=LONGEST_WAIT)
    started = time.monotonic()
    assert waiting.append("key/a", b"next") == 2
    assert time.monotonic() - started < 30
    waiting.close()
    again = SQLiteBackend(tmp_path)
    assert [entry.data for entry in again.read("key/a")] == [b"acknowledged", b"next"]
    if what == "sweep":
        assert again.get_objects(["ab" * 32]) == {"ab" * 32: b"object"}
    again.scrub()
    again.close()


def test_a_log_removed_between_two_looks_is_not_refused(tmp_path, monkeypatch):
    backend = SQLiteBackend(tmp_path)
    backend.append("key/a", b"1")
    backend.close()
    log = tmp_path / "store.db-wal"
    log.touch()
    lstat = os.lstat

    def lstat_then_remove(path, **options):
        status = lstat(path, **options)
        if os.fspath(path) == str(log):
            log.unlink()
        return status

    monkeypatch.setattr(os, "lstat", lstat_then_remove)
    with closing(SQLiteBackend(tmp_path)) as backend:
        assert [entry.data for entry in backend.read("key/a")] == [b"1"]
