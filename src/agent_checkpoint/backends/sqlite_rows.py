"""The queries of the SQLite backend, and the checksum that binds an entry to its stream and number.

SQLite has no checksums: a damaged row may hold any type and value, so every value is checked.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    only_object_ids,
    short_repr,
)

MAX_SEQ = 2**63 - 1

_BATCH = 500  # ids in one statement
_COUNTED_FROM = 64  # ids: of many, usually all are stored or none, and counting is faster
_ROWS = 128  # rows in one statement; older SQLites take 999 values
PAGE_ROWS = 10_000
"""Rows in one page of a listing."""


def add_entry(db: sqlite3.Connection, stream: str, data: bytes) -> int:
    """Insert an entry under the next number of the stream; return the number.

    Raises:
        IntegrityError: the row of the stream is damaged.
    """
    name = stream.encode()
    row = db.execute("SELECT id, last FROM streams WHERE name = ?", (name,)).fetchone()
    if row is None:
        added = db.execute("INSERT INTO streams (name, last) VALUES (?, 1)", (name,))
        number, seq = added.lastrowid, 1
    else:
        number, last = row
        if type(last) is not int or not 0 < last < MAX_SEQ - 1:
            raise IntegrityError(
                f"The stream {short_repr(stream)} is damaged: its last sequence number is invalid."
            )
        seq = last + 1
        db.execute("UPDATE streams SET last = ? WHERE id = ?", (seq, number))
    db.execute(
        "INSERT INTO entries (stream, seq, mark, data) VALUES (?, ?, ?, ?)",
        (number, seq, _mark(zlib.crc32(name), seq, data), data),
    )
    return seq


def add_objects(db: sqlite3.Connection, rows: Sequence[tuple[bytes, int, float, Any]]) -> None:
    """Insert objects: id, size, time, and data or None for a file. Existing rows are kept."""
    # Sorted by id: each page of the index is changed once, and not in random order.
    rows = sorted(rows, key=itemgetter(0))
    # Many rows per statement: Python releases the GIL once per statement and waits to get it back.
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        marks = ",".join(["(?,?,?,?)"] * len(some))
        db.execute(
            f"INSERT OR IGNORE INTO objects (id, size, ts, data) VALUES {marks}",  # noqa: S608
            list(chain.from_iterable(some)),
        )


def change_object(db: sqlite3.Connection, name: str, data: bytes, *, is_loose: bool) -> None:
    """Replace the stored bytes of an object; for a loose file, update only the size."""
    db.execute(
        "UPDATE objects SET size = ?, data = ? WHERE id = ?",
        (len(data), None if is_loose else data, bytes.fromhex(name)),
    )


def first_bytes(
    db: sqlite3.Connection, position: Any
) -> tuple[list[tuple[str, bytes | None]], list[Any] | None]:
    """Return the next page of objects, each with its first byte, or None if it is a loose file.

    A position is the row number, id and time of the last object of a page. If that object was
    deleted, its row number may have been reused, so the scan starts again from the first row.

    Returns:
        The page, and the position at its end.
    """
    rows: list[Any] = []
    if isinstance(position, list) and len(position) == 3 and type(position[0]) is int:
        rows = _first_bytes(db, _clamp(position[0]))
    if rows and [rows[0][0], rows[0][1].hex(), rows[0][2]] == position:
        del rows[0]
    else:
        rows, position = _first_bytes(db, 0), None
    if rows:
        number, name, ts, _ = rows[-1]
        position = [number, name.hex(), ts]
    return [(name.hex(), byte) for _, name, _, byte in rows], position


def _first_bytes(db: sqlite3.Connection, begin: int) -> list[Any]:
    return db.execute(
        "SELECT number, id, ts, substr(data, 1, 1) FROM objects WHERE number >= ? "
        "AND typeof(id) = 'blob' AND length(id) = 32 ORDER BY number LIMIT ?",
        (begin, PAGE_ROWS + 1),
    ).fetchall()


def newest_entry(db: sqlite3.Connection, stream: str) -> int:
    """Return the number of the newest entry, 0 if there is none."""
    (found,) = db.execute(
        "SELECT max(seq) FROM entries WHERE stream = (SELECT id FROM streams WHERE name = ?)",
        (stream.encode(),),
    ).fetchone()
    return found or 0


def read_entries(
    db: sqlite3.Connection,
    stream: str,
    *,
    before: int | None,
    after: int | None,
    limit: int | None,
    newest_first: bool,
) -> list[Entry]:
    """Return the selected entries; the data of an entry with a wrong checksum is empty."""
    name = stream.encode()
    order = "DESC" if newest_first else "ASC"
    rows = db.execute(
        "SELECT seq, mark, data FROM entries WHERE stream = (SELECT id FROM streams "  # noqa: S608
        f"WHERE name = ?) AND seq > ? AND seq < ? ORDER BY seq {order} LIMIT ?",
        (
            name,
            -1 if after is None else _clamp(after),
            MAX_SEQ if before is None else _clamp(before),
            -1 if limit is None else max(0, limit),
        ),
    )
    of_name = zlib.crc32(name)
    return [Entry(int(seq), _checked(of_name, seq, mark, data)) for seq, mark, data in rows]


def stream_names(db: sqlite3.Connection, prefix: str) -> list[str]:
    """Return the names of the streams that have entries and begin with the prefix."""
    wanted = prefix.encode("utf-8", "surrogatepass")
    rows = db.execute(
        "SELECT name FROM streams WHERE substr(name, 1, ?) = ? AND EXISTS "
        "(SELECT 1 FROM entries WHERE stream = streams.id)",
        (len(wanted), wanted),
    )
    # A damaged name is decoded lossily; the checksums of its entries then fail.
    return [name.decode("utf-8", "replace") for (name,) in rows if isinstance(name, bytes)]


def object_infos(db: sqlite3.Connection, after: int) -> list[tuple[int, ObjectInfo]]:
    """Return the next page of objects, each with its row number."""
    rows = db.execute(
        # A damaged row may hold anything: casts make size and time numbers.
        "SELECT number, id, CAST(size AS INTEGER), CAST(ts AS REAL) FROM objects "
        "WHERE number > ? AND length(id) = 32 ORDER BY number LIMIT ?",
        (after, PAGE_ROWS),
    )
    return [(number, ObjectInfo(bytes(name).hex(), size, ts)) for number, name, size, ts in rows]


def digests_of(ids: Collection[str]) -> list[bytes]:
    """Return object ids as bytes.

    Raises:
        InvalidInputError: one of them is not an object id.
    """
    valid = only_object_ids(ids)
    if len(valid) < len(ids):
        for name in ids:
            check_object_id(name)
    return _digests(valid)


def stored_objects(db: sqlite3.Connection, ids: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the existing objects: id, and data or None for a file."""
    digests = _digests(only_object_ids(list(ids)))
    return ((digest.hex(), data) for digest, data in _select(db, "id, data", digests))


def absent_objects(db: sqlite3.Connection, ids: Iterable[str]) -> set[str]:
    """Return the ids that are not stored."""
    names = set(ids)
    valid = sorted(only_object_ids(names))  # each page of the index is read once
    digests = _digests(valid)
    absent = names.difference(valid)
    for start in range(0, len(digests), _BATCH):
        batch = digests[start : start + _BATCH]
        stored = _stored(db, batch)
        if len(stored) < len(batch):
            absent.update([digest.hex() for digest in batch if digest not in stored])
    return absent


def _stored(db: sqlite3.Connection, digests: Sequence[bytes]) -> Collection[bytes]:
    """Return the ids of one batch that are stored."""
    if len(digests) >= _COUNTED_FROM:
        ((count,),) = _select(db, "count(*)", digests)
        if count in (0, len(digests)):
            return digests if count else ()
    return {digest for (digest,) in _select(db, "id", digests)}


def _select(db: sqlite3.Connection, columns: str, digests: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(digests), _BATCH):
        batch = digests[start : start + _BATCH]
        marks = ",".join("?" * len(batch))
        yield from db.execute(f"SELECT {columns} FROM objects WHERE id IN ({marks})", batch)  # noqa: S608


def _digests(ids: Iterable[str]) -> list[bytes]:
    """Return valid ids as bytes."""
    whole = bytes.fromhex("".join(ids))
    return [whole[at : at + 32] for at in range(0, len(whole), 32)]


def _mark(of_name: int, seq: int, data: bytes) -> int:
    # A flipped bit in a row key would show an intact entry under another number or stream.
    return zlib.crc32(data, zlib.crc32(b"/%d/" % seq, of_name))


def _checked(of_name: int, seq: object, mark: object, data: object) -> bytes:
    if type(seq) is int and isinstance(data, bytes) and _mark(of_name, seq, data) == mark:
        return data
    return b""


def _clamp(seq: int) -> int:
    return max(-1, min(seq, MAX_SEQ))
