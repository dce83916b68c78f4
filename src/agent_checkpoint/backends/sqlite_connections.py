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

from agent_checkpoint.backends.disk.fork_safety import close_before_fork, not_forked
from agent_checkpoint.backends.disk.lock_wait import holders_of, in_words
from agent_checkpoint.backends.disk.pin import Pin
from agent_checkpoint.backends.disk.posix import (
    Identity,
    check_held,
    free_bytes,
    held,
    identity_of,
    in_turn,
    os_errors,
    share_with_owners,
    sync_directory,
    writers_kept_out,
)
from agent_checkpoint.backends.disk.reserve import Reserve
from agent_checkpoint.backends.sqlite_files import (
    APPLICATION_ID,
    opening,
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
_WRITES_NOTHING = "DELETE FROM streams WHERE 0"  # but fails where nothing can be written
DURABILITY = {"full": "FULL", "fast": "NORMAL"}

PAGE_BYTES = 8192
LOG_BYTES = 1 << 20
"""When the log has this many bytes SQLite moves it into the database, and cuts it to that size."""

_TIMEOUT = 10.0
_BUSY_PAUSE = 0.05
_LITTLE = 64 << 10  # bytes free: the disk is as good as full
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_abandoned: list[sqlite3.Connection] = []  # of a parent process: never closed here


class _Connection(sqlite3.Connection):
    """A connection whose database is registered as open in this process."""

    def close(self) -> None:
        super().close()
        unregister(self)


class _Opened(NamedTuple):
    """A connection, and which files its log and its shared memory are.

    Without shared memory there are none to compare, and a lock of ours does its work.
    """

    db: sqlite3.Connection
    companions: tuple[Identity | None, ...] | None


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
        self._idle: list[_Opened] = []
        self._writer = 0  # the thread that is alone
        self._of_writer: list[_Opened] = []  # its own, if it cannot share memory
        self._can_share = True
        self._pid = os.getpid()
        self._pin = Pin(database)
        self._companions = (f"{database}-wal", f"{database}-shm")
        self._lock: Identity | None = None  # of the lock file, while it is held
        self._suspect = False
        self._is_cut = False
        self._is_settled = False
        # A store that is dropped without being closed lets go of its files too; not at exit, when
        # a forked child would close its parent's.
        finalize(self, _close_all, self._idle, self._pid).atexit = False
        close_before_fork(self)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Lend a connection; None if there is no database yet. Raises as `translated` does."""
        if not self.is_there():
            yield None
            return
        with self.lent() as db:
            yield db

    def is_there(self) -> bool:
        """Tell whether there is a database.

        Raises:
            StorageError: the one that was used before is not at its path any more, or lacks what
                was in its log.
        """
        if self._is_cut:
            raise StorageError(
                f"The log of {self.database} was removed while it was in use, and the last saves "
                "are gone with it. Nothing was read or written: open the store anew."
            )
        return self._pin.is_there()

    def is_replaced(self) -> bool:
        """Tell whether the database that was used before is not at its path any more.

        Raises:
            StorageError: the file system failed.
        """
        return self._is_cut or self._pin.is_replaced()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other writer out, of any thread and process, and have a database.

        Writers queue at the lock file, which is shared by all processes. At the end the reserve is
        there again, as far as there is room. Call `is_there` first: else a lock file is made where
        the store is gone.

        Raises:
            StorageError: the medium failed, the store is gone, or another process holds the lock
                for too long.
        """
        with (
            os_errors(f"write to {self.database}"),
            in_turn(self.lock_file, self.lock_timeout) as self._lock,
        ):
            self._create()
            self._can_share = True
            self._writer = get_ident()
            try:
                yield
            finally:
                self._writer = 0
                _close_all(self._of_writer, self._pid)
                self.reserve.keep()

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
        with self._lent() as opened, _as_durable(opened.db, durability, self.durability):
            db = opened.db
            _begin(db, self.lock_timeout)
            try:
                db.execute(_WRITES_NOTHING)
                yield db
                # Last of all: what is committed must be in the store that is at the path.
                self._check(opened)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    def check_alone(self) -> None:
        """Make sure that the store is at the path, and still locked by who is `alone`.

        Raises:
            StorageError: it is not, so that somebody else may write to it.
        """
        self.is_there()
        with os_errors(f"look at {self.database}"):
            if self._lock is not None:
                check_held(self.lock_file, self._lock)

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
        _close_all(self._of_writer, self._pid)

    @contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, outside a transaction, to who has asked `is_there` or is `alone`.

        Raises as `translated` does.
        """
        with self._lent() as opened:
            yield opened.db

    @contextmanager
    def _lent(self) -> Iterator[_Opened]:
        with not_forked(), translated(self.database, self._distrust), ExitStack() as locks:
            self._after_fork()
            try:
                is_writer = self._of_writer and self._writer == get_ident()
                opened = (self._of_writer if is_writer else self._idle).pop()
            except IndexError:
                opened = self._open(locks)
            if self._is_cut_off(opened):
                opened = self._renew(opened, locks)
            try:
                yield opened
            except sqlite3.Error:
                opened.db.close()  # whatever state it is in, nobody uses it again
                raise
            except BaseException:
                self._give_back(opened)
                raise
            self._give_back(opened)

    def _check(self, opened: _Opened) -> None:
        """Make sure that what is committed will be in the files at the path.

        Raises:
            StorageError: it would not, or somebody else may hold the lock.
        """
        self.check_alone()
        if self._is_cut_off(opened):
            raise StorageError(
                f"The log of {self.database} was removed or replaced during a write, so nothing "
                "was written. Try again.",
                retryable=True,
            )

    def _is_cut_off(self, opened: _Opened) -> bool:
        """Tell whether a connection has other files than those at the path."""
        return opened.companions not in (None, self._find_companions())

    def _renew(self, stale: _Opened, locks: ExitStack) -> _Opened:
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
            self._is_cut = True
            self.is_there()
        return fresh

    def _find_companions(self) -> tuple[Identity | None, ...]:
        with os_errors(f"look at {self.database}"):
            return tuple(map(identity_of, self._companions))

    def _give_back(self, opened: _Opened) -> None:
        if self._pid != os.getpid():
            _abandoned.append(opened.db)  # lent in the parent, and not ours to close
        elif opened.db.in_transaction:
            opened.db.close()  # its rollback failed
        elif opened.companions is None:
            if self._writer == get_ident():
                self._of_writer.append(opened)
            else:
                opened.db.close()
        else:
            self._idle.append(opened)

    def _distrust(self) -> None:
        # After an I/O error the pages in memory may not be those on the disk: start afresh, and
        # look at the whole database before it is used again.
        self._suspect = True
        self.close()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Closing a parent's connection here would drop the parent's locks.
            _close_all(self._idle, self._pid)
            _close_all(self._of_writer, self._pid)
            self._writer = 0
            self._pid = os.getpid()

    def _open(self, locks: ExitStack) -> _Opened:
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
                self._pin.is_there()
                if "locked" in str(error):
                    raise
        if is_writer:
            self._can_share = False  # also not when a deletion has made room: it would take of that
            return self._open_for_writer()
        locks.enter_context(os_errors(f"read {self.database}"))
        with ExitStack() as lock:
            lock.enter_context(writers_kept_out(self.lock_file, self.lock_timeout))
            # Without a log all is in the database, and nobody else changes that now.
            if not self._log_bytes():
                opened = self._connect("mode=ro&immutable=1", shared=False)
                locks.push(lock.pop_all())
                return opened
        try:
            locks.enter_context(held(self.lock_file, self.lock_timeout))
        except OSError as error:
            if error.errno not in _NO_RIGHT:
                raise
            raise StorageError(
                f"Cannot read {self.database}: a program that died has left a log, "
                f"{self.database.name}-wal, which cannot be read without the right to write here "
                f"({error.strerror}). Copy the directory to where you can write, and open the copy."
            ) from error
        locks.callback(self.reserve.keep)  # when it is closed the log goes, and its blocks
        return self._open_for_writer()

    def _open_for_writer(self) -> _Opened:
        """Open the database so that nobody else can: what would be shared is in this process."""
        try:
            return self._connect("mode=rw", shared=False)
        except sqlite3.OperationalError:
            self.reserve.give_up()  # there was no inode for the log
            return self._connect("mode=rw", shared=False)

    def _log_bytes(self) -> int:
        try:
            return os.stat(self._companions[0]).st_size
        except FileNotFoundError:
            return 0

    def _connect(self, how: str = "mode=rw", *, shared: bool = True) -> _Opened:
        with os_errors(f"look at {self.database}"):
            self._check_own()
            # SQLite waits for the other end of a pipe, and follows a link out of the store.
            for name in ("", "-wal", "-shm", "-journal"):
                path = self.database.with_name(self.database.name + name)
                # One look: another process may remove its log between two.
                with suppress(FileNotFoundError):
                    if not stat.S_ISREG(os.lstat(path).st_mode):
                        raise OSError(f"{path} is not a regular file; remove it")
        self.is_there()
        with opening():
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
            db.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // PAGE_BYTES}")
            db.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
            # Overwrites what is deleted where that costs nothing; ON would write every page that
            # becomes free, which a full disk has no room for. Some SQLites have it on by default.
            db.execute("PRAGMA secure_delete=FAST")
            # A flipped bit can make text of a blob; whoever reads checks the bytes.
            db.text_factory = bytes
            return _Opened(db, self._found_companions(db) if shared else None)
        except BaseException:
            db.close()
            raise

    def _found_companions(self, db: sqlite3.Connection) -> tuple[Identity | None, ...]:
        self._pin.is_there()  # before and after: so it is this database that was opened
        found = self._find_companions()
        if os.stat(self._companions[0]).st_size == 0:
            # What processes share of a log that was removed may speak of frames that a new one
            # does not have. SQLite takes its word; moving them shows whether they are there.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return found

    def _create(self) -> None:
        if self.is_there():
            return
        fresh = self.database.with_name("new.db")
        # What a maker that died left. SQLite drops a log beside an empty file, but we need not ask.
        for end in ("", "-journal", "-wal", "-shm"):
            fresh.with_name(fresh.name + end).unlink(missing_ok=True)
        fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            share_with_owners(fd, fresh.parent)
        finally:
            os.close(fd)
        with not_forked(), translated(self.database, self._distrust):
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
        self.is_there()


@contextmanager
def _as_durable(db: sqlite3.Connection, how: str, usual: str) -> Iterator[None]:
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


def _close_all(idle: list[_Opened], pid: int) -> None:
    """Close the connections that process `pid` opened; in a child of it, only forget them."""
    with suppress(IndexError):  # until none is left
        while True:
            db = idle.pop().db
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
        no_room = not busy and _says_full(text, database)
        advice = ""
        if no_room:
            text = text if "full" in text else f"{text}, the disk is full"
            advice = "Free some space; what was saved before is intact."
        if busy:
            advice = f"It is in use by {_users(database)}. Let that end or go on, then try again."
        raise StorageError(
            f"Cannot use {database}: {text}. {advice}".strip(), retryable=busy, no_room=no_room
        ) from error


def _users(database: Path) -> str:
    """Return in words who keeps others from writing to a database, or from opening it."""
    files = []
    for end in ("", "-shm"):
        with suppress(OSError):
            files.append(os.stat(f"{database}{end}"))
    return in_words(holders_of(*files, writing=True))


def _says_full(text: str, database: Path) -> bool:
    # With no room for the log's first bytes SQLite speaks of an I/O error, or cannot open a file.
    with suppress(OSError):
        return "full" in text or free_bytes(database) <= _LITTLE
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
