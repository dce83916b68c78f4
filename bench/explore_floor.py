"""The floor of P15: sixteen trials by direct calls of the system and SQLite, nothing of ours.

    python -m bench.explore_floor WORKSPACE DIRECTORY TRIALS

Each line of the input asks for one run: of one trial, and of many at once. The answer is a line
with the nanoseconds until the last strategy is called, as in `bench.strategy`. A trial does what
its guarantees ask for, and no more:

- a durable record of its private directory, before that is made, for the clean-up after a kill;
- a process, forked from this one, which has loaded what a trial needs, with a session of its own;
- a mount namespace with an overlay over the workspace, at the original path;
- the module of the strategy, loaded in there;
- three durable commits before the strategy, each under the lock of the writers and with the digest
  of its entry: the key of the fork, its opening, its epoch in the ledger; and one after it, the
  last checkpoint; then the result, as a file;
- when it has ended: its process group is killed, nobody else may be in its mount namespace, and its
  directories and the record are removed.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 0x4000, 0x80000
_ENTRY_BYTES = 700
"""About the size of an entry of a checkpoint without state."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Answer each line of the input with the times of one run."""
    workspace, directory, trials = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    directory.mkdir(parents=True)
    with _open(directory) as db:
        db.execute("CREATE TABLE entries (stream, seq, data, UNIQUE (stream, seq))")
    for _ in sys.stdin:
        one = _until_last(workspace, directory, 1)
        many = _until_last(workspace, directory, trials)
        print(json.dumps({"one": one, "beyond": (many - one) / (trials - 1)}), flush=True)
    return 0


def _until_last(workspace: Path, directory: Path, trials: int) -> float:
    began = time.time()
    running = {}
    for _ in range(trials):
        private = directory / os.urandom(8).hex()
        record = private.with_suffix(".json")
        fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, json.dumps({"owner": os.getpid(), "private": str(private)}).encode())
        os.fsync(fd)
        os.close(fd)
        private.mkdir()
        pid = os.fork()
        if pid == 0:
            try:
                _run(workspace, directory, private)
            finally:
                os._exit(1)
        running[pid] = private
    called = []
    while running:
        pid, _ = os.waitpid(-1, 0)
        private = running.pop(pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _check_alone(private.name)
        called.append(json.loads((private / "result").read_text())["at"])
        shutil.rmtree(private)
        private.with_suffix(".json").unlink()
    return 1e9 * (max(called) - began)


def _run(workspace: Path, directory: Path, private: Path) -> None:
    os.setsid()
    upper, work = private / "upper", private / "work"
    upper.mkdir()
    work.mkdir()
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    options = f"lowerdir={workspace},upperdir={upper},workdir={work},index=off,volatile"
    place, name = os.fsencode(workspace), private.name.encode()
    _call("mount", name, place, b"overlay", _MS_NOSUID | _MS_NODEV, options.encode())
    os.chdir(workspace)
    strategy = importlib.import_module("bench.strategy").tell_time
    with _open(directory) as db:
        for stream in (private.name, private.name, "ledger"):  # the fork, its opening, its epoch
            _commit(db, directory, stream)
        found: dict[str, Any] = strategy(None)
        _commit(db, directory, private.name)  # the end of the trial
    (private / "result").write_text(json.dumps(found))
    os._exit(0)


def _open(directory: Path) -> sqlite3.Connection:
    db = sqlite3.connect(directory / "store.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _commit(db: sqlite3.Connection, directory: Path, stream: str) -> None:
    body = json.dumps({"stream": stream, "at": time.time_ns(), "text": "x" * _ENTRY_BYTES})
    entry = f"{body}{hashlib.sha256(body.encode()).hexdigest()}"
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        db.execute("BEGIN IMMEDIATE")
        newest = "SELECT coalesce(max(seq), 0) + 1 FROM entries WHERE stream = ?"
        (number,) = db.execute(newest, (stream,)).fetchone()
        db.execute("INSERT INTO entries VALUES (?, ?, ?)", (stream, number, entry))
        db.execute("COMMIT")


def _check_alone(name: str) -> None:
    """Look for processes in the mount namespace of a trial: only they see its mount."""
    here, wanted = os.readlink("/proc/self/ns/mnt"), name.encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{pid}/ns/mnt") == here:
                continue
            if wanted in Path(f"/proc/{pid}/mountinfo").read_bytes():
                raise AssertionError(f"Process {pid} is left in the namespace of a trial.")


def _call(function: str, *arguments: bytes | int | None) -> None:
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if getattr(_libc, function)(*passed) != 0:
        raise OSError(ctypes.get_errno(), function)


if __name__ == "__main__":
    sys.exit(main())
