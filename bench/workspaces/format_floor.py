"""Two floors of P2: one changed file in this format, without and with the guarantees of a save.

Straight-line Python without layers, options or messages. `FormatFloor` does what the format takes:
the inotify queue, a locked root, each directory opened without following links, the file read under
the check for writers, blob and directory objects rebuilt, hashed twice (id, object) and packed, the
record, the entry, and one durable commit under a lock into tables like ours, with as many objects
as there are files; the last root must still be there. What is known of the directories changes
only after the commit.

`GuardedFloor` adds what a save promises beyond the format, each as one or a few calls:

- other threads wait, and a fork of the process waits while the database is in use;
- no unfinished restore is in the directory; it is the same directory, under the same mounts; it is
  no store, and ours is not in it; its rule file is looked for;
- the file has the same signature after it was read, and the same content if it is too young;
- the key is claimed: the identity of the directory, and the user's secret, are those of the seal;
- the disk has space, and its reserve is there;
- the database, its log and its shared memory are those that were opened, before the transaction
  and before its commit; gate and lock are taken in order, and are the files at their paths;
- the base of each new directory object is below the last root, which vouches for what both share;
- the expected number is that of the head; the entry has a checksum that binds it to its number.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import hmac
import json
import os
import select
import signal
import sqlite3
import struct
import termios
import threading
import time
import zlib
from pathlib import Path
from typing import Any

from isal import isal_zlib

from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.sqlite_connections import SCHEMA

TABLES = ("CREATE TABLE rows (data BLOB)",)
INSERT_OBJECT = "INSERT OR IGNORE INTO objects (id, size, ts, data) VALUES (?, ?, ?, ?)"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
YOUNG_NS = 20_000_000
"""A file that was changed later than this before it was read is read twice."""

Tree = tuple[list[str], list[bytes], list[bytes], list[bytes]]
"""Of each entry: its name, its bytes for the id, its bytes in the object, and the reference."""


class FormatFloor:
    """What the format takes."""

    def __init__(self, directory: str, database: str) -> None:
        """Watch every directory and know its entries; make the database. Not timed.

        Ids of files that are never changed are random: nothing depends on them.
        """
        libc = ctypes.CDLL(None)
        self.directory, self.database = directory, database
        self.queue = libc.inotify_init1(os.O_NONBLOCK)
        self.watched: dict[int, str] = {}
        self.trees: dict[str, Tree] = {}
        self.files = 0
        for folder, folders, names in os.walk(directory):
            watch = libc.inotify_add_watch(self.queue, os.fsencode(folder), 0xFCE)
            assert watch > 0, "fs.inotify.max_user_watches is too small"
            self.watched[watch] = folder
            self.files += len(names)
            names = sorted(folders + names)
            heads = [_head(name, 0) for name in names]
            ids = [os.urandom(32) for _ in names]
            named = [head + each for head, each in zip(heads, ids)]
            stored = [h + i if n in folders else h for n, h, i in zip(names, heads, ids)]
            self.trees[folder] = names, named, stored, ids
        self.lock = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT)
        self.db = make_database(database, SCHEMA)
        rows = ((os.urandom(32), 100, 0.0, bytes(100)) for _ in range(self.files + len(self.trees)))
        self.db.executemany(INSERT_OBJECT, rows)
        self.db.execute("INSERT INTO streams VALUES (1, x'00', 1)")
        self.db.execute("INSERT INTO entries VALUES (1, 1, 0, x'00')")
        self.db.commit()
        self.db.isolation_level = None
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.db.execute("PRAGMA wal_autocheckpoint=128")
        self.last = self.db.execute("SELECT id FROM objects LIMIT 1").fetchone()[0]

    def snapshot(self) -> None:
        """Capture and commit the one file that was changed since the last call."""
        folder, name = self.changed_file()
        root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(root, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.lstat(self.directory)
        at = self.opened(root, folder)
        os.stat(name, dir_fd=at, follow_symlinks=False)
        file = os.open(name, FILE, dir_fd=at)
        found = os.fstat(file)
        self.check_writers(file)
        plain = b"b\0" + os.read(file, found.st_size + 1)
        os.fstat(file)
        for fd in (file, at, root):
            os.close(fd)
        rows, entry, trees = self.objects(folder, name, plain)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        assert db.execute("SELECT 1 FROM objects WHERE id = ?", (self.last,)).fetchone()
        (last,) = db.execute("SELECT last FROM streams WHERE name = x'00'").fetchone()
        db.executemany(INSERT_OBJECT, rows)
        db.execute("UPDATE streams SET last = ? WHERE id = 1", (last + 1,))
        db.execute("INSERT INTO entries VALUES (1, ?, 0, ?)", (last + 1, entry))
        db.execute("COMMIT")
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        self.trees.update(trees)
        self.last = rows[-1][0]

    def changed_file(self) -> tuple[str, str]:
        """The directory and the name in the queue."""
        (size,) = struct.unpack("i", fcntl.ioctl(self.queue, termios.FIONREAD, bytes(4)))
        events = os.read(self.queue, size)
        start = 0
        while True:  # until a file that is known: Watchman creates others in the root
            watch, _, _, length = struct.unpack_from("iIII", events, start)
            folder = self.watched[watch]
            name = events[start + 16 : start + 16 + length].rstrip(b"\0").decode()
            if name in self.trees[folder][0]:
                return folder, name
            start += 16 + length

    def opened(self, root: int, folder: str) -> int:
        """The directory, opened one component after the other."""
        at = os.dup(root)
        for part in os.path.relpath(folder, self.directory).split("/"):
            inner = os.open(part, DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        return at

    @staticmethod
    def check_writers(file: int) -> None:
        """Take a lease, which fails if somebody has the file open for writing."""
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def objects(
        self, folder: str, name: str, plain: bytes, claim: dict[str, str] | None = None
    ) -> tuple[list[tuple[bytes, int, float, bytes]], bytes, dict[str, Tree]]:
        """The rows of the new objects, the entry, and the directories as they are then."""
        now = time.time()
        ref = identity = hashlib.sha256(plain).digest()
        packed = isal_zlib.compress(plain, 1)
        rows = [(ref, len(packed), now, packed)]
        trees = {}
        size = len(plain) - 2
        is_file = True
        while True:
            names, named, stored, refs = self.trees[folder]
            named, stored, refs = named[:], stored[:], refs[:]
            place = names.index(name)
            head = _head(name, size if is_file else 0)
            named[place], refs[place] = head + identity, ref
            stored[place] = head if is_file else head + identity
            identity = hashlib.sha256(b"tree\0" + b"".join(named)).digest()
            plain = b"d" + bytes(len(refs) // 8 + 2) + b"".join(refs) + b"".join(stored)
            ref = hashlib.sha256(plain).digest()
            packed = isal_zlib.compress(plain, 1)
            rows.append((ref, len(packed), now, packed))
            trees[folder] = names, named, stored, refs
            if folder == self.directory:
                break
            folder, name = os.path.split(folder)
            is_file = False
        record = {"id": identity.hex(), "files": self.files, "ignore": [], "notes": []}
        plain = b"r\1\0" + ref + json.dumps(record).encode()
        top = hashlib.sha256(plain).digest()
        rows.append((top, len(plain), now, plain))
        text = {"ts": now, "parent": self.last.hex(), "object": top.hex(), "claim": claim}
        entry = json.dumps(text).encode()
        return rows, entry + hashlib.sha256(entry).hexdigest().encode(), trees


class GuardedFloor(FormatFloor):
    """What the format takes, and the guarantees."""

    def __init__(self, directory: str, database: str) -> None:
        super().__init__(directory, database)
        self.threads = threading.RLock()
        self.forks = threading.Condition()
        self.in_use = 0
        mounts = os.open("/proc/self/mountinfo", os.O_RDONLY)
        self.mounts = select.poll()
        self.mounts.register(mounts, select.POLLPRI)
        self.root = _identity(os.lstat(directory))
        place = os.path.dirname(database)
        self.own = [place, os.path.join(place, "index")]
        os.makedirs(self.own[1], exist_ok=True)
        self.secret, self.reserve = f"{database}.secret", f"{database}.reserve"
        for path in (self.secret, self.reserve):
            Path(path).write_bytes(os.urandom(64))
        self.gate = os.open(f"{database}.gate", os.O_RDWR | os.O_CREAT)
        self.locks = [(self.gate, f"{database}.gate"), (self.lock, f"{database}.lock")]
        self.open = [f"{database}{end}" for end in ("", "-wal", "-shm")]
        self.known = [_identity(os.stat(path)) for path in self.open]
        self.head = 1
        self.bases = {folder: os.urandom(32) for folder in self.trees}
        self.below = set(self.bases.values())
        """The objects of directories below the last root."""
        self.claims: dict[tuple[Any, ...], dict[str, str]] = {}

    def snapshot(self) -> None:
        """Capture and commit the one file that was changed since the last call."""
        with self.threads:
            root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(root, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _is_absent(".agent-checkpoint-restore", root)
            folder, name = self.changed_file()
            if self.mounts.poll(0):  # something was mounted: elsewhere, we hope
                assert f" {self.directory}" not in Path("/proc/self/mountinfo").read_text()
            assert _identity(os.lstat(self.directory)) == self.root
            own = {_identity(os.stat(path)) for path in self.own}
            assert _identity(os.fstat(root)) not in own
            _is_absent("store.db", root)
            assert not os.access(".lock", os.F_OK, dir_fd=root)
            at = self.opened(root, folder)
            _is_absent(".checkpointignore", root)
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            assert _identity(found) not in own
            plain = self.stable_content(name, at)
            os.close(at)
            claim = self.claim()
            fcntl.flock(root, fcntl.LOCK_UN)
            os.close(root)
            rows, entry, trees = self.objects(folder, name, plain, claim)
            self.commit(rows, entry, [self.bases[folder] for folder in trees])
            for row, folder in zip(rows[1:], trees):
                self.below.remove(self.bases[folder])
                self.bases[folder] = row[0]
                self.below.add(row[0])
            self.trees.update(trees)
            self.last = rows[-1][0]

    def stable_content(self, name: str, at: int) -> bytes:
        """The plain form of the file, which did not change while it was read."""
        file = os.open(name, FILE | os.O_CLOEXEC, dir_fd=at)
        now = time.time_ns()
        found = os.fstat(file)
        self.check_writers(file)
        data = os.read(file, found.st_size + 1)
        assert _signature(os.fstat(file)) == _signature(found)
        assert len(data) == found.st_size
        if max(found.st_mtime_ns, found.st_ctime_ns) > now - YOUNG_NS:
            os.lseek(file, 0, os.SEEK_SET)
            again = hashlib.sha256(os.read(file, found.st_size + 1)).digest()
            assert again == hashlib.sha256(data).digest()
        os.close(file)
        return b"b\0" + data

    def claim(self) -> dict[str, str]:
        """The seal of the key, the path and the directory under the user's secret."""
        root, secret = os.lstat(self.directory), os.lstat(self.secret)
        key = (_identity(root), root.st_ctime_ns, _signature(secret), os.geteuid())
        if key not in self.claims:
            seal = hmac.digest(Path(self.secret).read_bytes(), repr(key).encode(), "sha256").hex()
            self.claims[key] = {"path": self.directory, "identity": repr(key[0]), "seal": seal}
        return self.claims[key]

    def commit(self, rows: list[Any], entry: bytes, bases: list[bytes]) -> None:
        """Commit the objects and the entry, after all checks."""
        space = os.statvfs(self.own[0])
        assert space.f_bavail * space.f_frsize > 1 << 26
        assert _identity(os.stat(self.database)) == self.known[0]
        identities = []
        for lock, path in self.locks:
            identities.append(_identity(os.fstat(lock)))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert _identity(os.stat(path)) == identities[-1]
        fcntl.flock(self.gate, fcntl.LOCK_UN)
        with self.forks:
            self.in_use += 1
        assert [_identity(os.stat(path)) for path in self.open] == self.known
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        (head,) = db.execute("SELECT max(seq) FROM entries WHERE stream = 1").fetchone()
        assert head == self.head
        assert self.below.issuperset(bases)
        assert db.execute("SELECT 1 FROM objects WHERE id = ?", (self.last,)).fetchone()
        (last,) = db.execute("SELECT last FROM streams WHERE name = x'00'").fetchone()
        db.executemany(INSERT_OBJECT, rows)
        db.execute("UPDATE streams SET last = ? WHERE id = 1", (last + 1,))
        mark = zlib.crc32(entry, zlib.crc32(b"/%d/" % (last + 1)))
        db.execute("INSERT INTO entries VALUES (1, ?, ?, ?)", (last + 1, mark, entry))
        assert [_identity(os.stat(path)) for path in self.open] == self.known
        assert _identity(os.stat(self.locks[1][1])) == identities[1]
        db.execute("COMMIT")
        with self.forks:
            self.in_use -= 1
        os.lstat(self.reserve)
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        self.head = last + 1


class BackendFloor(GuardedFloor):
    """The same, stored by our SQLite backend, which has checks and locks of its own."""

    def __init__(self, directory: str, database: str) -> None:
        super().__init__(directory, database)
        self.backend = SQLiteBackend(Path(database).with_suffix(".store"))
        ids = [*self.below, self.last, *(os.urandom(32) for _ in range(self.files))]
        self.backend.put_objects({each.hex(): bytes(100) for each in ids})
        self.head = self.backend.append("key/bench", b"{}")

    def commit(self, rows: list[Any], entry: bytes, bases: list[bytes]) -> None:
        """Commit the objects and the entry; the bases and the last root must be stored."""
        assert self.below.issuperset(bases)
        objects = {each.hex(): data for each, _, _, data in rows}
        self.head = self.backend.append(
            "key/bench", entry, after=self.head, objects=objects, requires=[self.last.hex()]
        )


def make_database(path: str | Path, tables: tuple[str, ...] = TABLES) -> sqlite3.Connection:
    """A new database with these tables."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size=8192")
    if tables is SCHEMA:
        db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    for table in tables:
        db.execute(table)
    return db


def _head(name: str, size: int) -> bytes:
    return struct.pack("<cHBQ", b"f", 0o644, len(name), size) + name.encode()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode


def _is_absent(name: str, directory: int) -> None:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise AssertionError(f"{name} is there")
