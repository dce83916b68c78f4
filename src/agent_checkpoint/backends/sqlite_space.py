"""The room that an SQLite store takes: deleting without any, giving it back, leaving no trace.

Owns vacuum, checkpoints of the log and the use of the reserve; knows no streams and no objects.
Every method is for who is `alone` with the database.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from agent_checkpoint.backends.disk.posix import free_bytes
from agent_checkpoint.backends.sqlite_connections import PAGE_BYTES, WAL_BYTES, Connections
from agent_checkpoint.errors import StorageError

_MIN_FREE_PAGES = (
    128  # free pages, a megabyte: fewer are used again soon, and moving pages costs syncs,
)
_MIN_FREE_SHARE = 4  # unless they are a quarter of all
_FIRST_STEP, _MAX_STEP = 32, 4096  # pages moved in one transaction
_SHRINK_SECONDS = 2.0
_READER_WAIT = 0.2  # seconds to wait for those who read
_SCRUB_READER_WAIT = 5.0
_MAX_WAL_BYTES = 4 * WAL_BYTES
_LOW_SPACE = 4 << 20  # bytes free on the disk: then every page counts, and also what the log takes
_MAX_PENDING = 1 << 20  # bytes by which the database has still to grow; half of the reserve


class SpaceManager:
    """Gives back what was deleted, and deletes also where there is no room to write."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._wal = connections.database.with_name(connections.database.name + "-wal")
        self._wal_limit = _MAX_WAL_BYTES

    def delete(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a deleting statement for all rows, in one transaction.

        A deletion has to be written, too. Where that fails because the disk is full the reserve is
        given up, and the rows are deleted in order, in as many transactions as the room allows.

        Raises:
            StorageError: the medium failed; the first of the rows may be gone.
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
                _busy_timeout(db, _READER_WAIT),
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
        """Give free pages back to the file system, for a few seconds at most.

        What cannot be given back now, because others read, is left for the next time.

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
        """Keep the log and what is pending in it within bounds; called before each commit.

        What is new grows the database only when the log is moved into it. There may be room for
        that in the log but not in the database: then the disk is full, and nothing more is taken.
        Else the reserve would not be enough to empty the log, and so to make room at all.

        Raises:
            StorageError: the medium failed, or is full.
            IntegrityError: the database is damaged.
        """
        with self._connections.connection() as db:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            size = self._connections.database.stat().st_size
            if pages * PAGE_BYTES - size > _MAX_PENDING:
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._limit_wal(db)

    def _limit_wal(self, db: sqlite3.Connection) -> None:
        # SQLite begins the log anew only when nobody reads from it. Where readers overlap without
        # a gap that is never; waiting a moment for those of now makes it so.
        size = self._wal.stat().st_size if self._wal.exists() else 0
        if size > self._wal_limit:
            self._wal_limit = (
                size + _MAX_WAL_BYTES
            )  # if it is busy do not wait again at every write
            with _busy_timeout(db, _READER_WAIT):
                if _truncate_wal(db):
                    self._wal_limit = _MAX_WAL_BYTES

    def scrub(self) -> None:
        """Write the database anew without what was deleted, and empty the log.

        Raises:
            StorageError: somebody reads, there is no room for a copy, or the medium failed.
        """
        database = self._connections.database
        self._connections.reserve.release()  # the copy of a small store may find room in it
        try:
            done = self._rewrite()
        except StorageError as error:
            if not error.no_room:
                raise
            size = database.stat().st_size
            raise StorageError(
                f"Cannot scrub {database}: that takes up to {2 * size:,} bytes, of which "
                f"{free_bytes(database):,} are free, and {size:,} where temporary files are. "
                "What was deleted may still be in its files: free some space, and do it again."
            ) from error
        if not done:
            raise StorageError(
                f"Cannot scrub {self._connections.database}: others read from it right now. Try "
                "again when they are done.",
                retryable=True,
            )

    def _rewrite(self) -> bool:
        with self._connections.connection() as db, _busy_timeout(db, _SCRUB_READER_WAIT):
            if not _truncate_wal(db):  # before the work: who reads now would make it useless
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
            with _busy_timeout(db, _READER_WAIT):
                step = _FIRST_STEP
                # The log is emptied between the steps: on a full disk each makes room for the next.
                while _truncate_wal(db) and _free_pages(db) and time.monotonic() < end:
                    # Not `execute`, which takes only the first step of it, a single page.
                    db.executescript(f"PRAGMA incremental_vacuum({step})")
                    step = min(2 * step, _MAX_STEP)

    def _delete(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        # Always durable: files of what is deleted go next, and must not go alone.
        with self._connections.transaction("full") as db:
            db.executemany(statement, rows)


@contextmanager
def _busy_timeout(db: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Wait for others as long as this within the block; after an error nobody uses `db` again."""
    (usual,) = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout={round(seconds * 1000)}")
    yield
    db.execute(f"PRAGMA busy_timeout={usual}")


def _truncate_wal(db: sqlite3.Connection) -> bool:
    """Move the log into the database and cut it to nothing; tell whether nobody was in the way."""
    (busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _free_pages(db: sqlite3.Connection) -> int:
    (count,) = db.execute("PRAGMA freelist_count").fetchone()
    return int(count)
