"""The embedded backend: one SQLite database, and loose files for what is large.

Owns the directory layout, the schema and the transactions; knows nothing of what the bytes mean.

    <path>/store.db              streams, and objects up to LOOSE_FROM bytes (WAL mode)
    <path>/objects/ab/ab12…      larger objects, durable before the commit that names them
    <path>/.tmp/…                files being written
    <path>/.lock                 held alone by whoever writes
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.base import NO_OBJECTS, Backend
from agent_checkpoint.backends.mounts import network_file_system
from agent_checkpoint.backends.posix import (
    check_path,
    link_new,
    locked,
    make_own_directory,
    os_errors,
    read_regular,
    scan,
    sweep,
    sync_directory,
)
from agent_checkpoint.backends.sqlite_connections import DURABILITY, Connections
from agent_checkpoint.errors import ConflictError, InvalidInputError, MissingObjectsError
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    check_stream,
    is_object_id,
    is_stream,
    show,
)

LOOSE_FROM = 100_000
"""Objects of this many bytes and more are files of their own: SQLite would copy them twice."""

_BATCH = 500  # ids in one statement
_HIGHEST = 2**63 - 1


class SQLiteBackend(Backend):
    """Objects and streams in a directory; correct with many threads and processes."""

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "full") -> None:
        """Use the directory `path`, which is made at the first write.

        Args:
            path: where the store is, or will be.
            durability: `full`: what was acknowledged survives a loss of power. `fast`: it
                survives a crash of the process; a loss of power may take the last saves away.

        Raises:
            InvalidInputError: the path is not a directory, or on a network file system.
        """
        self.path = check_path(path).absolute()
        if durability not in DURABILITY:
            raise InvalidInputError(f"durability is 'full' or 'fast', not {show(durability)}.")
        with os_errors(f"look at {self.path}"):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(f"{self.path} is not a directory: choose another path.")
        network = network_file_system(self.path)
        if network is not None:
            raise InvalidInputError(
                f"{self.path} is on a network file system ({network}), where SQLite cannot lock. "
                "Use a local directory, a PostgreSQL or object store, or the file backend."
            )
        self._tmp = self.path / ".tmp"
        self._objects = self.path / "objects"
        self._lock_file = self.path / ".lock"
        self._connections = Connections(self.path / "store.db", self._lock_file, durability)

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store the objects. Raises InvalidInputError and StorageError."""
        with self._writing() as db:
            self._put(db, objects)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return those of the objects that exist. Raises StorageError."""
        found: dict[str, bytes] = {}
        loose: list[str] = []
        with self._connections.reading() as db:
            for name, data in _select(db, "id, data", ids):
                if data is None:
                    loose.append(name)
                else:
                    found[name] = data
        with os_errors(f"read objects of {self.path}"):
            for name in loose:
                with suppress(FileNotFoundError):
                    data = read_regular(self._loose_file(name))
                    if data is not None:
                        found[name] = data
        return found

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return those of the ids that are not stored. Raises StorageError."""
        wanted = set(ids)
        with self._connections.reading() as db:
            return wanted - self._present(db, wanted)

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over the objects as they are when each page is read. Raises StorageError."""
        after = 0
        while True:
            with self._connections.reading() as db:
                rows = (
                    []
                    if db is None
                    else db.execute(
                        "SELECT number, lower(hex(id)), size, ts FROM objects WHERE number > ? "
                        "ORDER BY number LIMIT 10000",
                        (after,),
                    ).fetchall()
                )
            if not rows:
                return
            after = rows[-1][0]
            for _, name, size, ts in rows:
                yield ObjectInfo(name, size, ts)

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects while nobody writes. Raises StorageError."""
        doomed = [bytes.fromhex(name) for name in ids if is_object_id(name)]
        with self._connections.reading() as db:
            if db is None:
                return
        with self._writing() as db:
            db.executemany("DELETE FROM objects WHERE id = ?", [(name,) for name in doomed])
        with os_errors(f"delete objects of {self.path}"), locked(self._lock_file, exclusive=True):
            self._sweep()

    # -- streams ---------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Commit objects and entry in one transaction.

        Raises ConflictError, MissingObjectsError and StorageError.
        """
        name = check_stream(stream).encode()
        with self._writing() as db:
            row = db.execute("SELECT id, last FROM streams WHERE name = ?", (name,)).fetchone()
            number, last = row or (None, 0)
            if after is not None:
                newest = _newest(db, number)
                if after != newest:
                    raise ConflictError(
                        f"The stream {show(stream)} is at entry {newest}, not at {after}."
                    )
            missing = set(requires) - self._present(db, requires)
            if missing:
                raise MissingObjectsError(missing)
            self._put(db, objects)
            if number is None:
                number = db.execute(
                    "INSERT INTO streams (name, last) VALUES (?, 1)", (name,)
                ).lastrowid
            else:
                db.execute("UPDATE streams SET last = ? WHERE id = ?", (last + 1, number))
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, last + 1, bytes(entry)))
        return int(last + 1)

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the chosen entries. Raises StorageError."""
        if not is_stream(stream):
            return []
        order = "DESC" if newest_first else "ASC"
        with self._connections.reading() as db:
            if db is None:
                return []
            rows = db.execute(
                "SELECT seq, data FROM entries WHERE stream = (SELECT id FROM streams "  # noqa: S608
                f"WHERE name = ?) AND seq > ? AND seq < ? ORDER BY seq {order} LIMIT ?",
                (
                    stream.encode(),
                    -1 if after is None else _clamp(after),
                    _HIGHEST if before is None else _clamp(before),
                    -1 if limit is None else max(0, limit),
                ),
            )
            return [Entry(seq, data) for seq, data in rows]

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries; the stream's last number stays known. Raises StorageError."""
        if not is_stream(stream):
            return
        with self._connections.reading() as db:
            if db is None:
                return
        with self._writing() as db:
            db.executemany(
                "DELETE FROM entries WHERE stream = (SELECT id FROM streams WHERE name = ?) "
                "AND seq = ?",
                [(stream.encode(), seq) for seq in seqs if 0 < seq < _HIGHEST],
            )

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the names of streams with entries, as at the call. Raises StorageError."""
        wanted = prefix.encode("utf-8", "surrogatepass")
        with self._connections.reading() as db:
            rows = (
                []
                if db is None
                else db.execute(
                    "SELECT name FROM streams WHERE substr(name, 1, ?) = ? AND EXISTS "
                    "(SELECT 1 FROM entries WHERE stream = streams.id)",
                    (len(wanted), wanted),
                ).fetchall()
            )
        return iter([bytes(name).decode() for (name,) in rows])

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._connections.close()

    # -- how it is done --------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with os_errors(f"write to {self.path}"):
            make_own_directory(self._tmp)
            make_own_directory(self._objects)
            with self._connections.writing() as db:
                yield db

    def _put(self, db: sqlite3.Connection, objects: Mapping[str, bytes]) -> None:
        now = time.time()
        rows = []
        parents = set()
        for name, data in objects.items():
            inline: bytes | None = bytes(data)
            if len(data) >= LOOSE_FROM:
                inline = None
                parents.add(self._write_loose(name, data))
            rows.append((bytes.fromhex(check_object_id(name)), len(data), now, inline))
        for parent in parents:
            sync_directory(parent)
        db.executemany(
            "INSERT OR IGNORE INTO objects (id, size, ts, data) VALUES (?, ?, ?, ?)", rows
        )

    def _write_loose(self, name: str, data: bytes) -> Path:
        target = self._loose_file(name)
        make_own_directory(target.parent)
        link_new(self._tmp, data, target)
        return target.parent

    def _loose_file(self, name: str) -> Path:
        return self._objects / check_object_id(name)[:2] / name

    def _sweep(self) -> None:
        """Delete files that no row names: of deleted objects, and of writers that died."""
        sweep(self._tmp)
        for folder in list(scan(self._objects)):
            if not folder.is_dir(follow_symlinks=False):
                continue
            names = [item.name for item in scan(Path(folder.path)) if is_object_id(item.name)]
            for name in self.missing_objects(names):
                os.unlink(os.path.join(folder.path, name))

    def _present(self, db: sqlite3.Connection | None, ids: Iterable[str]) -> set[str]:
        return {name for (name,) in _select(db, "id", ids)}


def _select(
    db: sqlite3.Connection | None, columns: str, ids: Iterable[str]
) -> Iterator[tuple[Any, ...]]:
    names = [bytes.fromhex(name) for name in ids if is_object_id(name)]
    if db is None:
        return
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        marks = ",".join("?" * len(batch))
        rows = db.execute(f"SELECT {columns} FROM objects WHERE id IN ({marks})", batch)  # noqa: S608
        for name, *rest in rows:
            yield (name.hex(), *rest)


def _newest(db: sqlite3.Connection, number: int | None) -> int:
    if number is None:
        return 0
    row = db.execute("SELECT max(seq) FROM entries WHERE stream = ?", (number,)).fetchone()
    return row[0] or 0


def _clamp(seq: int) -> int:
    return max(-1, min(seq, _HIGHEST))
