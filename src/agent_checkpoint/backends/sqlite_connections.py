"""Connections to one SQLite database: opening, checking, transactions, errors.

Owns the schema and its fingerprint, durability and retry; knows no streams and no objects.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import NamedTuple
from weakref import finalize

from agent_checkpoint.backends.disk.fork_safety import block_forks, close_before_fork
from agent_checkpoint.backends.disk.lock_wait import describe_holders, lock_holders
from agent_checkpoint.backends.disk.pin import Pin
from agent_checkpoint.backends.disk.posix import (
    FileIdentity,
    check_lock_file,
    exclusive_lock,
    file_identity,
    free_bytes,
    queued_lock,
    share_like_folder,
    shared_lock,
    sync_directory,
    wrap_os_errors,
)
from agent_checkpoint.backends.disk.reserve import Reserve
from agent_checkpoint.backends.sqlite_files import (
    APPLICATION_ID,
    database_open_lock,
    register,
    unregister,
)
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
_NO_OP_WRITE = "DELETE FROM streams WHERE 0"  # but fails where nothing can be written
DURABILITY = {"full": "FULL", "fast": "NORMAL"}

PAGE_BYTES = 8192
WAL_BYTES = 1 << 20
"""When the log has this many bytes SQLite moves it into the database, and cuts it to that size."""

_TIMEOUT = 10.0
_BUSY_PAUSE = 0.05
_ALMOST_FULL = 64 << 10  # bytes free: the disk is as good as full
_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
_abandoned: list[sqlite3.Connection] = []  # of a parent process: never closed here


class _Connection(sqlite3.Connection):
    """A connection whose database is registered as open in this process."""

    def close(self) -> None:
        super().close()
        unregister(self)


class _PooledConnection(NamedTuple):
    """A connection, and which files its log and its shared memory are.

    Without shared memory there are none to compare, and a lock of ours does its work.
    """

    db: sqlite3.Connection
    companions: tuple[FileIdentity | None, ...] | None


class Connections:
    """A pool of connections, each used by one thread at a time; after a fork a new, empty pool."""

    def __init__(
        self,
        database: Path,
        lock_file: Path,
        durability: str,
        reserve: Reserve,
        check_own: Callable[[], None],
        lock_timeout: float,
    ) -> None:
        """Connect to nothing yet; `check_own` refuses a database that others may have written."""
        self.database = database
        self._check_own = check_own
        self.lock_timeout = lock_timeout
        self.lock_file = lock_file
        self.reserve = reserve
        self.durability = durability
        # Threads take from the list and give back to it without a lock, which a fork could leave
        # held for ever: both are single steps.
        self._idle: list[_PooledConnection] = []
        self._writer = 0  # the thread that is alone
        self._writer_connections: list[_PooledConnection] = []  # its own, if it cannot share memory
        self._can_share = True
        self._pid = os.getpid()
        self._pin = Pin(database)
        self._companions = (f"{database}-wal", f"{database}-shm")
        self._lock: FileIdentity | None = None  # of the lock file, while it is held
        self._suspect = False
        self._is_log_lost = False
        self._is_directory_synced = False
        # A store that is dropped without being closed lets go of its files too; not at exit, when
        # a forked child would close its parent's.
        finalize(self, _close_all, self._idle, self._pid).atexit = False
        close_before_fork(self)

    @contextmanager
    def read_connection(self) -> Iterator[sqlite3.Connection | None]:
        """Lend a connection; None if there is no database yet. Raises as `translated` does."""
        if not self.exists():
            yield None
            return
        with self.connection() as db:
            yield db

    def exists(self) -> bool:
        """Tell whether there is a database.

        Raises:
            StorageError: the one that was used before is not at its path any more, or lacks what
                was in its log.
        """
        if self._is_log_lost:
            raise StorageError(
                f"The log of {self.database} was removed while it was in use, and the last saves "
                "are gone with it. Nothing was read or written: open the store anew."
            )
        return self._pin.exists()

    def is_replaced(self) -> bool:
        """Tell whether the database that was used before is not at its path any more.

        Raises:
            StorageError: the file system failed.
        """
        return self._is_log_lost or self._pin.is_replaced()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Keep every other writer out, of any thread and process, and have a database.

        Writers queue at the lock file, which is shared by all processes. At the end the reserve is
        there again, as far as there is room. Call `exists` first: else a lock file is made where
        the store is gone.

        Raises:
            StorageError: the medium failed, the store is gone, or another process holds the lock
                for too long.
        """
        with (
            wrap_os_errors(f"write to {self.database}"),
            queued_lock(self.lock_file, self.lock_timeout) as self._lock,
        ):
            self._create()
            self._can_share = True
            self._writer = get_ident()
            try:
                yield
            finally:
                self._writer = 0
                _close_all(self._writer_connections, self._pid)
                self.reserve.refill()

    @contextmanager
    def transaction(self, durability: str | None = None) -> Iterator[sqlite3.Connection]:
        """Lend a connection within a transaction that is durable when the block ends.

        Only for who is `alone`.

        Args:
            durability: how durable, if not as usual here.

        Raises:
            StorageError: the medium failed, or the store is gone; nothing was committed.
            IntegrityError: the database is damaged or not ours.
        """
        with ExitStack() as stack:
            try:
                db = stack.enter_context(self._begin_transaction(durability or self.durability))
            except StorageError as error:
                # Without a descriptor to spare SQLite opens what it can read but not write. The
                # connection is gone now: try with another.
                if "readonly" not in str(error.__cause__):
                    raise
                db = stack.enter_context(self._begin_transaction(durability or self.durability))
            yield db

    @contextmanager
    def _begin_transaction(self, durability: str) -> Iterator[sqlite3.Connection]:
        with self._checkout() as pooled, _durability(pooled.db, durability, self.durability):
            db = pooled.db
            _begin(db, self.lock_timeout)
            try:
                db.execute(_NO_OP_WRITE)
                yield db
                # Last of all: what is committed must be in the store that is at the path.
                self._check(pooled)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def check_write_lock(self) -> None:
        """Make sure that the store is at the path, and still locked by who is `alone`.

        Raises:
            StorageError: it is not, so that somebody else may write to it.
        """
        self.exists()
        with wrap_os_errors(f"look at {self.database}"):
            if self._lock is not None:
                check_lock_file(self.lock_file, self._lock)

    def sync_directory_once(self) -> None:
        """Make the name of a new log durable; SQLite does so too, but does not tell if it failed.

        Called after each commit; it does something after the first.

        Raises:
            OSError: the file system failed.
        """
        if not self._is_directory_synced:
            sync_directory(self.database.parent)
            self._is_directory_synced = True

    def close(self) -> None:
        """Close what is not lent."""
        self._is_directory_synced = False
        self._after_fork()
        _close_all(self._idle, self._pid)
        _close_all(self._writer_connections, self._pid)

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, outside a transaction, to who has asked `exists` or is `alone`.

        Raises as `translated` does.
        """
        with self._checkout() as pooled:
            yield pooled.db

    @contextmanager
    def _checkout(self) -> Iterator[_PooledConnection]:
        with (
            block_forks(),
            wrap_sqlite_errors(self.database, self._mark_suspect),
            ExitStack() as locks,
        ):
            self._after_fork()
            try:
                is_writer = self._writer_connections and self._writer == get_ident()
                pooled = (self._writer_connections if is_writer else self._idle).pop()
            except IndexError:
                pooled = self._open(locks)
            if self._is_stale(pooled):
                pooled = self._reconnect(pooled, locks)
            try:
                yield pooled
            except sqlite3.Error:
                pooled.db.close()  # whatever state it is in, nobody uses it again
                raise
            except BaseException:
                self._give_back(pooled)
                raise
            self._give_back(pooled)

    def _check(self, pooled: _PooledConnection) -> None:
        """Make sure that what is committed will be in the files at the path.

        Raises:
            StorageError: it would not, or somebody else may hold the lock.
        """
        self.check_write_lock()
        if self._is_stale(pooled):
            raise StorageError(
                f"The log of {self.database} was removed or replaced during a write, so nothing "
                "was written. Try again.",
                retryable=True,
            )

    def _is_stale(self, pooled: _PooledConnection) -> bool:
        """Tell whether a connection has other files than those at the path."""
        return pooled.companions not in (None, self._companion_identities())

    def _reconnect(self, stale: _PooledConnection, locks: ExitStack) -> _PooledConnection:
        """Return a connection instead of one whose log was removed or replaced.

        A program that opens and closes the database by itself, to copy it, drops the locks that
        SQLite has on it. Another process that ends then takes itself for the last one, and
        removes the log after moving it into the database: nothing is lost. But somebody may have
        removed the log by hand. Closing the connection moves it, if no other process uses it.

        Raises:
            StorageError: what was acknowledged is gone with the log.
        """
        before = _progress(stale.db)
        self.close()
        stale.db.close()
        fresh = self._open(locks)
        if _progress(fresh.db) < before:
            fresh.db.close()
            self._is_log_lost = True
            self.exists()
        return fresh

    def _companion_identities(self) -> tuple[FileIdentity | None, ...]:
        with wrap_os_errors(f"look at {self.database}"):
            return tuple(map(file_identity, self._companions))

    def _give_back(self, pooled: _PooledConnection) -> None:
        if self._pid != os.getpid():
            _abandoned.append(pooled.db)  # lent in the parent, and not ours to close
        elif pooled.db.in_transaction:
            pooled.db.close()  # its rollback failed
        elif pooled.companions is None:
            if self._writer == get_ident():
                self._writer_connections.append(pooled)
            else:
                pooled.db.close()
        else:
            self._idle.append(pooled)

    def _mark_suspect(self) -> None:
        # After an I/O error the pages in memory may not be those on the disk: start afresh, and
        # look at the whole database before it is used again.
        self._suspect = True
        self.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Closing a parent's connection here would drop the parent's locks.
            _close_all(self._idle, self._pid)
            _close_all(self._writer_connections, self._pid)
            self._writer = 0
            self._pid = os.getpid()

    def _open(self, locks: ExitStack) -> _PooledConnection:
        """Open the database; what must be locked while it is used goes to `locks`.

        Even to read, SQLite makes two files: the log, and the memory that its processes share.
        Where that fails, on a full disk, without an inode or without the right to write, a lock of
        ours does the work of the shared memory.
        """
        is_writer = self._writer == get_ident()
        if not is_writer or self._can_share:
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                self._pin.exists()
                if "locked" in str(error):
                    raise
        if is_writer:
            self._can_share = False  # also not when a deletion has made room: it would take of that
            return self._open_exclusive()
        locks.enter_context(wrap_os_errors(f"read {self.database}"))
        with ExitStack() as lock:
            lock.enter_context(shared_lock(self.lock_file, self.lock_timeout))
            # Without a log all is in the database, and nobody else changes that now.
            if not self._log_bytes():
                pooled = self._connect("mode=ro&immutable=1", shared=False)
                locks.push(lock.pop_all())
                return pooled
        try:
            locks.enter_context(exclusive_lock(self.lock_file, self.lock_timeout))
        except OSError as error:
            if error.errno not in _PERMISSION_ERRNOS:
                raise
            raise StorageError(
                f"Cannot read {self.database}: a program that died has left a log, "
                f"{self.database.name}-wal, which cannot be read without the right to write here "
                f"({error.strerror}). Copy the directory to where you can write, and open the copy."
            ) from error
        locks.callback(self.reserve.refill)  # when it is closed the log goes, and its blocks
        return self._open_exclusive()

    def _open_exclusive(self) -> _PooledConnection:
        """Open the database so that nobody else can: what would be shared is in this process."""
        try:
            return self._connect("mode=rw", shared=False)
        except sqlite3.OperationalError:
            self.reserve.release()  # there was no inode for the log
            return self._connect("mode=rw", shared=False)

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._companions[0]).st_size
        except FileNotFoundError:
            return 0

    def _connect(self, how: str = "mode=rw", *, shared: bool = True) -> _PooledConnection:
        with wrap_os_errors(f"look at {self.database}"):
            self._check_own()
            # SQLite waits for the other end of a pipe, and follows a link out of the store.
            for name in ("", "-wal", "-shm", "-journal"):
                path = self.database.with_name(self.database.name + name)
                # One look: another process may remove its log between two.
                with suppress(FileNotFoundError):
                    if not stat.S_ISREG(os.lstat(path).st_mode):
                        raise OSError(f"{path} is not a regular file; remove it")
        self.exists()
        with database_open_lock():
            db = sqlite3.connect(
                _uri(self.database, how),
                uri=True,
                timeout=min(_TIMEOUT, self.lock_timeout),
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            register(db, self.database)
        try:
            if not shared:
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA trusted_schema=OFF")
            db.execute("PRAGMA cell_size_check=ON")
            _check_schema(db, self.database)
            if self._suspect:
                _check_pages(db, self.database)
                self._suspect = False
            db.execute(f"PRAGMA synchronous={DURABILITY[self.durability]}")
            db.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // PAGE_BYTES}")
            db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
            # Overwrites what is deleted where that costs nothing; ON would write every page that
            # becomes free, which a full disk has no room for. Some SQLites have it on by default.
            db.execute("PRAGMA secure_delete=FAST")
            # A flipped bit can make text of a blob; whoever reads checks the bytes.
            db.text_factory = bytes
            return _PooledConnection(db, self._checked_companions(db) if shared else None)
        except BaseException:
            db.close()
            raise

    def _checked_companions(self, db: sqlite3.Connection) -> tuple[FileIdentity | None, ...]:
        self._pin.exists()  # before and after: so it is this database that was pooled
        found = self._companion_identities()
        if os.stat(self._companions[0]).st_size == 0:
            # What processes share of a log that was removed may speak of frames that a new one
            # does not have. SQLite takes its word; moving them shows whether they are there.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return found

    def _create(self) -> None:
        if self.exists():
            return
        fresh = self.database.with_name("new.db")
        # What a maker that died left. SQLite drops a log beside an empty file, but we need not ask.
        for end in ("", "-journal", "-wal", "-shm"):
            fresh.with_name(fresh.name + end).unlink(missing_ok=True)
        fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            share_like_folder(fd, fresh.parent)
        finally:
            os.close(fd)
        with block_forks(), wrap_sqlite_errors(self.database, self._mark_suspect):
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
        self.exists()


@contextmanager
def _durability(db: sqlite3.Connection, how: str, usual: str) -> Iterator[None]:
    if how == usual:
        yield
        return
    db.execute(f"PRAGMA synchronous={DURABILITY[how]}")
    yield
    db.execute(f"PRAGMA synchronous={DURABILITY[usual]}")


def _uri(database: Path, how: str) -> str:
    """Return the URI of a database, with the mode in which SQLite is to open it."""
    path = str(database).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{path}?{how}"


def _close_all(idle: list[_PooledConnection], pid: int) -> None:
    """Close the connections that process `pid` pooled; in a child of it, only forget them."""
    with suppress(IndexError):  # until none is left
        while True:
            db = idle.pop().db
            if pid == os.getpid():
                db.close()
            else:
                _abandoned.append(db)


@contextmanager
def wrap_sqlite_errors(database: Path, on_io_error: Callable[[], None]) -> Iterator[None]:
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
        no_room = not busy and _is_disk_full(text, database)
        advice = ""
        if no_room:
            text = text if "full" in text else f"{text}, the disk is full"
            advice = "Free some space; what was saved before is intact."
        if busy:
            advice = (
                f"It is in use by {_database_users(database)}. Let that end or go on, then try "
                "again."
            )
        raise StorageError(
            f"Cannot use {database}: {text}. {advice}".strip(), retryable=busy, no_room=no_room
        ) from error


def _database_users(database: Path) -> str:
    """Return in words who keeps others from writing to a database, or from opening it."""
    files = []
    for end in ("", "-shm"):
        with suppress(OSError):
            files.append(os.stat(f"{database}{end}"))
    return describe_holders(lock_holders(*files, writing=True))


def _is_disk_full(text: str, database: Path) -> bool:
    # With no room for the log's first bytes SQLite speaks of an I/O error, or cannot open a file.
    with suppress(OSError):
        return "full" in text or free_bytes(database) <= _ALMOST_FULL
    return False


def _begin(db: sqlite3.Connection, seconds: float) -> None:
    """Begin to write; the lock file keeps writers out, but a checkpoint may be under way."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE)
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


def _progress(db: sqlite3.Connection) -> int:
    """Return a number that grows with every entry, and never becomes less."""
    (total,) = db.execute("SELECT coalesce(sum(last), 0) FROM streams").fetchone()
    return int(total)


def _check_pages(db: sqlite3.Connection, database: Path) -> None:
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise IntegrityError(f"The database {database} is damaged ({verdict}).")
