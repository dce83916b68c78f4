"""The guarded floor of P1: the first snapshot in straight-line Python, with what we guarantee.

One process finds the tree, as ours does: each directory is opened below the root without following
a link, watched before it is listed, and every entry is looked at, for its signature, hard links,
stores among the files and the bytes to read. Further processes, one for each further core, read
the files, each between two looks at it, hash and pack them; this one reads what still waits when
the walk ends. A thread stores the files that the database lacks. Then come the directories in the
format of ours, hashed twice (id, object); one durable commit of them and an entry, which requires
every file to be stored; and the index of signatures.

In its favour: the database exists, the processes are forked and not started, no file is in chunks
or loose, no rules apply, and nothing is checked, limited, reported or kept for the next snapshot.

`BackendFirstFloor` does the same, and has our SQLite backend store the objects: the rest of our
time is the scan and the store above it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import marshal
import os
import queue
import sqlite3
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from isal import isal_zlib

from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.sqlite_connections import SCHEMA
from agent_checkpoint.store.objects.varint import write_varint
from agent_checkpoint.workspace.safe_open import DirectoryOpener
from bench.workspaces.parts import BUILD, COMMIT, INDEX, READ, START, STORE, WALK

FILES = 64
BATCHES = 4
ROWS = 1024
WATCHED = 0x00000FCE
SIGNATURE = struct.Struct("<QqqQI")
HEAD = struct.Struct("<cHBQ")
STORE_NAMES = frozenset({b"store.db", b"store.db-wal", b"store.db-shm", b".lock"})
INSERT = "INSERT OR IGNORE INTO objects (id, size, ts, data) VALUES (?, ?, ?, ?)"
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class FirstFloor:
    """One first snapshot of a directory into a database that exists."""

    def __init__(self, directory: str, database: Path, compress: Any = isal_zlib.compress) -> None:
        self.directory, self.database, self.compress = directory, database, compress
        self.make_database()
        self.found: list[tuple[bytes, list[bytes], list[bytes], list[bool]]] = []
        self.results: dict[bytes, Any] = {}
        self.ids: dict[bytes, tuple[bytes, bytes]] = {}
        self.links: dict[tuple[int, int], list[bytes]] = {}
        self.watches: dict[int, bytes] = {}
        self.bytes = self.root = 0
        self.rows: queue.Queue[dict[bytes, bytes] | None] = queue.Queue()
        self.waiting: deque[Any] = deque()
        self.readers: list[_Reader] = []
        self.parts: dict[str, int] = {}
        """The nanoseconds of each part of the snapshot."""

    def make_database(self) -> None:
        """Make an empty database."""
        db = sqlite3.connect(self.database)
        for pragma in ("page_size=8192", "auto_vacuum=INCREMENTAL", "journal_mode=WAL"):
            db.execute(f"PRAGMA {pragma}")
        for table in SCHEMA:
            db.execute(table)
        db.execute("INSERT INTO streams VALUES (1, x'00', 0)")
        db.commit()
        db.close()

    def run(self) -> str:
        """Take the snapshot; return the id of the tree, which is that of ours."""
        gc.disable()
        with self._part(START):
            self.root = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            cores = os.cpu_count() or 1
            self.readers = [_Reader(self._read, self._receive) for _ in range(cores - 1)]
            storing = threading.Thread(target=self._store)
            storing.start()
        with self._part(WALK):
            self._walk()
        with self._part(READ):
            while self.waiting:
                self._feed()
                if self.waiting:
                    self._receive(self._read(self.waiting.pop()))
            for reader in self.readers:
                reader.finish()
            self.rows.put(None)
        with self._part(BUILD):
            directories, files = self._directories()
        with self._part(STORE):
            storing.join()
        with self._part(COMMIT):
            self.commit(directories, files)
        with self._part(INDEX):
            self._write_index()
        gc.enable()
        return self.ids[b""][0].hex()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.perf_counter_ns()
        yield
        self.parts[name] = time.perf_counter_ns() - began

    def _walk(self) -> None:
        libc = ctypes.CDLL(None)
        inotify = libc.inotify_init()
        device = os.fstat(self.root).st_dev
        stack = [b""]
        batch: list[tuple[bytes, list[bytes]]] = []
        count = 0
        with DirectoryOpener(os.dup(self.root)) as opener:
            while stack:
                path = stack.pop()
                fd = opener.open(path)
                link = b"/proc/self/fd/%d" % fd
                self.watches[libc.inotify_add_watch(inotify, link, WATCHED)] = path
                with os.scandir(fd) as entries:
                    listed = sorted([(os.fsencode(entry.name), entry) for entry in entries])
                names = [name for name, _ in listed]
                assert STORE_NAMES.isdisjoint(names), "a store"
                signatures, are_folders, files = [], [], []
                for name, entry in listed:
                    found = entry.stat(follow_symlinks=False)
                    is_folder = stat.S_ISDIR(found.st_mode)
                    assert found.st_dev == device, "a mount"
                    signatures.append(_signature(found))
                    are_folders.append(is_folder)
                    if is_folder:
                        stack.append(path + b"/" + name if path else name)
                        continue
                    if found.st_nlink > 1:
                        self.links.setdefault((found.st_dev, found.st_ino), []).append(path)
                    self.bytes += found.st_size
                    files.append(name)
                self.found.append((path, names, signatures, are_folders))
                if files:
                    batch.append((path, files))
                    count += len(files)
                if count >= FILES:
                    self.waiting.append(batch)
                    batch, count = [], 0
                    self._feed()
        if batch:
            self.waiting.append(batch)

    def _feed(self) -> None:
        for reader in self.readers:
            while self.waiting and reader.sent - reader.received < BATCHES:
                reader.send(self.waiting.popleft())

    def _receive(self, answer: Any) -> None:
        results, objects = answer
        self.results.update(results)
        self.rows.put(objects)

    def _read(self, request: Any) -> Any:
        return read(self.root, request, self.compress)

    def _store(self) -> None:
        pending: dict[bytes, bytes] = {}
        while True:
            more = self.rows.get()
            pending.update(more or {})
            if more is None or len(pending) >= max(ROWS, len(self.results) // 16):
                self.store(pending)
                pending = {}
            if more is None:
                return

    def store(self, objects: dict[bytes, bytes]) -> None:
        """Store files that the database lacks."""
        db = _connect(self.database)
        now = time.time()
        with db:
            rows = [(each, len(objects[each]), now, objects[each]) for each in _absent(db, objects)]
            db.executemany(INSERT, sorted(rows))
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        db.close()

    def _directories(self) -> tuple[dict[bytes, bytes], set[bytes]]:
        """The objects of all directories, children first, and the files that they refer to."""
        objects: dict[bytes, bytes] = {}
        files: set[bytes] = set()
        for path, names, signatures, are_folders in reversed(self.found):
            named, stored, refs, bits = [], [], [], 0
            for name, signature, is_folder in zip(names, signatures, are_folders):
                inner = path + b"/" + name if path else name
                if is_folder:
                    digest, ref = self.ids[inner]
                    mode = SIGNATURE.unpack(signature)[4] & 0o777
                    head = HEAD.pack(b"d", mode, len(name), 0) + name
                    stored.append(head + digest)
                else:
                    mode, size, ref = self.results[inner]
                    if not ref:  # a link
                        head = HEAD.pack(b"l", 0o777, len(name), size) + name
                        named.append(head + mode)
                        stored.append(head + mode)
                        continue
                    digest = ref
                    head = HEAD.pack(b"f", mode, len(name), size) + name
                    stored.append(head)
                    files.add(ref)
                    bits |= 1 << len(refs)
                named.append(head + digest)
                refs.append(ref)
            flags = bits.to_bytes((len(refs) + 7) // 8, "little")
            plain = b"d" + write_varint(len(refs)) + flags + b"".join(refs) + b"".join(stored)
            ref = hashlib.sha256(plain).digest()
            self.ids[path] = hashlib.sha256(b"tree\0" + b"".join(named)).digest(), ref
            is_long = len(plain) - 32 * len(refs) >= 128
            objects[ref] = self.compress(plain, 1) if is_long else plain
        return objects, files

    def commit(self, directories: dict[bytes, bytes], files: set[bytes]) -> None:
        """Commit the directories and an entry; every file must be stored."""
        db = _connect(self.database)
        new = _absent(db, directories)
        now = time.time()
        rows = [(each, len(directories[each]), now, directories[each]) for each in sorted(new)]
        db.execute("BEGIN IMMEDIATE")
        assert not _absent(db, files), "a file is not stored"
        db.executemany(INSERT, rows)
        db.execute("UPDATE streams SET last = 1 WHERE id = 1")
        db.execute("INSERT INTO entries VALUES (1, 1, 0, ?)", (self.ids[b""][1],))
        db.commit()
        db.close()

    def _write_index(self) -> None:
        rows, texts, signatures = bytearray(), bytearray(), bytearray()
        for path, names, own, _ in self.found:
            rows += struct.pack("<III", len(names), len(texts), len(signatures))
            rows += b"".join(self.ids[path])
            texts += b"/".join(names)
            signatures += b"".join(own)
        data = b"".join([rows, texts, signatures])
        draft = self.database.with_name("index.new")
        draft.write_bytes(hashlib.sha256(data).digest() + data)
        draft.replace(self.database.with_name("index"))


class BackendFirstFloor(FirstFloor):
    """The same, stored by our SQLite backend."""

    def make_database(self) -> None:
        """Make an empty store."""
        self.backend = SQLiteBackend(self.database)
        self.backend.append("meta/format", b"{}")

    def store(self, objects: dict[bytes, bytes]) -> None:
        """Store files that the store lacks."""
        names = {each.hex(): data for each, data in objects.items()}
        missing = self.backend.missing_objects(names)
        self.backend.put_objects({name: names[name] for name in missing})

    def commit(self, directories: dict[bytes, bytes], files: set[bytes]) -> None:
        """Commit the directories and an entry; every file must be stored."""
        names = {each.hex(): data for each, data in directories.items()}
        missing = self.backend.missing_objects(names)
        new = {name: data for name, data in names.items() if name in missing}
        entry = self.ids[b""][1]
        requires = {each.hex() for each in files}
        self.backend.append("key/bench", entry, after=0, objects=new, requires=requires)
        self.backend.close()


class _Reader:
    """A process that reads files, and the thread that receives its answers."""

    def __init__(self, read: Callable[[Any], Any], receive: Callable[[Any], None]) -> None:
        requests, self.requests = _pipe()
        self.answers, answers = _pipe()
        self.sent = self.received = 0
        self.child = os.fork()
        if not self.child:
            failed = 1
            try:
                self.requests.close()
                while (request := _receive(requests)) is not None:
                    _send(answers, read(request))
                failed = 0
            finally:
                os._exit(failed)
        requests.close()
        answers.close()
        self.receive = receive
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def send(self, request: Any) -> None:
        self.sent += 1
        _send(self.requests, request)

    def finish(self) -> None:
        self.requests.close()
        self.thread.join()
        assert os.waitpid(self.child, 0)[1] == 0, "a process failed"

    def _run(self) -> None:
        while (answer := _receive(self.answers)) is not None:
            self.receive(answer)
            self.received += 1


def read(root: int, request: Any, compress: Any) -> Any:
    """Read, hash and pack files of directories; return them by path, and their objects."""
    results: dict[bytes, Any] = {}
    objects: dict[bytes, bytes] = {}
    with DirectoryOpener(os.dup(root)) as opener:
        for path, names in request:
            directory = opener.open(path)
            for name in names:
                inner = path + b"/" + name if path else name
                try:
                    file = os.open(name, OPEN, dir_fd=directory)
                except OSError:
                    target = os.readlink(name, dir_fd=directory)
                    results[inner] = target, len(target), b""
                    continue
                now = time.time_ns()
                before = os.fstat(file)
                assert stat.S_ISREG(before.st_mode), "no file"
                assert max(before.st_mtime_ns, before.st_ctime_ns) < now, "just written"
                data = os.read(file, before.st_size + 1)
                assert _signature(os.fstat(file)) == _signature(before), "a file changed"
                os.close(file)
                plain = b"b\0" + data
                digest = hashlib.sha256(plain).digest()
                packed = compress(plain, 1) if len(plain) >= 128 else plain
                objects[digest] = min(packed, plain, key=len)
                results[inner] = before.st_mode & 0o777, len(data), digest
    return results, objects


def _signature(found: os.stat_result) -> bytes:
    times = found.st_mtime_ns, found.st_ctime_ns
    return SIGNATURE.pack(found.st_size, *times, found.st_ino, found.st_mode)


def _absent(db: sqlite3.Connection, ids: Any) -> set[bytes]:
    wanted = sorted(ids)
    absent = set(wanted)
    for start in range(0, len(wanted), 500):
        some = wanted[start : start + 500]
        marks = ",".join("?" * len(some))
        absent.difference_update(
            [row for (row,) in db.execute(f"SELECT id FROM objects WHERE id IN ({marks})", some)]
        )
    return absent


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    return db


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return open(reading, "rb"), open(writing, "wb")


def _send(file: IO[bytes], content: Any) -> None:
    data = marshal.dumps(content)
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    length = file.read(8)
    return marshal.loads(file.read(int.from_bytes(length, "little"))) if length else None
