"""The PostgreSQL backend: objects and streams in four tables of one database schema.

store     the schema version and the identity of the store
streams   the name and the last number of each stream; its row lock orders the appends
entries   the entries, each with the id of the write that made it
objects   the objects
"""

# ruff: noqa: S608 - the only texts in statements are table names, of a checked schema

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

import psycopg

from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Backend,
    BackendProperties,
    Changes,
    check_compression,
    check_newest,
)
from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT
from agent_checkpoint.backends.os_support.posix import check_lock_timeout
from agent_checkpoint.backends.postgres_connections import (
    Connection,
    Connections,
    check_schema_name,
    check_status,
    is_lost,
    parse_url,
)
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    MissingObjectsError,
    StorageError,
)
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    check_stream,
    is_object_id,
    is_stream,
    short_repr,
)

_MAX_SEQ = 2**63 - 1
_MAX_NAME = 2600  # bytes of a stream name: the limit of an index of PostgreSQL
_PAGE_ROWS = 10_000
_BATCH_IDS = 1000
_MOST_STREAMS = 10_000
_BATCH_BYTES = 4 << 20


class PostgresBackend(Backend):
    """Objects and streams in a PostgreSQL database, for many processes and machines."""

    durability = "full"
    _properties: BackendProperties | None = None

    def __init__(self, url: str, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        """Use the database of a URL. Connects at the first call; the first write creates the store.

        Args:
            url: `postgresql://user@host/database`, with the options of libpq, and `schema` (the
                database schema, by default `agent_checkpoint`), `shared` and `compression`.
            lock_timeout: seconds to wait for another writer or a garbage collection. The server
                ends the transaction of a process that stalls for half of it.

        Raises:
            InvalidInputError: the URL or an option is malformed.
        """
        parsed = parse_url(url)
        shared = parsed.options.get("shared", "0")
        if shared not in ("0", "1"):
            raise InvalidInputError(f"{short_repr(f'shared={shared}')} must be 0 or 1.")
        self.shared = shared == "1"
        compression = parsed.options.get("compression")
        self.compression = check_compression(compression)  # type: ignore[arg-type] # checks it
        schema = check_schema_name(parsed.options.get("schema", "agent_checkpoint"))
        self.url = parsed.public
        self._connections = Connections(parsed, schema, check_lock_timeout(lock_timeout))
        self._streams = f"{schema}.streams"
        self._entries = f"{schema}.entries"
        self._objects = f"{schema}.objects"
        self._last: dict[str, tuple[int, UUID]] = {}
        """The number and write id of the last entry of streams that no other process writes to."""

    @property
    def properties(self) -> BackendProperties:
        """Built once: every save reads it several times."""
        if self._properties is None:
            self._properties = super().properties
        return self._properties

    def __repr__(self) -> str:
        return f"PostgresBackend({self.url!r})"

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store the objects in one transaction. Raises InvalidInputError and StorageError."""
        rows = _rows(objects)

        def work(connection: Connection) -> None:
            with self._connections.transaction(connection) as results:
                self._put(connection, rows)
                results()
                committed = connection.execute("COMMIT")
            check_status(committed, "COMMIT")

        self._connections.write(work)

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects. Raises StorageError."""
        query = f"SELECT id, data FROM {self._objects} WHERE id = ANY(%b)"
        return {
            name.hex(): data
            for batch in _batches(_digests(ids))
            for name, data in self._connections.read(query, (batch,))
        }

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored. Raises StorageError."""
        wanted = set(ids)
        query = f"SELECT id FROM {self._objects} WHERE id = ANY(%b)"
        for batch in _batches(_digests(wanted)):
            wanted -= {name.hex() for (name,) in self._connections.read(query, (batch,))}
        return wanted

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over the objects, page by page. Raises StorageError."""
        query = (
            f"SELECT id, octet_length(data), ts FROM {self._objects} WHERE id > %b "
            "ORDER BY id LIMIT %s"
        )
        after = b""
        while True:
            page = self._connections.read(query, (after, _PAGE_ROWS))
            for name, size, ts in page:
                yield ObjectInfo(name.hex(), size, ts)
            if len(page) < _PAGE_ROWS:
                return
            after = page[-1][0]

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects in one transaction, under the exclusive lock. Raises StorageError."""
        if not self._connections.exists():
            return
        with self._connections.exclusive() as connection:
            batches = []
            for batch in _batches(_digests(ids), _PAGE_ROWS):
                batches.append(batch)
                connection.execute("SELECT")  # the server ends a transaction that stalls
            for batch in batches:
                connection.execute(f"DELETE FROM {self._objects} WHERE id = ANY(%b)", (batch,))

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
        """Commit objects and entry in one transaction, in one round trip, or in two if contended.

        Raises ConflictError, MissingObjectsError and StorageError.
        """
        name = check_stream(stream).encode()
        if len(name) > _MAX_NAME:
            raise InvalidInputError(
                f"The name of the stream {short_repr(stream)} has {len(name)} bytes; PostgreSQL "
                f"stores up to {_MAX_NAME}."
            )
        write, rows = _Write(), _rows(objects)
        is_small = len(rows) <= _BATCH_IDS and sum(len(row[1]) for row in rows) <= _BATCH_BYTES

        def work(connection: Connection) -> int:
            was_certain = write.in_doubt is None
            known = self._last.get(stream)
            try:
                if was_certain and is_small and known and after in (None, known[0]):
                    write.in_doubt = known[0] + 1
                    ids, contents = [row[0] for row in rows], [row[1] for row in rows]
                    stored = (write.id, entry, time.time(), ids, contents)
                    if self._connections.append_after(
                        connection,
                        write.id,
                        *(name, known[0], after is not None, known[1], *stored),
                        list({*_digests(requires)}.difference(ids)),
                    ):
                        return known[0] + 1
                    write.in_doubt = None
                return self._append(connection, write, (stream, name), entry, after, rows, requires)
            except psycopg.Error as error:
                if was_certain and not is_lost(error):
                    write.in_doubt = None  # the server has rolled back
                raise

        try:
            seq = self._connections.write(work)
        except StorageError as error:
            if write.in_doubt is None:
                raise
            raise StorageError(
                f"The connection to {self.url} was lost during a commit. Whether the entry of the "
                f"stream {short_repr(stream)} was stored is unknown: read it before you try again.",
                retryable=True,
                outcome_unknown=True,
            ) from error
        if len(self._last) >= _MOST_STREAMS:
            self._last.clear()
        self._last[stream] = seq, write.id
        return seq

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the selected entries. Raises StorageError."""
        if not is_stream(stream):
            return []
        query = (
            f"SELECT seq, data FROM {self._entries} WHERE stream = (SELECT id FROM "
            f"{self._streams} WHERE name = %b) AND seq > %s AND seq < %s "
            f"ORDER BY seq {'DESC' if newest_first else 'ASC'} LIMIT %s"
        )
        values = (
            stream.encode(),
            -1 if after is None else _clamp(after),
            _MAX_SEQ if before is None else _clamp(before),
            None if limit is None else _clamp(max(0, limit)),
        )
        found = [Entry(seq, data) for seq, data in self._connections.read(query, values)]
        known = self._last.get(stream)
        if known and any(entry.seq > known[0] for entry in found):
            self._last.pop(stream, None)
        return found

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries; their numbers are not reused. Raises StorageError."""
        doomed = [seq for seq in set(seqs) if 0 < seq < _MAX_SEQ]
        if not is_stream(stream) or not doomed or not self._connections.exists():
            return
        query = (
            f"DELETE FROM {self._entries} WHERE stream = (SELECT id FROM {self._streams} "
            "WHERE name = %b) AND seq = ANY(%b)"
        )

        def work(connection: Connection) -> None:
            with self._connections.transaction(connection) as results:
                connection.execute(query, (stream.encode(), doomed))
                results()
                committed = connection.execute("COMMIT")
            check_status(committed, "COMMIT")

        self._connections.write(work)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over a snapshot of the names of streams with entries. Raises StorageError."""
        first = prefix.encode("utf-8", "surrogatepass")
        # UTF-8 has no byte 255, so the last one can be increased.
        end = first[:-1] + bytes([first[-1] + 1]) if first else None
        query = (
            f"SELECT name FROM {self._streams} AS named WHERE name >= %b "
            f"AND (%b::bytea IS NULL OR name < %b) AND EXISTS "
            f"(SELECT 1 FROM {self._entries} WHERE stream = named.id)"
        )
        rows = self._connections.read(query, (first, end, end))
        return iter([name.decode("utf-8", "replace") for (name,) in rows])

    def scrub(self) -> None:
        """Rewrite the tables without deleted rows. Blocks reads, too. Raises StorageError.

        Write-ahead log, replicas and backups of the server keep deleted bytes for longer.
        """
        if not self._connections.exists():
            return
        with self._connections.exclusive() as connection:
            for table in (self._entries, self._objects):
                # VACUUM FULL would keep rows that other transactions may see, and cannot run in
                # a transaction. A computed column makes the server write live rows to a new file.
                connection.execute(
                    f"ALTER TABLE {table} ALTER COLUMN data TYPE bytea USING data || ''::bytea"
                )

    def changes(self, position: Any = None) -> Changes:
        """Return what transactions wrote that were not over at a position. Raises StorageError.

        The position is the oldest transaction that was running. Every row has the number of the
        transaction that wrote it; each append writes the row of its stream.
        """
        now = self._connections.read("SELECT pg_snapshot_xmin(pg_current_snapshot())::text", ())
        reached = int(now[0][0]) if now else None
        if position is None:
            return Changes(self.streams(), self.list_objects(), reached)
        # The numbers of rows have 32 bits and wrap around; ages compare them nevertheless.
        is_new = "WHERE age(xmin) <= age(%s::xid)"
        values = (str(position % 2**32),)
        streams = self._connections.read(f"SELECT name FROM {self._streams} {is_new}", values)
        objects = self._connections.read(
            f"SELECT id, octet_length(data), ts FROM {self._objects} {is_new}", values
        )
        return Changes(
            [name.decode("utf-8", "replace") for (name,) in streams],
            [ObjectInfo(name.hex(), size, ts) for name, size, ts in objects],
            reached,
        )

    def is_replaced(self) -> bool:
        """Return whether the store was removed or replaced. Raises StorageError."""
        return self._connections.is_replaced()

    def close(self) -> None:
        """Close the connections; a later call reopens the same store."""
        self._connections.close()

    # -- internals -------------------------------------------------------------------------------

    def _put(self, connection: Connection, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Insert objects; rows that exist are kept. Sorted rows cannot deadlock."""
        query = (
            f"INSERT INTO {self._objects} (id, ts, data) SELECT id, %s, data "
            "FROM unnest(%b::bytea[], %b::bytea[]) AS new (id, data) ON CONFLICT DO NOTHING"
        )
        now = time.time()
        start = size = 0
        for end, (_, data) in enumerate(rows, 1):
            size += len(data)
            if size >= _BATCH_BYTES or end - start == _BATCH_IDS or end == len(rows):
                names, contents = zip(*rows[start:end])
                connection.execute(query, (now, list(names), list(contents)))
                start, size = end, 0

    def _append(
        self,
        connection: Connection,
        write: _Write,
        stream: tuple[str, bytes],
        entry: bytes,
        after: int | None,
        rows: Sequence[tuple[bytes, bytes]],
        requires: Collection[str],
    ) -> int:
        """Attempt an append. Raises the errors of `append`, and psycopg.Error."""
        streams, entries, name = self._streams, self._entries, (stream[1],)
        of_stream = f"WHERE stream = (SELECT id FROM {streams} WHERE name = %b)"
        with self._connections.transaction(connection) as results:
            connection.execute(
                f"INSERT INTO {streams} (name, last) VALUES (%b, 0) ON CONFLICT DO NOTHING", name
            )
            # Waits for the transaction before, even for an earlier attempt of this write. The
            # statements after it see what that transaction committed. Before the objects, as in
            # `append_after`: in another order two appends could wait for each other.
            locked = connection.execute(
                f"SELECT id, last FROM {streams} WHERE name = %b FOR UPDATE", name
            )
            self._put(connection, rows)
            present = requires and connection.execute(
                f"SELECT id FROM {self._objects} WHERE id = ANY(%b)",
                (list(_digests(requires)),),
                binary=True,
            )
            found = after is not None and connection.execute(
                f"SELECT seq, write_id FROM {entries} {of_stream} ORDER BY seq DESC LIMIT 1", name
            )
            earlier = write.in_doubt and connection.execute(
                f"SELECT write_id FROM {entries} {of_stream} AND seq = %s", (*name, write.in_doubt)
            )
            results()
            ((number, last),) = locked.fetchall()
            doubtful = write.in_doubt
            if doubtful is not None and write.is_committed(
                doubtful, earlier.fetchone() if earlier else None, last
            ):
                connection.execute("ROLLBACK")
                return doubtful
            missing = set(requires) - {row.hex() for (row,) in present or ()}
            newest, by = (found.fetchone() or (0, None)) if found else (after, None)
            known = self._last.get(stream[0])
            is_replaced = known is not None and known[0] == after and known[1] != by
            if missing or after != newest or is_replaced:
                connection.execute("ROLLBACK")
                if doubtful is not None:  # a statement that is late must not store it after all
                    connection.execute(
                        f"UPDATE {streams} SET last = %s WHERE name = %b AND last < %s",
                        (doubtful, *name, doubtful),
                    )
                    results()
                    write.in_doubt = None
                self._last.pop(stream[0], None)
                check_newest(stream[0], newest or 0, after)
                if is_replaced:
                    raise ConflictError(
                        f"The entry {after} of the stream {short_repr(stream[0])} is not the one "
                        "that was written: the server was set back to an earlier state."
                    )
                raise MissingObjectsError(missing)
            seq = int(last) + 1
            write.in_doubt = seq
            inserted = connection.execute(
                f"WITH moved AS (UPDATE {streams} SET last = %s WHERE id = %s) INSERT INTO "
                f"{entries} (stream, seq, write_id, data) VALUES (%s, %s, %s, %b)",
                (seq, number, number, seq, write.id, entry),
            )
            committed = connection.execute("COMMIT")
        check_status(inserted, "INSERT 0 1")
        check_status(committed, "COMMIT")
        return seq


class _Write:
    """The attempts of one append. The id in the entry tells whether one of them was committed."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.in_doubt: int | None = None
        """The number of the entry whose commit was not acknowledged."""

    def is_committed(self, seq: int, found: tuple[UUID] | None, last: int) -> bool:
        """Return whether an earlier attempt was committed, under the row lock of the stream.

        Args:
            seq: the number of the entry of that attempt.
            found: the write id of the entry with that number.
            last: the last number of the stream.

        Raises:
            StorageError: the entry with that number was removed, so it may have been any.
        """
        if found is None and last >= seq:
            raise StorageError(f"The entry {seq} was removed.")  # the caller adds the rest
        return found == (self.id,)


def _rows(objects: Mapping[str, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the rows of objects, sorted by id. Raises InvalidInputError."""
    return sorted(
        (bytes.fromhex(check_object_id(name)), bytes(data)) for name, data in objects.items()
    )


def _digests(ids: Iterable[str]) -> Iterator[bytes]:
    """Iterate over the valid ids, as bytes."""
    return (bytes.fromhex(name) for name in ids if is_object_id(name))


def _batches(items: Iterator[bytes], size: int = _BATCH_IDS) -> Iterator[list[bytes]]:
    while batch := list(islice(items, size)):
        yield batch


def _clamp(number: int) -> int:
    return max(-1, min(number, _MAX_SEQ))
