"""The floors of P1 to P3, P5 and P14: what is left of a durable snapshot with SHA-256, in Python.

Two more floors of P2 are in `format_floor.py`: what the format takes, and the guarantees with it.

    python -m bench.workspaces.floors DIRECTORY DATABASE

A process of its own for P1 and P2, as ours is: a command a line comes in, a line of JSON goes out.
Every commit is of SQLite in WAL mode with synchronous=FULL, of one transaction.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import marshal
import os
import resource
import select
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from isal import isal_zlib

from bench.figures import timed
from bench.turns import serve
from bench.workspaces.copy_floor import CopyFloor
from bench.workspaces.first_floor import BackendFirstFloor, FirstFloor
from bench.workspaces.format_floor import (
    BackendFloor,
    FormatFloor,
    GuardedFloor,
    make_database,
)

ROW = 8192
PIECE = 1 << 20
"""Bytes of a row, where many are committed."""
BATCH = 1024
"""Objects of a transaction, and directories of a message."""
WATCHED = 0x00000FCE
"""inotify: modified, attributes, closed after writing, moved, created, deleted."""
ENTRY = struct.Struct("<HQB")
PROCESS = f"""\
import os, sys
root = os.open(sys.argv[1], os.O_RDONLY)
with open(sys.argv[3], "rb") as paths:
    for path in paths.read().split(b"\\0"):
        os.lstat(path, dir_fd=root)
import sqlite3
with sqlite3.connect(sys.argv[2]) as db:
    db.execute("PRAGMA synchronous=FULL")
    db.execute("INSERT INTO rows VALUES (?)", (os.urandom({ROW}),))
"""
BLOCK = 16 << 10
"""Bytes of the index that are hashed together."""
SERVED = f"""\
import gc, hashlib, json, os, sqlite3, sys, time
from agent_checkpoint.workspace.changes.served import changes_since
directory, database, index, changed = sys.argv[1:]
blocks = 5 + os.path.relpath(changed, directory).count("/")  # four are of the head
gc.collect()
cpu, begin = time.process_time_ns(), time.perf_counter_ns()
assert changes_since(os.open(directory, os.O_RDONLY), None), "the daemon does not answer"
places = [(index, {BLOCK} * number, {BLOCK}) for number in range(blocks)]
for path, at, size in [*places, (changed, 0, os.stat(changed).st_size)]:
    file = os.open(path, os.O_RDONLY)
    hashlib.sha256(os.pread(file, size, at)).digest()
    os.close(file)
with sqlite3.connect(database) as db:
    db.execute("PRAGMA synchronous=FULL")
    db.execute("INSERT INTO rows VALUES (?)", (os.urandom({ROW}),))
ns, cpu_ns = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
print(json.dumps(dict(ns=ns, cpu_ns=cpu_ns)))
"""


class Floor:
    """Reads, hashes and packs files, and commits random bytes."""

    def __init__(self, directory: str, database: str) -> None:
        walked = [(folder, names) for folder, _, names in os.walk(directory)]
        self.folders = [folder for folder, _ in walked]
        self.files = [os.path.join(folder, name) for folder, names in walked for name in names]
        self.directory, self.database = directory, database
        self.db = make_database(database)

    def first(self, size: int) -> dict[str, Any]:
        """Read, hash and pack all files in as many processes as cores, then commit `size` bytes."""
        cores = os.cpu_count() or 1
        shares = [self.files[number::cores] for number in range(cores)]
        rows = [os.urandom(min(PIECE, size - at)) for at in range(0, size, PIECE)]

        def work() -> None:
            children = [_fork(share) for share in shares]
            assert not any(os.waitpid(child, 0)[1] for child in children), "a process failed"
            self._commit(rows)

        return _taken(work)

    def whole(self) -> dict[str, Any]:
        """Watch, list and read all directories; store files and directories by their hashes.

        As many processes as cores list and lstat their share of the directories, read, hash and
        pack the files, and look at each again. This one watches the directories, stores the
        objects as they come, a batch a transaction, and builds the directories bottom-up; the last
        commit has these. Which directories there are is told beforehand. Nothing else is done: no
        rules, limits, hard links, notes, index of signatures, or check of what is stored.
        """
        cores = os.cpu_count() or 1
        shares = [self.folders[number::cores] for number in range(cores)]
        self.db.execute("CREATE TABLE objects (number INTEGER PRIMARY KEY, id BLOB UNIQUE, data)")
        libc = ctypes.CDLL(None)

        def work() -> None:
            watches = libc.inotify_init()
            for folder in self.folders:
                libc.inotify_add_watch(watches, os.fsencode(folder), WATCHED)
            found: dict[str, Any] = {}
            rows: dict[bytes, bytes] = {}
            for entries, objects in _answers([_start_lister(share) for share in shares]):
                found.update(entries)
                rows.update(objects)
                if len(rows) >= BATCH:
                    self._store(rows)
                    rows = {}
            rows.update(_directories(self.folders, found))
            self._store(rows)
            os.close(watches)

        return _taken(work)

    def first_guarded(self, tree: str, how: str) -> dict[str, Any]:
        """Take the first snapshot with all that is guaranteed; ours has the id `tree`, if known.

        `how` is `fast`, `plain` (compressed by zlib) or `backend` (stored by our backend).
        """
        database = Path(self.database).with_name(f"guarded-{how}.db")
        if how == "backend":
            guarded: FirstFloor = BackendFirstFloor(self.directory, database)
        else:
            packer = zlib if how == "plain" else isal_zlib
            guarded = FirstFloor(self.directory, database, packer.compress)
        found: list[str] = []
        taken = _taken(lambda: found.append(guarded.run()))
        assert found == [tree] or not tree, "it is another tree"
        return {**taken, "parts": guarded.parts}

    def _store(self, rows: dict[bytes, bytes]) -> None:
        with self.db as db:
            statement = "INSERT OR IGNORE INTO objects (id, data) VALUES (?, ?)"
            db.executemany(statement, sorted(rows.items()))
        self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def copy(self, target: str) -> dict[str, Any]:
        """Copy the directory to `target`."""
        floor = CopyFloor(self.directory)
        return _taken(lambda: floor.run(target))

    def snapshot(self, changed: str) -> dict[str, Any]:
        """Read and hash the changed file, and commit one row."""
        rows = [os.urandom(ROW)]

        def work() -> None:
            _hash([changed])
            self._commit(rows)

        return _taken(work)

    def watch(self) -> dict[str, Any]:
        """Make the floor of the format. Not timed."""
        self.format = FormatFloor(self.directory, f"{self.database}.objects")
        return {}

    def watch_guarded(self) -> dict[str, Any]:
        """Make the floors of the format with the guarantees. Not timed."""
        self.guarded = GuardedFloor(self.directory, f"{self.database}.guarded")
        self.backend = BackendFloor(self.directory, f"{self.database}.backend")
        return {}

    def format_snapshot(self) -> dict[str, Any]:
        """What the format takes."""
        return _taken(self.format.snapshot)

    def guarded_snapshot(self) -> dict[str, Any]:
        """What the format and the guarantees take."""
        return _taken(self.guarded.snapshot)

    def backend_snapshot(self) -> dict[str, Any]:
        """What the format and the guarantees take, stored by our backend."""
        return _taken(self.backend.snapshot)

    def _commit(self, rows: list[bytes]) -> None:
        with self.db as db:
            db.executemany("INSERT INTO rows VALUES (?)", ((row,) for row in rows))


class LstatFloor:
    """P3: lstat every known entry in a new Python, and commit one row of a database.

    The paths are in a file; nothing is compared, and no directory is listed.
    """

    def __init__(
        self, directory: Path, database: Path, modules: list[str], environment: dict[str, str]
    ) -> None:
        """Make the database and the list of paths; `modules` are those that ours loads."""
        make_database(database).close()
        paths = database.with_suffix(".paths")
        entries = (entry.relative_to(directory) for entry in directory.rglob("*"))
        paths.write_bytes(b"\0".join([b".", *map(os.fsencode, entries)]))
        self._arguments = [str(directory), str(database), str(paths)]
        self._environment = environment
        self._modules = modules

    def bare(self) -> None:
        """In a bare Python."""
        command = [sys.executable, "-I", "-S", "-c", PROCESS, *self._arguments]
        subprocess.run(command, check=True)

    def with_modules(self) -> None:
        """In a Python that imports the modules of the standard library that ours needs."""
        self._run(
            [each for each in self._modules if each.partition(".")[0] in sys.stdlib_module_names]
        )

    def with_own_modules(self) -> None:
        """In a Python that imports all modules that ours loads."""
        self._run(self._modules)

    def _run(self, modules: list[str]) -> None:
        command = [sys.executable, "-c", f"import {', '.join(modules)}\n{PROCESS}"]
        command += self._arguments
        subprocess.run(command, check=True, env=self._environment)


def ask_and_commit(
    directory: Path, database: Path, index: Path, changed: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """P14: in a new process, ask the daemon what changed, read and hash the head of the index,
    which has the hash of each block, a block of it per directory above the changed file, and that
    file, and commit one row of a database that is there. Neither directories nor the index are
    written.
    """
    command = [sys.executable, "-c", SERVED, *map(str, (directory, database, index, changed))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _fork(share: list[str]) -> int:
    child = os.fork()
    if not child:
        failed = 1
        try:
            _hash(share, pack=True)
            failed = 0
        finally:
            os._exit(failed)
    return child


def _hash(paths: list[str], *, pack: bool = False) -> None:
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        data = os.read(file, os.fstat(file).st_size)
        hashlib.sha256(data).digest()
        if pack:
            isal_zlib.compress(data, 1)
        os.close(file)


def _start_lister(share: list[str]) -> IO[bytes]:
    """Start a process that reads directories; return the pipe with its answers."""
    ours, theirs = os.pipe()
    if not os.fork():
        failed = 1
        try:
            gc.disable()
            with open(theirs, "wb") as answers:
                for start in range(0, len(share), BATCH // 16):
                    objects: dict[bytes, bytes] = {}
                    some = share[start : start + BATCH // 16]
                    data = marshal.dumps(({each: _list(each, objects) for each in some}, objects))
                    answers.write(len(data).to_bytes(8, "little") + data)
                    answers.flush()
            failed = 0
        finally:
            os._exit(failed)
    os.close(theirs)
    return open(ours, "rb")


def _list(folder: str, objects: dict[bytes, bytes]) -> list[Any]:
    """The entries of a directory: name, mode, size, and the hash unless it is a directory."""
    with os.scandir(folder) as entries:
        found = sorted((os.fsencode(entry.name), entry) for entry in entries)
    rows: list[Any] = []
    for name, entry in found:
        status = entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            rows.append((name, status.st_mode, 0, b""))
            continue
        file = os.open(entry.path, os.O_RDONLY)
        before = os.fstat(file)
        data = os.read(file, before.st_size + 1)
        assert os.fstat(file) == before, "a file changed"
        os.close(file)
        digest = hashlib.sha256(data).digest()
        objects[digest] = isal_zlib.compress(data, 1)
        rows.append((name, status.st_mode, len(data), digest))
    return rows


def _answers(pipes: list[IO[bytes]]) -> Iterator[Any]:
    while pipes:
        for pipe in select.select(pipes, [], [])[0]:
            length = pipe.read(8)
            if length:
                yield marshal.loads(pipe.read(int.from_bytes(length, "little")))
            else:
                pipes.remove(pipe)
                pipe.close()
                assert os.wait()[1] == 0, "a process failed"


def _directories(folders: list[str], found: dict[str, Any]) -> Iterator[tuple[bytes, bytes]]:
    """The objects of all directories, of which each comes before those in it."""
    digests: dict[str, bytes] = {}
    for folder in reversed(folders):
        data = b"".join(
            [
                ENTRY.pack(mode & 0xFFFF, size, len(name))
                + name
                + (digest or digests[os.path.join(folder, os.fsdecode(name))])
                for name, mode, size, digest in found[folder]
            ]
        )
        digests[folder] = digest = hashlib.sha256(data).digest()
        yield digest, isal_zlib.compress(data, 1) if len(data) >= 128 else data


def _taken(work: Any) -> dict[str, int]:
    """The wall and processor nanoseconds of one call, with those of its child processes."""
    gc.collect()
    before = _processor_seconds()
    nanoseconds = timed(work)
    return {"ns": nanoseconds, "cpu_ns": round((_processor_seconds() - before) * 1e9)}


def _processor_seconds() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(serve(Floor(*sys.argv[1:])))
