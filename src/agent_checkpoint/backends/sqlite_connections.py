"""Connections to one SQLite database: opening, checking, transactions, errors.

Owns the schema and its fingerprint, durability and retry; knows no streams and no objects.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from weakref import finalize

from agent_checkpoint.backends.database_files import (
    APPLICATION_ID,
    opening,
    register,
    unregister,
)
from agent_checkpoint.backends.forking import close_before_fork, not_forked
from agent_checkpoint.backends.posix import (
    free_bytes,
    held,
    is_full,
    os_errors,
    sync_directory,
)
from agent_checkpoint.backends.reserve import Reserve
from agent_checkpoint.errors import FormatError, IntegrityError, StorageError

SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE streams (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, "
    "last INTEGER NOT NULL)",
    "CREATE TABLE entries (stream INTEGER NOT NULL, seq INTEGER NOT NULL, "
    "mark INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID",
    "CREATE TABLE objects (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, "
    "size INTEGER NOT NULL, ts REAL NOT NULL, data BLOB)",
)
_WRITES_NOTHING = "DELETE FROM streams WHERE 0"  # but fails where nothing can be written
DURABILITY = {"full": "FULL", "fast": "NORMAL"}

PAGE_BYTES = 8192
LOG_BYTES = 1 << 20
"""When the log has this many bytes SQLite moves it into the database, and cuts it to that size."""

_BUSY_SECONDS = 60.0
_TIMEOUT = 10.0
_LITTLE = 64 << 10  # bytes free: the disk is as good as full
_abandoned: list[sqlite3.Connection] = []  # of a parent process: never closed here


class _Connection(sqlite3.Connection):
    """A connection whose database is registered as open in this process."""

    def close(self) -> None:
        super().close()
        unregister(self)


class Connections:
    """A pool of connections, each used by one thread at a time; after a fork a new, empty pool."""

    def __init__(self, database: Path, lock_file: Path, durability: str, reserve: Reserve) -> None:
        self.database = database
        self.lock_file = lock_file
        self.reserve = reserve
        self.durability = durability
        # Threads take from the list and give back to it without a lock, which a fork could leave
        # held for ever: both are single steps.
        self._idle: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._suspect = False
        self._is_settled = False
        # A store that is dropped without being closed lets go of its files too; not at exit, when
        # a forked child would close its parent's.
        finalize(self, _close_all, self._idle, self._pid).atexit = False
        close_before_fork(self)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Lend a connection; None if there is no database yet. Raises as `translated` does."""
        if not self.database.exists():
            yield None
            return
        with self.lent() as db:
            yield db

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other writer out, of any thread and process, and have a database.

        Writers queue at the lock file, which is shared by all processes.

        Raises:
            StorageError: the medium failed.
        """
        with os_errors(f"write to {self.database}"), held(self.lock_file):
            self._create()
            yield

    @contextmanager
    def transaction(self, durability: str | None = None) -> Iterator[sqlite3.Connection]:
        """Lend a connection within a transaction that is durable when the block ends.

        Only for who is `alone`.

        Args:
            durability: how durable, if not as usual here.

        Raises:
            StorageError: the medium failed; nothing was committed.
            IntegrityError: the database is damaged or not ours.
        """
        with ExitStack() as stack:
            try:
                db = stack.enter_context(self._begun(durability or self.durability))
            except StorageError as error:
                # Without a descriptor to spare SQLite opens what it can read but not write. The
                # connection is gone now: try with another.
                if "readonly" not in str(error.__cause__):
                    raise
                db = stack.enter_context(self._begun(durability or self.durability))
            yield db

    @contextmanager
    def _begun(self, durability: str) -> Iterator[sqlite3.Connection]:
        with self.lent() as db, _as_durable(db, durability, self.durability):
            _begin(db)
            try:
                db.execute(_WRITES_NOTHING)
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def settle_directory(self) -> None:
        """Make the name of a new log durable; SQLite does so too, but does not tell if it failed.

        Called after each commit; it does something after the first.

        Raises:
            OSError: the file system failed.
        """
        if not self._is_settled:
            sync_directory(self.database.parent)
            self._is_settled = True

    def close(self) -> None:
        """Close what is not lent."""
        self._is_settled = False
        self._after_fork()
        _close_all(self._idle, self._pid)

    @contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, outside a transaction. Raises as `translated` does."""
        with not_forked(), translated(self.database, self._distrust):
            self._after_fork()
            try:
                db = self._idle.pop()
            except IndexError:
                db = self._open()
            try:
                yield db
            except sqlite3.Error:
                db.close()  # whatever state it is in, nobody uses it again
                raise
            except BaseException:
                self._give_back(db)
                raise
            self._give_back(db)

    def _give_back(self, db: sqlite3.Connection) -> None:
        if self._pid != os.getpid():
            _abandoned.append(db)  # lent in the parent, and not ours to close
        elif db.in_transaction:
            db.close()  # its rollback failed
        else:
            self._idle.append(db)

    def _distrust(self) -> None:
        # After an I/O error the pages in memory may not be those on the disk: start afresh, and
        # look at the whole database before it is used again.
        self._suspect = True
        self.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Closing a parent's connection here would drop the parent's locks.
            _close_all(self._idle, self._pid)
            self._pid = os.getpid()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            # Even to read, SQLite needs room for the memory that its processes share.
            # A share of the reserve is enough, and leaves the rest for who deletes.
            with os_errors(f"look at {self.database}"):
                if free_bytes(self.database) > _LITTLE or not self.reserve.give_share():
                    raise
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        with opening():
            db = sqlite3.connect(
                self.database,
                timeout=_TIMEOUT,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            register(db, self.database)
        try:
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("PRAGMA cell_size_check=ON")
            _check_schema(db, self.database)
            if self._suspect:
                _check_pages(db, self.database)
                self._suspect = False
            db.execute(f"PRAGMA synchronous={DURABILITY[self.durability]}")
            db.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // PAGE_BYTES}")
            db.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
            # Overwrites what is deleted where that costs nothing; ON would write every page that
            # becomes free, which a full disk has no room for. Some SQLites have it on by default.
            db.execute("PRAGMA secure_delete=FAST")
            # A flipped bit can make text of a blob; whoever reads checks the bytes.
            db.text_factory = bytes
        except BaseException:
            db.close()
            raise
        return db

    def _create(self) -> None:
        if self.database.exists():
            return
        fresh = self.database.with_name("new.db")
        # What a maker that died left. SQLite drops a log beside an empty file, but we need not ask.
        for end in ("", "-journal", "-wal", "-shm"):
            fresh.with_name(fresh.name + end).unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with translated(self.database, self._distrust):
            db = sqlite3.connect(fresh, isolation_level=None)
            try:
                db.execute(f"PRAGMA page_size={PAGE_BYTES}")
                db.execute("PRAGMA auto_vacuum=INCREMENTAL")
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                for statement in SCHEMA:
                    db.execute(statement)
                (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode != "wal":  # it says what went wrong by saying what it is
                    raise StorageError(f"Cannot write to {fresh}: it has no log.")
            finally:
                db.close()
        # The database appears complete, with its schema, by one rename.
        fresh.rename(self.database)
        sync_directory(self.database.parent)


@contextmanager
def _as_durable(db: sqlite3.Connection, how: str, usual: str) -> Iterator[None]:
    if how == usual:
        yield
        return
    db.execute(f"PRAGMA synchronous={DURABILITY[how]}")
    yield
    db.execute(f"PRAGMA synchronous={DURABILITY[usual]}")


def _close_all(idle: list[sqlite3.Connection], pid: int) -> None:
    """Close the connections that process `pid` opened; in a child of it, only forget them."""
    with suppress(IndexError):  # until none is left
        while True:
            db = idle.pop()
            if pid == os.getpid():
                db.close()
            else:
                _abandoned.append(db)


@contextmanager
def translated(database: Path, on_io_error: Callable[[], None]) -> Iterator[None]:
    """Turn sqlite3's errors in the block into ours.

    Raises:
        StorageError: the medium failed; retryable if the database stayed busy.
        IntegrityError: the database is damaged, or not one of ours.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if any(sign in text for sign in ("malformed", "not a database", "corrupt")):
            raise IntegrityError(
                f"The database {database} is damaged ({text}). Restore it from a copy."
            ) from error
        if "I/O" in text:
            on_io_error()
        busy = "locked" in text or "busy" in text
        advice = "Free some space; what was saved before is intact." if "full" in text else ""
        raise StorageError(
            f"Cannot use {database}: {text}. {advice}".strip(), retryable=busy
        ) from error


def was_full(error: StorageError, database: Path) -> bool:
    """Tell whether an operation failed because there was no room left.

    Raises:
        OSError: the file system refuses to tell.
    """
    cause = error.__cause__
    if isinstance(cause, OSError):
        return is_full(cause)
    # With no room for the log's first bytes SQLite speaks of an I/O error, or cannot open a file.
    return "full" in str(cause) or (not error.retryable and free_bytes(database) <= _LITTLE)


def _begin(db: sqlite3.Connection) -> None:
    """Begin to write; the lock file keeps writers out, but a checkpoint may be under way."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            from random import uniform  # slow to load, and seldom wanted

            time.sleep(uniform(0.01, 0.1))  # noqa: S311 - jitter, not a secret
        else:
            return


def _check_schema(db: sqlite3.Connection, database: Path) -> None:
    """Refuse a database that has anything in it but our tables: it may have been prepared."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise IntegrityError(f"{database} is not a store of agent-checkpoint.")
    if version > SCHEMA_VERSION:
        raise FormatError(
            f"{database} has schema {version}; this version knows {SCHEMA_VERSION}. "
            "Install a newer agent-checkpoint."
        )
    found = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found != set(SCHEMA):
        raise IntegrityError(
            f"{database} has tables, triggers or views that are not ours, or lacks some. "
            "Do not use it: restore it from a copy."
        )


def _check_pages(db: sqlite3.Connection, database: Path) -> None:
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise IntegrityError(f"The database {database} is damaged ({verdict}).")
