"""The SQLite backend: one database, and loose files for large objects.

<path>/store.db              streams, and objects up to LOOSE_FROM bytes (WAL mode)
<path>/objects/ab/ab12…      larger objects, durable before the commit that references them
<path>/.tmp/…                temporary files
<path>/.lock, .gate          locks: exclusive for each writer
<path>/.reserve              reserved space for deletions on a full disk
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Append,
    Backend,
    BackendProperties,
    ObjectScan,
    check_compression,
    check_newest,
)
from agent_checkpoint.backends.file_names import FORMAT_FOLDER
from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT
from agent_checkpoint.backends.os_support.mounts import network_file_system
from agent_checkpoint.backends.os_support.posix import (
    check_lock_timeout,
    check_path,
    link_new,
    make_store_directory,
    make_store_root,
    read_regular,
    refuse_link,
    scan_directory,
    store_url,
    sweep_temporary_files,
    sync_directory,
    sync_parents,
    wrap_os_errors,
    write_new,
    wrong_backend,
)
from agent_checkpoint.backends.os_support.reserve import SIZE
from agent_checkpoint.backends.os_support.space_limits import SpaceLimits, is_small_record
from agent_checkpoint.backends.sqlite_connections import Connections
from agent_checkpoint.backends.sqlite_rows import (
    MAX_SEQ,
    PAGE_ROWS,
    absent_objects,
    add_entry,
    add_objects,
    change_object,
    digests_of,
    first_bytes,
    newest_entry,
    object_infos,
    read_entries,
    stored_objects,
    stream_names,
)
from agent_checkpoint.backends.sqlite_space import SpaceManager
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    MissingObjectsError,
    StorageError,
)
from agent_checkpoint.file_trust import check_own
from agent_checkpoint.options import Compression, Durability, check_option
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    check_stream,
    is_object_id,
    is_stream,
)

_LIMIT_WAL_EVERY = 256 << 10
LOOSE_FROM = 100_000
"""Objects of at least this size are separate files: SQLite would copy them twice."""


class SQLiteBackend(Backend):
    """Objects and streams in an SQLite database; safe for concurrent threads and processes."""

    path: Path
    _properties: BackendProperties | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        min_free: int | None = None,
        max_bytes: int | None = None,
        compression: Compression | None = None,
        shared: bool = False,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> None:
        """Use the directory `path`, which the first write creates.

        Args:
            path: the directory of the store.
            durability: `full`: acknowledged saves survive a power failure. `fast`: they survive a
                crash of the process, but a power failure may lose the most recent saves.
            min_free: see `SpaceLimits`.
            max_bytes: see `SpaceLimits`.
            compression: see `Backend.compression`.
            shared: accept a directory that other users own or can write.
            lock_timeout: seconds to wait for another writer. The wait is up to ten times as long
                while that process is running, because gc may take long.

        Raises:
            InvalidInputError: the path is not a directory, is a file store, is on a network file
                system, other users own or can write it, or an option is invalid.
        """
        self.path = check_path(path).absolute()
        self.shared = shared
        self._objects = self.path / "objects"
        own = (self.path, self.path / "store.db", self._objects)
        # Not a bound method: a reference cycle would keep connections open.
        self._check_own = (
            partial(_refuse_linked_database, own[1]) if shared else partial(check_own, *own)
        )
        check_option("durability", durability, Durability)
        with wrap_os_errors(f"check {self.path}"):
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(
                    f"{self.path} is a file, but an SQLite store is a directory. Choose another."
                )
            self._check_own()
            # With a database in it, the file store could not be opened any more.
            if not (self.path / "store.db").exists() and (self.path / FORMAT_FOLDER).is_dir():
                raise wrong_backend(self.path, "a file", "file", shared=shared)
        network = network_file_system(self.path)
        if network is not None:
            raise InvalidInputError(
                f"{self.path} is on a network file system ({network}), where the file locking of "
                "SQLite is unreliable. Use a local directory, the file backend, or a backend for "
                "a database or object store."
            )
        self.durability = durability
        self.url = store_url("sqlite", self.path, shared=shared)
        self.compression = check_compression(compression)
        self._tmp = self.path / ".tmp"
        self._connections = Connections(
            self.path / "store.db", durability, self._check_own, check_lock_timeout(lock_timeout)
        )
        self._space = SpaceManager(self._connections)
        reserve = self._connections.reserve.path
        self._limits = SpaceLimits(
            self.path, min_free=min_free, max_bytes=max_bytes, reserve=reserve
        )
        self._is_prepared = False
        self._since_wal_limit = _LIMIT_WAL_EVERY

    @property
    def properties(self) -> BackendProperties:
        """Built once: every save reads it several times."""
        if self._properties is None:
            self._properties = super().properties._replace(marker=self.path / "store.db")
        return self._properties

    def __repr__(self) -> str:
        return f"SQLiteBackend({str(self.path)!r})"

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store the objects. Raises InvalidInputError and StorageError."""
        size = self._limits.check(objects)
        with self._writing(size), self._connections.transaction() as db:
            self._put(db, objects)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects. Raises StorageError."""
        found: dict[str, bytes] = {}
        loose: list[str] = []
        with self._connections.read_connection() as db:
            for name, data in () if db is None else stored_objects(db, ids):
                if isinstance(data, bytes):
                    found[name] = data
                elif data is None:
                    loose.append(name)
        with wrap_os_errors(f"read objects of {self.path}"):
            for name in loose:
                with suppress(FileNotFoundError):
                    data = read_regular(self._loose_file(name))
                    if data is not None:
                        found[name] = data
        return found

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored. Raises StorageError."""
        with self._connections.read_connection() as db:
            return set(ids) if db is None else absent_objects(db, ids)

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over the objects, page by page. Raises StorageError."""
        after = 0
        while True:
            with self._connections.read_connection() as db:
                page = [] if db is None else object_infos(db, after)
            if not page:
                return
            after, _ = page[-1]
            for _, info in page:
                yield info

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects under the write lock. Raises StorageError."""
        if not self._connections.exists():
            return
        with self._exclusive():
            doomed = [(bytes.fromhex(name),) for name in ids if is_object_id(name)]
            self._space.delete("DELETE FROM objects WHERE id = ?", doomed)
            self._sweep()
            self._space.shrink()

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Find objects whose stored bytes begin with `first`.

        Scans only the objects added since `position`. Raises StorageError.
        """
        found: list[str] = []
        total = 0
        while True:
            with self._connections.read_connection() as db:
                rows, position = ([], None) if db is None else first_bytes(db, position)
            total += len(rows)
            with wrap_os_errors(f"read objects of {self.path}"):
                for name, data in rows:
                    with suppress(FileNotFoundError):
                        byte = read_regular(self._loose_file(name), 1) if data is None else data
                        if byte == first:
                            found.append(name)
            if len(rows) < PAGE_ROWS:
                return ObjectScan(found, total, position)

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace objects in one transaction, loose files by rename. Raises StorageError."""
        size = self._limits.check(objects)
        with self._writing(size), self._connections.transaction() as db:
            parents = set()
            for name, data in list(stored_objects(db, objects)):
                if data is None:  # keep it a file: a reader may be about to open it
                    target = self._loose_file(name)
                    os.replace(write_new(self._tmp, objects[name]), target)
                    parents.add(target.parent)
                change_object(db, name, objects[name], is_loose=data is None)
            for parent in parents:
                sync_directory(parent)

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
        item = Append(stream, entry, after, objects, requires)
        small, size = self._measured(item)
        with self._writing(size):
            while True:
                try:
                    with self._connections.transaction() as db:
                        return self._add(db, item)
                except StorageError as error:
                    if not (small and error.no_room and self._space.release_for_record()):
                        raise

    def append_all(self, appends: Sequence[Append]) -> list[int | CheckpointError]:
        """Commit several entries in one transaction. Raises StorageError."""
        if type(self).append is not SQLiteBackend.append:  # a subclass does more
            return super().append_all(appends)
        outcomes: list[int | CheckpointError | None] = [None] * len(appends)
        sizes = 0
        for place, item in enumerate(appends):
            try:
                sizes += self._measured(item)[1]
            except CheckpointError as error:
                outcomes[place] = error
        is_complete = False
        with self._writing(sizes):
            try:
                with self._connections.transaction() as db:
                    for place, item in enumerate(appends):
                        if outcomes[place] is None:
                            try:
                                outcomes[place] = self._add(db, item)
                            except (ConflictError, MissingObjectsError) as error:
                                outcomes[place] = error  # nothing was changed yet
                    is_complete = True
            except StorageError as error:
                if is_complete and not error.no_room:
                    raise  # what the commit wrote may be there after all: not again
            except (IntegrityError, InvalidInputError):
                pass
            else:
                return [known for known in outcomes if known is not None]
        return super().append_all(appends)  # all was undone: it may be the fault of one

    def _measured(self, item: Append) -> tuple[bool, int]:
        """Check an entry against the limits; return whether it is a small record, and its size.

        Raises InvalidInputError and StorageError.
        """
        check_stream(item.stream)
        if is_small_record(item.stream, item.entry, item.objects):
            return True, len(item.entry)
        return False, self._limits.check(item.objects, item.entry)

    def _add(self, db: sqlite3.Connection, item: Append) -> int:
        """Add an entry with its objects to a transaction, and return its number."""
        if item.after is not None:
            check_newest(item.stream, newest_entry(db, item.stream), item.after)
        if item.requires:
            missing = absent_objects(db, item.requires)
            if missing:
                raise MissingObjectsError(missing)
        self._put(db, item.objects)
        return add_entry(db, item.stream, bytes(item.entry))

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the selected entries; a damaged entry has empty data. Raises StorageError."""
        if not is_stream(stream):
            return []
        with self._connections.read_connection() as db:
            if db is None:
                return []
            return read_entries(
                db, stream, before=before, after=after, limit=limit, newest_first=newest_first
            )

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries; their numbers are not reused. Raises StorageError."""
        if not is_stream(stream):
            return
        if not self._connections.exists():
            return
        name = stream.encode()
        with self._exclusive():
            # Oldest first: with several transactions the head is removed last.
            doomed = [(name, seq) for seq in sorted(set(seqs)) if 0 < seq < MAX_SEQ]
            self._space.delete(
                "DELETE FROM entries WHERE stream = (SELECT id FROM streams WHERE name = ?) "
                "AND seq = ?",
                doomed,
            )
            self._space.shrink()

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over a snapshot of the names of streams with entries. Raises StorageError."""
        with self._connections.read_connection() as db:
            return iter([] if db is None else stream_names(db, prefix))

    def scrub(self) -> None:
        """Rewrite the database without deleted data; remove unused files. Raises StorageError."""
        if not self._connections.exists():
            return
        with self._exclusive():
            self._sweep()
            self._space.scrub()

    def is_replaced(self) -> bool:
        """Return whether the store was removed, moved or replaced. Raises StorageError."""
        return self._connections.is_replaced()

    def close(self) -> None:
        """Close the connections; a later call reopens the same store."""
        self._connections.close()
        self._connections.settle_reserve()

    # -- internals -------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with wrap_os_errors("write to", self.path):
            is_there = self._connections.exists()
            if not (self._is_prepared and is_there):
                self._check_own()
                make_store_root(self._tmp, self._objects)
                if not is_there:
                    sync_parents(self._tmp)
                self._is_prepared = True
            with self._connections.write_lock():
                yield

    @contextmanager
    def _writing(self, size: int) -> Iterator[None]:
        with self._exclusive():
            # Not every time: it matters on nearly full disks only, and costs as much as a commit.
            self._since_wal_limit += size
            is_low = self._connections.reserve.size < SIZE
            if is_low or self._since_wal_limit >= _LIMIT_WAL_EVERY:
                self._space.limit_pending()
                self._since_wal_limit = 0
            yield
            self._connections.sync_directory_once()

    def _put(self, db: sqlite3.Connection, objects: Mapping[str, bytes]) -> None:
        now = time.time()
        rows = []
        parents = set()
        for digest, (name, data) in zip(digests_of(objects), objects.items()):
            inline: bytes | None = bytes(data)
            if len(data) >= LOOSE_FROM:
                inline = None
                parents.add(self._write_loose(name, data))
            rows.append((digest, len(data), now, inline))
        for parent in parents:
            sync_directory(parent)
        add_objects(db, rows)

    def _write_loose(self, name: str, data: bytes) -> Path:
        make_store_root(self._tmp, self._objects)
        target = self._loose_file(name)
        make_store_directory(target.parent)
        link_new(self._tmp, data, target)
        return target.parent

    def _loose_file(self, name: str) -> Path:
        return self._objects / check_object_id(name)[:2] / name

    def _sweep(self) -> None:
        """Delete loose files without a row: of deleted objects, and of dead writers."""
        make_store_root(self._tmp, self._objects)
        sweep_temporary_files(self._tmp)
        for folder in list(scan_directory(self._objects)):
            if not folder.is_dir(follow_symlinks=False):
                continue
            names = [
                item.name for item in scan_directory(Path(folder.path)) if is_object_id(item.name)
            ]
            for name in self.missing_objects(names):
                # Without the lock it may belong to a writer that commits next.
                self._connections.check_write_lock()
                os.unlink(os.path.join(folder.path, name))


def _refuse_linked_database(database: Path) -> None:
    """Refuse a database of a shared store that is a link to that of another store.

    Raises:
        OSError: it is a link or has several names, or the file system failed.
    """
    refuse_link(database)
    with suppress(FileNotFoundError):
        if database.stat().st_nlink != 1:
            raise OSError(f"{database} has other names, and may be of another store; remove it")
