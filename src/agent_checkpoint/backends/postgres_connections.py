"""The connections of the PostgreSQL backend: URL, schema, transactions, retries, errors.

Keeps no state in a session of the server, so that it works behind a transaction-mode pooler:
settings and locks end with their transaction, and statements are not prepared. design/033 has the
reasons.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID, uuid4
from weakref import finalize

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from agent_checkpoint.backends.os_support.os_fork import block_forks, close_before_fork
from agent_checkpoint.backends.wrappers.url_options import WRAPPER_OPTIONS
from agent_checkpoint.errors import (
    CheckpointError,
    FormatError,
    IntegrityError,
    InvalidInputError,
    StorageError,
)
from agent_checkpoint.formatting import PASSWORD_OPTIONS, without_password
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

# A failed statement aborts its pipeline, and psycopg logs this beside the error that is raised.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
_IDLE = psycopg.pq.TransactionStatus.IDLE

SCHEMA_VERSION = 1
_TABLES = (
    "CREATE TABLE {0}.store (version integer NOT NULL, id uuid NOT NULL)",
    "CREATE TABLE {0}.streams (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "name bytea NOT NULL UNIQUE, last bigint NOT NULL)",
    "CREATE TABLE {0}.entries (stream bigint NOT NULL, seq bigint NOT NULL, "
    "write_id uuid NOT NULL, data bytea NOT NULL, PRIMARY KEY (stream, seq))",
    "CREATE TABLE {0}.objects (id bytea PRIMARY KEY, ts double precision NOT NULL, "
    "data bytea NOT NULL)",
    # Objects are compressed already.
    "ALTER TABLE {0}.objects ALTER COLUMN data SET STORAGE EXTERNAL",
    # An append in one statement, whose plans the server keeps for a session. It stores all, or
    # nothing and returns false. It can succeed once only, since `last` grows: if it is repeated,
    # or reaches the server late, it does nothing.
    """
    CREATE FUNCTION {0}.append_after(store_version integer, store_id uuid, store_oid bigint,
        lock_number bigint, wait text, stream_name bytea, previous bigint, must_exist boolean,
        previous_write uuid, new_write uuid, entry bytea, now double precision, ids bytea[],
        contents bytea[], required bytea[]) RETURNS boolean LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        number bigint;
    BEGIN
        IF current_setting('transaction_isolation') <> 'read committed'
            OR current_setting('transaction_read_only') = 'on' THEN
            RETURN false;
        END IF;
        PERFORM set_config('lock_timeout', wait, true),
            CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) END,
            pg_advisory_xact_lock_shared(lock_number);
        IF NOT EXISTS (SELECT FROM {0}.store
                WHERE version = store_version AND id = store_id AND tableoid::bigint = store_oid)
            OR (SELECT count(*) FROM {0}.objects WHERE id = ANY (required))
                <> cardinality(required)
            OR must_exist AND NOT EXISTS (SELECT FROM {0}.entries JOIN {0}.streams
                ON streams.id = stream WHERE name = stream_name AND seq = previous
                AND write_id = previous_write) THEN
            RETURN false;
        END IF;
        UPDATE {0}.streams SET last = previous + 1 WHERE name = stream_name AND last = previous
            RETURNING id INTO number;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        INSERT INTO {0}.objects (id, ts, data) SELECT id, now, data
            FROM unnest(ids, contents) AS new (id, data) ON CONFLICT DO NOTHING;
        INSERT INTO {0}.entries (stream, seq, write_id, data)
            VALUES (number, previous + 1, new_write, entry);
        RETURN true;
    END $$
    """,
)
# A role or database may have other defaults. An acknowledged save must be durable.
_SETTINGS = """
    SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true),
        set_config('idle_in_transaction_session_timeout', %s, true),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', true) END,
    pg_advisory_xact_lock{}(%s)
"""
_LOCK_HOLDERS = """
    SELECT holder.pid, holder.application_name, holder.client_addr::text
    FROM pg_locks JOIN pg_stat_activity AS holder USING (pid)
    WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) | objid::bigint = %s
"""
_PARAMETERS = {
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_OWN_OPTIONS = ("schema", "shared", "compression")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_IDLE_CONNECTIONS = 4
_RETRY_SECONDS = 15.0
_LOST = ("08", "57P01", "57P02", "57P03", "25P03")
_RETRYABLE = (*_LOST, "40001", "40P01", "53", "55P03", "55006", "57014", "57P05")
_REFUSED = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba|permission denied|"
    "no such (?:database|user)|could not translate host name|certificate|"
    "does not support SSL|bad value for"
)

_abandoned: list[Connection] = []  # connections of a parent process: never closed here


class StoreUrl(NamedTuple):
    """The parts of a store URL."""

    parameters: dict[str, Any]
    """The parameters for libpq."""
    options: dict[str, str]
    """The options of this package: `schema`, `shared`, `compression`."""
    public: str
    """The URL without passwords."""


class Identity(NamedTuple):
    """What tells a store from another one in the same place."""

    version: int
    id: UUID
    table: int
    """The OID of a table, which differs in a restored copy."""


def parse_url(url: str) -> StoreUrl:
    """Parse `postgresql://user@host/database?schema=name`; other options are those of libpq.

    Raises:
        InvalidInputError: the URL is malformed. The message does not contain it: it may have a
            password.
    """
    head, _, query = url.partition("?")
    options: dict[str, str] = {}
    others: list[str] = []
    for item in query.split("&") if query else ():
        name, _, value = item.partition("=")
        if name in options:
            raise InvalidInputError(f"The option {name} is repeated in the store URL.")
        if name in _OWN_OPTIONS:
            options[name] = value
        else:
            others.append(item)
    try:
        parameters = conninfo_to_dict(f"{head}?{'&'.join(others)}" if others else head)
        _check_parts(url, parameters)
    except (psycopg.Error, ValueError):
        names = ", ".join((*_OWN_OPTIONS, *WRAPPER_OPTIONS))
        raise InvalidInputError(
            "The store URL is not of the form postgresql://user@host:5432/database?schema=name, "
            "or has an unknown option. Write @, /, ?, : and % in a name or a password as %40, %2f, "
            f"%3f, %3a and %25. Options are those of libpq and {names}."
        ) from None
    return StoreUrl(parameters, options, without_password(url))


def _check_parts(url: str, parameters: dict[str, Any]) -> None:
    """Check that no part of a password was taken for a host, port, database or option.

    That part would be in messages and in the public URL. Raises ValueError.
    """
    rest = url.partition("://")[2]
    place, _, path = rest.partition("?")[0].partition("/")
    before, end, _ = re.split("([@/]|$)", rest, maxsplit=1)  # where libpq lets a password end
    is_torn = "@" in path or place.count("@") > 1 or (end == "@" and "?" in before)
    ports = str(parameters.get("port", "")).split(",")
    if is_torn or not all(port.isdecimal() for port in ports if port):
        raise ValueError


def check_schema_name(schema: str) -> str:
    """Validate the name of a database schema, and return it. Raises InvalidInputError."""
    if _SCHEMA.fullmatch(schema) is None:
        raise InvalidInputError(
            f"schema must be up to 63 lower-case letters, digits and underscores, not "
            f"{short_repr(schema)}."
        )
    return schema


class Connections:
    """Connections to one store, each used by one thread at a time; none is left after a fork."""

    def __init__(self, url: StoreUrl, schema: str, lock_timeout: float) -> None:
        self.name = url.public
        self.schema = schema
        self._secrets = [
            url.parameters[name] for name in PASSWORD_OPTIONS if url.parameters.get(name)
        ]
        self._parameters = {
            **_PARAMETERS,
            "application_name": f"agent-checkpoint {socket.gethostname()[:30]}",
            **url.parameters,
        }
        # Advisory locks are numbers. One number for each schema, in each database.
        digest = hashlib.sha256(b"agent-checkpoint/" + schema.encode()).digest()
        self._lock = int.from_bytes(digest[:8], "big", signed=True)
        self._lock_timeout = lock_timeout
        # The server ends a stalled transaction before the writers behind it give up.
        self._timeouts = [
            str(max(1, int(seconds * 1000)))
            for seconds in (lock_timeout, 10 * lock_timeout, lock_timeout / 2)
        ]
        self._identity = f"SELECT version, id, tableoid::bigint, %s::bigint FROM {schema}.store"  # noqa: S608
        types = (
            *("integer", "uuid", "bigint", "bigint", "text", "bytea", "bigint", "boolean", "uuid"),
            *("uuid", "bytea", "double precision", "bytea[]", "bytea[]", "bytea[]"),
        )
        arguments = ", ".join(f"%b::{name}" for name in types)
        self._append_after = f"SELECT %b::uuid, {schema}.append_after({arguments})"
        self._pinned: Identity | None = None
        self._was_connected = False
        # Threads pop and append without a lock, which a fork could leave locked: both are atomic.
        self._idle: list[Connection] = []
        self._exclusive = threading.local()
        self._pid = os.getpid()
        # Not at exit, where a forked child would close the connections of its parent.
        finalize(self, _close_all, self._idle, self._pid).atexit = False
        close_before_fork(self)

    # -- calls -----------------------------------------------------------------------------------

    def read(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if the store does not exist. One round trip.

        In a thread that holds the exclusive lock, the query runs in that transaction.

        Raises the same errors as `run`.
        """

        def work(connection: Connection) -> list[tuple[Any, ...]]:
            with _pipeline(connection):
                rows = connection.execute(query, values, binary=True)
                check = self._identify(connection)
            check()
            return rows.fetchall()

        self._after_fork()
        mine: Connection | None = getattr(self._exclusive, "connection", None)
        try:
            if mine is None:
                return self.run(work)
            return mine.execute(query, values, binary=True).fetchall()
        except psycopg.Error as error:
            raise self.wrapped(error) from error
        except _NoStoreError:
            return []

    def exists(self) -> bool:
        """Return whether the store exists. Raises the same errors as `run`."""
        return bool(self.read("SELECT 1", ()))

    def is_replaced(self) -> bool:
        """Return whether the store that was used is gone. Raises the same errors as `run`."""
        pinned = self._pinned
        if pinned is None:
            return False
        query = f"SELECT to_regclass('{self.schema}.store') IS NOT NULL"

        def work(connection: Connection) -> bool:
            row = connection.execute(query).fetchone()
            if row != (True,):
                return True
            found = connection.execute(self._identity, (0,), binary=True).fetchone()
            return found is None or Identity(*found[:3])[1:] != pinned[1:]

        return self.run(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` as `run` does, on a store that exists: create it first.

        Raises the same errors as `run`.
        """
        if self._pinned is None and not self.exists():
            self.run(self._create)
        try:
            return self.run(work)
        except _NoStoreError:
            raise self._removed() from None

    def append_after(self, connection: Connection, write_id: UUID, *values: object) -> bool:
        """Append after the last entry of a stream, in one statement and one round trip.

        Args:
            connection: a connection that is in no transaction.
            write_id: the id of the write.
            values: the name of the stream; its last number; whether the entry with that number
                must exist, and its write id; then what to store: the write id, the entry, the
                time, ids and contents of objects; and the ids of required objects.

        Returns:
            Whether it was committed. If not, nothing was stored.

        Raises:
            psycopg.Error: the statement failed, or the reply belongs to another one.
        """
        place = (*(self._pinned or ()), self._lock, self._timeouts[0])
        try:
            found = connection.execute(
                self._append_after, (write_id, *place, *values), binary=True
            ).fetchall()
        except errors.UndefinedFunction:
            return False  # of another version, or restored from a dump of tables
        is_idle = connection.info.transaction_status == _IDLE
        if not is_idle or [row[0] for row in found] != [write_id]:
            raise out_of_step()
        return bool(found[0][1])

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[Callable[[], None]]:
        """Run statements in a pipeline, in a transaction that the caller ends.

        Yields a function to call after the first statements: it waits for their results. The
        pipeline stays open, because psycopg sends a message after the end of one, at which the
        server stops the timer for stalled transactions.

        Raises:
            psycopg.Error: a statement failed.
            StorageError: the store was replaced.
        """
        with _pipeline(connection) as pipeline:
            self._begin(connection)

            def results() -> None:
                check = self._identify(connection)
                pipeline.sync()
                check()

            yield results

    def _begin(self, connection: Connection, *, exclusive: bool = False) -> None:
        """Begin a transaction that excludes those with `exclusive`, or all others."""
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        # One statement: it sets the limits, from left to right, before it waits.
        query = _SETTINGS.format("" if exclusive else "_shared").encode()
        connection.execute(query, (*self._timeouts, self._lock))

    def _identify(self, connection: Connection) -> Callable[[], None]:
        """Ask for the identity of the store; return a function that checks the reply.

        The last statement of a round trip: the random number in its reply also shows that all
        replies belong to this round trip. A pooler or proxy that fails may repeat old ones.
        """
        nonce = random.getrandbits(63)
        cursor = connection.execute(self._identity, (nonce,), binary=True)

        def check() -> None:
            found = cursor.fetchone()
            if found is not None and found[3:] != (nonce,):
                raise out_of_step()
            self._check(found)

        return check

    @contextmanager
    def exclusive(self) -> Iterator[Connection]:
        """Hold the exclusive lock in a transaction, which is committed at the end.

        `read` of the same thread uses the same transaction. The server ends it if this process
        sends nothing for half of the lock timeout.

        Raises:
            StorageError: the medium failed, or others hold the lock; nothing was committed, or
                the message says that the outcome is unknown.
        """
        is_committing = False
        connection = None
        try:
            connection = self._connect()  # a new one: `ids` cannot be consumed again
            self._begin(connection, exclusive=True)
            self._identify(connection)()
            self._exclusive.connection = connection
            yield connection
            self._identify(connection)()
            is_committing = True
            check_status(connection.execute("COMMIT"), "COMMIT")
        except psycopg.Error as error:
            raise self.wrapped(error, in_doubt=is_committing and is_lost(error)) from error
        finally:
            self._exclusive.connection = None
            if connection is not None:
                _close(connection)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with a connection; again with another one if the connection is lost.

        `work` must be repeatable, and end its transaction.

        Raises:
            StorageError: the server failed or cannot be reached, also after retries.
            IntegrityError: the database is damaged.
            FormatError: the store has a newer schema.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        pause = 0.0
        while True:
            knew_server = self._was_connected
            knew_store = self._pinned is not None  # another thread may create it meanwhile
            try:
                with block_forks(), self._checkout() as connection:
                    return work(connection)
            except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
                if knew_store:
                    raise self._removed() from error
                raise _NoStoreError from error
            except psycopg.Error as error:
                can_retry = is_lost(error) or error.sqlstate in ("40001", "40P01")
                # A server that was never reached is more likely a wrong address.
                if not can_retry or not knew_server or time.monotonic() > deadline:
                    raise self.wrapped(error) from error
            self.close()  # a restart of the server breaks all of them
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads the retries
            pause = min(1.0, pause * 2 or 0.02)

    def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        self._after_fork()
        _close_all(self._idle, self._pid)

    # -- internals -------------------------------------------------------------------------------

    @contextmanager
    def _checkout(self) -> Iterator[Connection]:
        self._after_fork()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        is_ok = False
        try:
            yield connection
            is_ok = True
        except CheckpointError:
            is_ok = True
            raise
        finally:
            if os.getpid() != self._pid:
                _abandoned.append(connection)  # of the parent: must not be closed here
            elif (
                is_ok
                and len(self._idle) < _IDLE_CONNECTIONS
                and connection.info.transaction_status == _IDLE
            ):
                self._idle.append(connection)
            else:
                _close(connection)

    def _connect(self) -> Connection:
        # Prepared statements belong to a session of the server.
        found = psycopg.connect(autocommit=True, prepare_threshold=None, **self._parameters)
        self._was_connected = True
        return found

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _close_all(self._idle, self._pid)
            self._exclusive = threading.local()
            self._pid = os.getpid()

    def _check(self, found: tuple[Any, ...] | None) -> None:
        """Check that a row of `store` is that of the store that was used before, if any.

        Raises:
            FormatError: its schema is newer.
            StorageError: it is another store.
        """
        if found is None:
            raise IntegrityError(f"{self.name} is damaged: the table store has no row.")
        identity = Identity(*found[:3])
        if identity.version > SCHEMA_VERSION:
            raise FormatError(
                f"{self.name} has schema version {identity.version}; this version supports schema "
                f"versions up to {SCHEMA_VERSION}. Install a newer agent-checkpoint."
            )
        if self._pinned is None:
            self._pinned = identity
        elif identity != self._pinned:
            raise self._removed()

    def _removed(self) -> StorageError:
        return StorageError(
            f"{self.name} was removed or replaced after it was opened. Nothing was read or "
            "written. Reopen the store."
        )

    def _create(self, connection: Connection) -> None:
        with _pipeline(connection):
            self._begin(connection, exclusive=True)
            # Not to_regclass: within a transaction it may answer from a cache, as if another
            # process had not just created the store.
            found = connection.execute(
                "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relname = 'store' "
                "AND relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname = %s)), "
                "NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)",
                (self.schema, self.schema),
            )
        is_new, needs_schema = found.fetchone() or (False, False)
        if is_new:
            with _pipeline(connection):
                if needs_schema:  # even with IF NOT EXISTS this would need a permission
                    connection.execute(f"CREATE SCHEMA {self.schema}".encode())
                for statement in _TABLES:
                    connection.execute(statement.format(self.schema).encode())
                connection.execute(
                    f"INSERT INTO {self.schema}.store VALUES (%s, %s)".encode(),  # noqa: S608
                    (SCHEMA_VERSION, uuid4()),
                )
        connection.execute("COMMIT")
        self._identify(connection)()

    def wrapped(self, error: psycopg.Error, *, in_doubt: bool = False) -> CheckpointError:
        """Return the error of this package for one of the driver, without passwords."""
        # Of an error of the server not all: it also has the statement.
        said = filter(None, (error.diag.message_primary, error.diag.message_detail))
        text = " ".join((": ".join(said) or str(error)).split()) or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        state = error.sqlstate or ""
        if state in ("XX001", "XX002"):
            return IntegrityError(f"{self.name} is damaged ({text}). Restore it from a backup.")
        retryable = state.startswith(_RETRYABLE) or (not state and is_lost(error))
        advice = ""
        if in_doubt:
            retryable = True
            advice = "Whether it was committed is unknown: read the store before you try again."
        elif state == "53100":
            retryable = False
            advice = "Free some space on the server. Existing checkpoints are intact."
        elif state == "55P03":
            advice = self._describe_lock()
        elif state == "42501":
            advice = (
                f"The role needs the permissions CREATE on the database, or on the schema "
                f"{self.schema}; SELECT, INSERT, UPDATE and DELETE on its tables; and EXECUTE "
                "on its function."
            )
        elif state in ("25006", "0A000"):  # the second: no READ WRITE transaction in recovery
            advice = "The server is a replica or read-only: use the address of the primary."
        elif state == "42P07":
            advice = f"The schema {self.schema} has other tables: choose another with ?schema=name."
        elif not state and _REFUSED.search(text):
            retryable = False
            advice = "Check user, password, host, database and options of the URL."
        elif retryable and not in_doubt:
            advice = "Try again."
        end = "" if text.endswith((".", "?")) else "."
        return StorageError(
            f"Cannot use {self.name}: {text}{end} {advice}".strip(),
            retryable=retryable,
            no_room=state == "53100",
        )

    def _describe_lock(self) -> str:
        """Describe what holds the lock that was waited for."""
        holders = []
        with suppress(psycopg.Error), self._checkout() as connection:
            holders = connection.execute(_LOCK_HOLDERS, (self._lock,)).fetchall()
        if not holders:
            return f"Another writer held it for {self._lock_timeout:g} s. Try again."
        pid, name, address = holders[0]
        return (
            f"A garbage collection held it for {self._lock_timeout:g} s: {name or 'unknown'}, "
            f"server process {pid}, client {address or 'local'}. Try again when it has finished."
        )


class _NoStoreError(Exception):
    """The store does not exist yet."""


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection failed, and not a statement."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_LOST)
    return not isinstance(error, psycopg.DataError)  # of the driver, about the connection


@contextmanager
def _pipeline(connection: Connection) -> Iterator[psycopg.Pipeline]:
    """Send statements without waiting for each reply. Raises psycopg.Error."""
    try:
        with connection.pipeline() as pipeline:
            yield pipeline
    except IndexError as error:  # psycopg got more replies than there were statements
        raise out_of_step() from error


def out_of_step() -> psycopg.Error:
    """Return the error for a reply that belongs to another statement."""
    return psycopg.OperationalError("the replies of the server are out of step")


def check_status(cursor: psycopg.Cursor[Any], status: str) -> None:
    """Check that a statement did what it should. Raises psycopg.Error."""
    if cursor.statusmessage != status:
        raise out_of_step()


def _close_all(idle: list[Connection], pid: int) -> None:
    """Close the connections that process `pid` opened. A child process keeps them, unused."""
    with suppress(IndexError):  # until none is left
        while True:
            connection = idle.pop()
            if pid == os.getpid():
                _close(connection)
            else:
                _abandoned.append(connection)


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
