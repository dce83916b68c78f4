"""Disk space of an SQLite store: vacuum, WAL checkpoints, deletion on a full disk, scrubbing.

Every method requires the write lock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agent_checkpoint.backends.os_support.posix import free_bytes
from agent_checkpoint.backends.os_support.reserve import SIZE, size_at_rest
from agent_checkpoint.backends.sqlite_connections import PAGE_BYTES, WAL_BYTES, Connections, pragma
from agent_checkpoint.errors import StorageError

_MIN_FREE_PAGES = 128  # a megabyte: fewer are soon reused, and moving pages costs syncs,
_MIN_FREE_SHARE = 4  # unless they are a quarter of all pages
_FIRST_STEP, _MAX_STEP = 32, 4096  # pages moved in one transaction; from 1 on a full disk
_SHRINK_SECONDS = 2.0
_READER_WAIT, _SCRUB_READER_WAIT = 200, 5000  # milliseconds to wait for readers
_MAX_WAL_BYTES = 4 * WAL_BYTES
_LOW_SPACE = 4 << 20  # bytes free on the disk, below which every page is reclaimed


class SpaceManager:
    """Reclaims deleted space, and deletes on a full disk."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._wal_limit = _MAX_WAL_BYTES

    def delete(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a DELETE statement for all rows, in one transaction.

        A deletion needs disk space, too. If the disk is full, the reserve is released, and the rows
        are deleted in order, in several smaller transactions.

        Raises:
            StorageError: the medium failed; the first rows may be deleted.
        """
        size = len(rows)
        try:
            self._delete(statement, rows)
        except StorageError as error:
            if not error.no_room:
                raise
        else:
            return
        self._connections.reserve.release()
        done = 0
        while done < len(rows):
            with (
                suppress(StorageError),
                self._connections.connection() as db,
                pragma(db, "busy_timeout", _READER_WAIT),
            ):
                _truncate_wal(db)
            try:
                self._delete(statement, rows[done : done + size])
            except StorageError as error:
                if size == 1 or not error.no_room:
                    raise
                size //= 2
            else:
                done += size

    def shrink(self) -> None:
        """Return free pages to the file system, for at most a few seconds.

        If a reader blocks this, the remaining pages are left for the next call.

        Raises:
            IntegrityError: the database is damaged.
        """
        try:
            self._vacuum_free_pages()
        except StorageError as error:
            if error.no_room:
                self._connections.reserve.release()
                with suppress(StorageError):
                    self._vacuum_free_pages()

    def limit_pending(self) -> None:
        """Limit the size of the WAL and the pending growth of the database; called before commits.

        The database grows only when the WAL is checkpointed. If the disk has space for the WAL but
        not for the database, writes must stop: otherwise the reserve, of which the growth may take
        half, would not suffice for the checkpoint that frees space.

        Raises:
            StorageError: the medium failed, or is full.
            IntegrityError: the database is damaged.
        """
        self._connections.plan_reserve()
        with self._connections.connection() as db:
            if self._pending_growth(db) > self._connections.reserve.size // 2:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._limit_wal(db)

    def release_for_record(self) -> bool:
        """Free a part of the reserve for a small record; return whether there was enough of it.

        What stays is for deletions: half of the reserve, or, without pending growth, half of that
        of a closed store.

        Raises:
            StorageError: the medium failed.
            IntegrityError: the database is damaged.
        """
        reserve = self._connections.reserve
        if reserve.cut(SIZE // 2):
            return True
        with self._connections.connection() as db:
            pending = self._pending_growth(db)
        size = self._connections.database.stat().st_size
        return pending <= 0 and reserve.cut(size_at_rest(size) // 2)

    def _pending_growth(self, db: sqlite3.Connection) -> int:
        """Return by how many bytes the next checkpoint makes the database larger."""
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        return int(pages) * PAGE_BYTES - self._connections.database.stat().st_size

    def _limit_wal(self, db: sqlite3.Connection) -> None:
        # SQLite restarts the WAL only when no reader uses it. With overlapping readers that never
        # happens, so wait briefly for the current ones.
        size = self._connections.wal_bytes()
        if size > self._wal_limit:
            self._wal_limit = size + _MAX_WAL_BYTES  # if busy, do not wait again at every write
            with pragma(db, "busy_timeout", _READER_WAIT):
                if _truncate_wal(db):
                    self._wal_limit = _MAX_WAL_BYTES

    def scrub(self) -> None:
        """Rewrite the database without deleted data, and truncate the WAL.

        Raises:
            StorageError: a reader is active, there is no space for a copy, or the medium failed.
        """
        database = self._connections.database
        self._connections.reserve.release()  # the copy of a small store may fit into it
        try:
            done = self._rewrite()
        except StorageError as error:
            if not error.no_room:
                raise
            size = database.stat().st_size
            raise StorageError(
                f"Cannot scrub {database}: this needs up to {2 * size:,} bytes on its file system, "
                f"where {free_bytes(database):,} are free, and {size:,} in the directory for "
                "temporary files. Deleted data may remain in its files. Free some space and retry."
            ) from error
        if not done:
            raise StorageError(
                f"Cannot scrub {self._connections.database}: another connection is reading it. "
                "Deleted data may remain in its files. Retry when the reader has finished.",
                retryable=True,
            )

    def _rewrite(self) -> bool:
        with self._connections.connection() as db, pragma(db, "busy_timeout", _SCRUB_READER_WAIT):
            if not _truncate_wal(db):  # first: an active reader would make the work useless
                return False
            db.execute("PRAGMA secure_delete=ON")
            db.execute("VACUUM")
            db.execute("PRAGMA secure_delete=FAST")
            return _truncate_wal(db)

    def _vacuum_free_pages(self) -> None:
        end = time.monotonic() + _SHRINK_SECONDS
        with self._connections.connection() as db:
            tight = free_bytes(self._connections.database) < _LOW_SPACE
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            if _free_pages(db) < min(_MIN_FREE_PAGES, 1 + pages // _MIN_FREE_SHARE) and not tight:
                return
            with pragma(db, "busy_timeout", _READER_WAIT):
                step = 1 if tight else _FIRST_STEP
                # Truncate the WAL between steps: on a full disk each frees space for the next.
                while _truncate_wal(db) and _free_pages(db) and time.monotonic() < end:
                    # Not `execute`, which moves only a single page.
                    db.executescript(f"PRAGMA incremental_vacuum({step})")
                    step = min(2 * step, _MAX_STEP)

    def _delete(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        # Always durable: the loose files of these rows are deleted next.
        with self._connections.transaction(durable=True) as db:
            db.executemany(statement, rows)


def _truncate_wal(db: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the WAL; return whether no reader blocked it."""
    (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _free_pages(db: sqlite3.Connection) -> int:
    (count,) = db.execute("PRAGMA freelist_count").fetchone()
    return int(count)
