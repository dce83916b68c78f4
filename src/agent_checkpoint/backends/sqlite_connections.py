"""The connection pool of one SQLite database: schema check, transactions, durability, errors."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import get_ident
from weakref import finalize

from agent_checkpoint.backends.os_support.lock_wait import describe_holders, lock_holders
from agent_checkpoint.backends.os_support.os_fork import block_forks, close_before_fork
from agent_checkpoint.backends.os_support.posix import (
    FileIdentity,
    QueuedLock,
    check_lock_file,
    exclusive_lock,
    file_identity,
    free_bytes,
    share_like_folder,
    shared_lock,
    sync_directory,
    wrap_os_errors,
)
from agent_checkpoint.backends.os_support.reserve import Reserve, size_at_rest
from agent_checkpoint.backends.os_support.store_identity import Pin
from agent_checkpoint.backends.sqlite_files import (
    APPLICATION_ID,
    database_open_lock,
    register,
    unregister,
)
from agent_checkpoint.errors import FormatError, IntegrityError, StorageError
from agent_checkpoint.options import Durability

SCHEMA_VERSION = 1
SCHEMA = (
    "CREATE TABLE streams (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, "
    "last INTEGER NOT NULL)",
    "CREATE TABLE entries (stream INTEGER NOT NULL, seq INTEGER NOT NULL, "
    "mark INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID",
    "CREATE TABLE objects (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, "
    "size INTEGER NOT NULL, ts REAL NOT NULL, data BLOB)",
)
_NO_OP_WRITE = "DELETE FROM streams WHERE 0"  # fails on a read-only database
_SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}

PAGE_BYTES = 8192
WAL_BYTES = 1 << 20
"""The WAL size at which SQLite checkpoints it, and to which it is truncated."""

_TIMEOUT = 10.0
_BUSY_PAUSE = 0.05
_ALMOST_FULL = 64 << 10  # free bytes at which the disk counts as full
_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_PRAGMA: AbstractContextManager[None] = nullcontext()
_abandoned: list[sqlite3.Connection] = []  # connections of a parent process: never closed here


class _Connection(sqlite3.Connection):
    """A connection whose database is registered as open in this process."""

    companions: tuple[FileIdentity | None, ...] | None = None
    """The identities of its WAL and shared memory files.

    None for a connection without shared memory, which relies on the store lock.
    """

    def close(self) -> None:
        super().close()
        unregister(self)


class Connections:
    """A pool of connections, each used by one thread at a time; empty after a fork."""

    def __init__(
        self,
        database: Path,
        durability: Durability,
        check_own: Callable[[], None],
        lock_timeout: float,
    ) -> None:
        """Create an empty pool. `check_own` raises if other users can write the database."""
        self.database = database
        self._check_own = check_own
        self.lock_timeout = lock_timeout
        self.lock_file = database.with_name(".lock")
        self._queue = QueuedLock(self.lock_file)
        self.reserve = Reserve(database.with_name(".reserve"))
        self.durability = durability
        # Threads pop and append without a lock, which a fork could leave locked: both are atomic.
        self._idle: list[_Connection] = []
        self._writer = 0  # the thread with the write lock
        self._writer_connections: list[_Connection] = []  # of that thread, without shared memory
        self._can_share = True
        self._pid = os.getpid()
        self._pin = Pin(database)
        self._companions = (f"{database}-wal", f"{database}-shm")
        self._lock: FileIdentity | None = None  # of the lock file, while locked
        self._suspect = False
        self._is_log_lost = False
        self._is_directory_synced = False
        # Also close files of a store that is dropped without close(); not at exit, where a forked
        # child would close those of its parent.
        finalize(self, _close_all, self._idle, self._pid).atexit = False
        finalize(self, self._queue.close).atexit = False
        close_before_fork(self)

    @contextmanager
    def read_connection(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection; None if there is no database.

        Raises the same errors as `wrap_sqlite_errors`.
        """
        if not self.exists():
            yield None
            return
        with self.connection() as db:
            yield db

    def exists(self) -> bool:
        """Return whether the database exists.

        Raises:
            StorageError: the open database was replaced, or its WAL was lost.
        """
        if self._is_log_lost:
            raise StorageError(
                f"The write-ahead log of {self.database} was removed while it was in use, and the "
                "most recent saves were lost. Nothing was read or written. Reopen the store."
            )
        return self._pin.exists()

    def is_replaced(self) -> bool:
        """Return whether the open database is no longer at its path.

        Raises:
            StorageError: the file system failed.
        """
        return self._is_log_lost or self._pin.is_replaced()

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold the write lock, exclusive for all threads and processes; create a missing database.

        Refills the reserve at the end. Call `exists` first: otherwise a lock file is created where
        a store was removed.

        Raises:
            StorageError: the medium failed, the store was removed, or another process holds the
                lock too long.
        """
        with (
            wrap_os_errors("write to", self.database),
            self._queue.hold(self.lock_timeout) as self._lock,
        ):
            self._create()
            if not self.reserve.size:
                self.plan_reserve()
            self._can_share = True
            self._writer = get_ident()
            try:
                yield
            finally:
                self._writer = 0
                _close_all(self._writer_connections, self._pid)
                self.reserve.refill()

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that is committed at the end of the block.

        The caller must hold `write_lock`.

        Args:
            durable: as with the durability `full`, whatever that of these connections is.

        Raises:
            StorageError: the medium failed or the store was removed; nothing was committed.
            IntegrityError: the database is damaged, or is not a store.
        """
        is_again = False
        while True:
            is_begun = False
            try:
                with (
                    self.connection() as db,
                    pragma(db, "synchronous", "FULL") if durable else _NO_PRAGMA,
                ):
                    _begin(db, self.lock_timeout)
                    try:
                        db.execute(_NO_OP_WRITE)
                        is_begun = True
                        yield db
                        # Last: the commit must go to the store at the path.
                        self._check(db)
                        db.execute("COMMIT")
                    except BaseException:
                        with suppress(sqlite3.Error):
                            db.execute("ROLLBACK")
                        raise
                return
            except StorageError as error:
                # Out of file descriptors, SQLite opens a database read-only. That connection is
                # closed now: retry with a new one.
                if is_begun or is_again or "readonly" not in str(error.__cause__):
                    raise
                is_again = True

    def check_write_lock(self) -> None:
        """Check that the store is at the path and its write lock is still held.

        Raises:
            StorageError: it is not, so another process may write to it.
        """
        self.exists()
        with wrap_os_errors("look at", self.database):
            if self._lock is not None:
                check_lock_file(self.lock_file, self._lock)

    def sync_directory_once(self) -> None:
        """Sync the directory of a new WAL. SQLite also does this, but ignores failures.

        Called after each commit; only the first call has an effect.

        Raises:
            OSError: the file system failed.
        """
        if not self._is_directory_synced:
            sync_directory(self.database.parent)
            self._is_directory_synced = True

    def close(self) -> None:
        """Close the idle connections and lock files."""
        self._is_directory_synced = False
        self._after_fork()
        _close_all(self._idle, self._pid)
        _close_all(self._writer_connections, self._pid)
        self._queue.close()

    def plan_reserve(self) -> None:
        """Plan the size of the reserve. Requires the write lock. Raises OSError."""
        self.reserve.plan(size_at_rest(self.database.stat().st_size))

    def settle_reserve(self) -> None:
        """Give the reserve its size at rest, after writes, if no growth of the database is pending.

        Called after `close`, which may have freed the blocks of the WAL. Does nothing while another
        connection keeps a WAL, or another process writes.
        """
        if not self.reserve.size:  # not planned: nothing was written
            return
        self.reserve.size = 0
        with suppress(OSError, StorageError):
            # First: a lock file is created where a store was removed.
            if self.exists() and not self.wal_bytes():
                with self._queue.hold(0):
                    if not self.wal_bytes():
                        self.reserve.settle(size_at_rest(self.database.stat().st_size))
                self._queue.close()

    @contextmanager
    def connection(self) -> Iterator[_Connection]:
        """Yield a connection outside a transaction; call `exists` first or hold `write_lock`.

        Raises the same errors as `wrap_sqlite_errors`.
        """
        with (
            block_forks(),
            wrap_sqlite_errors(self.database, self._mark_suspect),
            ExitStack() as locks,
        ):
            self._after_fork()
            try:
                is_writer = self._writer_connections and self._writer == get_ident()
                db = (self._writer_connections if is_writer else self._idle).pop()
            except IndexError:
                db = self._open(locks)
            if self._is_stale(db):
                db = self._reconnect(db, locks)
            try:
                yield db
            except sqlite3.Error:
                db.close()  # its state is unknown: never reuse it
                raise
            except BaseException:
                self._give_back(db)
                raise
            self._give_back(db)

    def _check(self, db: _Connection) -> None:
        """Check that a commit will reach the files at the path.

        Raises:
            StorageError: it would not, or another process may hold the lock.
        """
        self.check_write_lock()
        if self._is_stale(db):
            raise StorageError(
                f"The write-ahead log of {self.database} was removed or replaced during a write, "
                "so nothing was written. Try again.",
                retryable=True,
            )

    def _is_stale(self, db: _Connection) -> bool:
        """Return whether a connection uses other files than those at the path."""
        return db.companions not in (None, self._companion_identities())

    def _reconnect(self, stale: _Connection, locks: ExitStack) -> _Connection:
        """Replace a connection whose WAL was removed or replaced.

        Code in this process that opens and closes the database file, for example to copy it,
        releases the locks of SQLite. Another process may then assume that it is the last user,
        checkpoint the WAL and remove it; no data is lost. But if the WAL was removed by hand, saves
        may be lost. Closing the connection checkpoints the WAL if no other process uses it.

        Raises:
            StorageError: acknowledged saves were lost with the WAL.
        """
        before = _progress(stale)
        self.close()
        stale.close()
        fresh = self._open(locks)
        if _progress(fresh) < before:
            fresh.close()
            self._is_log_lost = True
            self.exists()
        return fresh

    def _companion_identities(self) -> tuple[FileIdentity | None, ...]:
        with wrap_os_errors("look at", self.database):
            return tuple(map(file_identity, self._companions))

    def _give_back(self, db: _Connection) -> None:
        if self._pid != os.getpid():
            _abandoned.append(db)  # checked out in the parent: must not be closed here
        elif db.companions is not None and not db.in_transaction:
            self._idle.append(db)
        elif self._writer == get_ident() and not db.in_transaction:
            self._writer_connections.append(db)
        else:
            db.close()  # its rollback failed, or its lock is released

    def _mark_suspect(self) -> None:
        # After an I/O error cached pages may differ from the disk: reconnect, and check the whole
        # database before its next use.
        self._suspect = True
        self.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Closing a connection of the parent here would drop its locks.
            _close_all(self._idle, self._pid)
            _close_all(self._writer_connections, self._pid)
            self._writer = 0
            self._pid = os.getpid()

    def _open(self, locks: ExitStack) -> _Connection:
        """Open the database; add the locks that are required for its use to `locks`.

        Even to read, SQLite creates the WAL and shared memory files. If that fails, on a full disk
        or without write permission, the store lock replaces the shared memory.
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
            self._can_share = False  # even after a deletion: the files would take the freed space
            return self._open_exclusive()
        locks.enter_context(wrap_os_errors(f"read {self.database}"))
        with ExitStack() as lock:
            lock.enter_context(shared_lock(self.lock_file, self.lock_timeout))
            # Without a WAL the database is complete, and the lock keeps writers out.
            if not self.wal_bytes():
                db = self._connect("mode=ro&immutable=1", shared=False)
                locks.push(lock.pop_all())
                return db
        try:
            locks.enter_context(exclusive_lock(self.lock_file, self.lock_timeout))
        except OSError as error:
            if error.errno not in _PERMISSION_ERRNOS:
                raise
            raise StorageError(
                f"Cannot read {self.database}: there is a write-ahead log, "
                f"{self.database.name}-wal, which cannot be replayed without write permission "
                f"({error.strerror}). Copy the directory to a writable location, and open the copy."
            ) from error
        locks.callback(self.reserve.refill)  # closing removes the WAL and frees its blocks
        return self._open_exclusive()

    def _open_exclusive(self) -> _Connection:
        """Open the database in exclusive locking mode, without shared memory."""
        try:
            return self._connect("mode=rw", shared=False)
        except sqlite3.OperationalError:
            self.reserve.release()  # there was no inode for the WAL
            return self._connect("mode=rw", shared=False)

    def wal_bytes(self) -> int:
        """Return the size of the WAL, 0 if there is none. Raises OSError."""
        try:
            return os.stat(self._companions[0]).st_size
        except FileNotFoundError:
            return 0

    def _connect(self, how: str = "mode=rw", *, shared: bool = True) -> _Connection:
        with wrap_os_errors("look at", self.database):
            self._check_own()
            # SQLite would block on a pipe, and follow a link out of the store.
            for name in ("", "-wal", "-shm", "-journal"):
                path = self.database.with_name(self.database.name + name)
                # A single lstat: another process may remove its WAL between two.
                with suppress(FileNotFoundError):
                    if not stat.S_ISREG(os.lstat(path).st_mode):
                        raise OSError(f"{path} is not a regular file; remove it")
        self.exists()
        with database_open_lock():
            db = _Connection(
                _uri(self.database, how),
                uri=True,
                timeout=min(_TIMEOUT, self.lock_timeout),
                isolation_level=None,
                check_same_thread=False,
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
            db.execute(f"PRAGMA synchronous={_SYNCHRONOUS[self.durability]}")
            db.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // PAGE_BYTES}")
            db.execute(f"PRAGMA journal_size_limit={WAL_BYTES}")
            # FAST overwrites deleted content where that is free. ON, the default of some builds,
            # would write every freed page, for which a full disk has no space.
            db.execute("PRAGMA secure_delete=FAST")
            # A flipped bit can turn a blob into text; readers check the bytes.
            db.text_factory = bytes
            if shared:
                db.companions = self._checked_companions(db)
        except BaseException:
            db.close()
            raise
        return db

    def _checked_companions(self, db: sqlite3.Connection) -> tuple[FileIdentity | None, ...]:
        self._pin.exists()  # before and after: so this is the database that was opened
        found = self._companion_identities()
        try:
            size = os.stat(self._companions[0]).st_size
        except FileNotFoundError:  # removed or moved with the database; the next check tells
            size = 0
        if size == 0:
            # The shared memory of a removed WAL may refer to frames that a new WAL lacks. SQLite
            # trusts it; a checkpoint shows whether the frames exist.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return found

    def _create(self) -> None:
        if self.exists():
            return
        fresh = self.database.with_name("new.db")
        # Leftovers of a process that died while creating the database.
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
                if mode != "wal":  # the pragma reports failure by returning another mode
                    raise StorageError(f"Cannot write to {fresh}: WAL mode is not available.")
            finally:
                db.close()
        # The database appears complete, with its schema, by one rename.
        fresh.rename(self.database)
        sync_directory(self.database.parent)
        self.exists()


@contextmanager
def pragma(db: sqlite3.Connection, name: str, value: int | str) -> Iterator[None]:
    """Set a pragma of a connection for the duration of the block.

    If the block raises, the pragma is not reset: the caller must discard `db`.
    """
    (usual,) = db.execute(f"PRAGMA {name}").fetchone()
    db.execute(f"PRAGMA {name}={value}")
    yield
    db.execute(f"PRAGMA {name}={usual}")


def _uri(database: Path, how: str) -> str:
    """Return the SQLite URI of a database with open options."""
    path = str(database).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{path}?{how}"


def _close_all(idle: list[_Connection], pid: int) -> None:
    """Close the connections that process `pid` opened. A child process keeps them open, unused."""
    with suppress(IndexError):  # until none is left
        while True:
            db = idle.pop()
            if pid == os.getpid():
                db.close()
            else:
                _abandoned.append(db)


class wrap_sqlite_errors:  # a class: a generator costs more
    """Convert sqlite3 errors in the block.

    Raises:
        StorageError: the medium failed; retryable if the database stayed busy.
        IntegrityError: the database is damaged, or is not an SQLite database.
    """

    __slots__ = ("_database", "_on_io_error")

    def __init__(self, database: Path, on_io_error: Callable[[], None]) -> None:
        self._database = database
        self._on_io_error = on_io_error

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, sqlite3.DatabaseError):
            return
        text, database = str(error), self._database
        if any(sign in text for sign in ("malformed", "not a database", "corrupt")):
            raise IntegrityError(
                f"The database {database} is damaged ({text}). Restore it from a backup."
            ) from error
        if "I/O" in text:
            self._on_io_error()
        busy = "locked" in text or "busy" in text
        no_room = not busy and _is_disk_full(text, database)
        advice = ""
        if no_room:
            text = text if "full" in text else f"{text}, the disk is full"
            advice = "Free some space. Existing checkpoints are intact."
        if busy:
            advice = (
                f"It is in use by {_database_users(database)}. Retry when that process has "
                "finished; resume it if it is stopped."
            )
        raise StorageError(
            f"Cannot use {database}: {text}. {advice}".strip(), retryable=busy, no_room=no_room
        ) from error


def _database_users(database: Path) -> str:
    """Describe the processes that hold exclusive locks on a database."""
    files = []
    for end in ("", "-shm"):
        with suppress(OSError):
            files.append(os.stat(f"{database}{end}"))
    return describe_holders(lock_holders(*files, writing=True))


def _is_disk_full(text: str, database: Path) -> bool:
    # Without space for the WAL, SQLite reports an I/O error or cannot open a file.
    with suppress(OSError):
        return "full" in text or free_bytes(database) <= _ALMOST_FULL
    return False


def _begin(db: sqlite3.Connection, seconds: float) -> None:
    """Begin a write transaction; a checkpoint may still be running despite the write lock."""
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
    """Check that a database has exactly the expected tables; a crafted one may have others."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise IntegrityError(f"{database} is not a store of agent-checkpoint.")
    if version > SCHEMA_VERSION:
        raise FormatError(
            f"{database} has schema version {version}; this version supports schema versions up "
            f"to {SCHEMA_VERSION}. Install a newer agent-checkpoint."
        )
    found = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found != set(SCHEMA):
        raise IntegrityError(
            f"{database} does not have the expected schema: tables, triggers or views were added "
            "or are missing. Do not use it; restore it from a backup."
        )


def _progress(db: sqlite3.Connection) -> int:
    """Return a number that grows with every entry and never decreases."""
    (total,) = db.execute("SELECT coalesce(sum(last), 0) FROM streams").fetchone()
    return int(total)


def _check_pages(db: sqlite3.Connection, database: Path) -> None:
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise IntegrityError(
            f"The database {database} is damaged ({verdict}). Restore it from a backup."
        )
