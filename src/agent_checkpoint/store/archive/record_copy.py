"""Record logs of a key in copies and archives. Records keep their numbers.

Owns the frame of a record, and the rules of an import: it never extends a log that exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agent_checkpoint.errors import ConflictError, Hint, IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import is_stream, short_repr
from agent_checkpoint.store.checkpoint_entries import open_entry, seal_entry
from agent_checkpoint.store.ledger.ledger_archive import (
    check_numbers,
    pack_record,
    unpack_record,
    whole_parts,
)
from agent_checkpoint.store.objects.reader import ObjectSource, object_names
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.record_stream import LogStream, record_log_stream, record_logs
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_MOST_GAPS = 10_000
"""Maximum numbers of removed records: each costs an append, and a crafted source must not fill the
target."""


class LogRecord(NamedTuple):
    """A record of a record log in an archive."""

    log: str
    number: int
    entry: bytes

    def frame(self) -> bytes:
        """Encode the record as the content of an archive frame."""
        return pack_record(*self)

    def parts(self) -> dict[str, Any]:
        """Decode and check the entry; return its parts. Raises IntegrityError, FormatError."""
        where = f"Record {self.number} of {short_repr(self.log)}"
        parts = open_entry(self.entry, where).get("parts")
        if not isinstance(parts, dict):
            raise IntegrityError(f"{where} has no parts.")
        return parts

    def needed_objects(self) -> list[str]:
        """Return the ids of the objects that it refers to. Raises IntegrityError."""
        return list(object_names(self.parts().values()))


def read_log_frame(key: str, content: bytes) -> LogRecord:
    """Decode the content of an archive frame. Raises IntegrityError."""
    found = LogRecord(*unpack_record(content))
    if not is_stream(record_log_stream(key, found.log)):
        raise IntegrityError("The archive contains an invalid name of a record log.")
    return found


def read_logs(store: Store, key: str) -> Iterator[LogRecord]:
    """Iterate over the records of all logs of a key. Raises IntegrityError, StorageError."""
    for log in log_names(store, key):
        for number, record in LogStream(store, key, log).read_numbered():
            yield LogRecord(log, number, seal_entry({"parts": record["parts"]}))


def log_names(store: Store, key: str) -> list[str]:
    """Return the names of the record logs of a key. Raises StorageError."""
    return sorted(log for owner, log in record_logs(store, key) if owner == key)


def check_no_records(store: Store, key: str) -> None:
    """Check that a key, which is about to be imported, has no records.

    Raises:
        ConflictError: it has, although it has no checkpoint.
        StorageError: the medium failed.
    """
    for log in log_names(store, key):
        if LogStream(store, key, log).newest():
            raise ConflictError(
                f"The store already has records of {short_repr(key)}, without a checkpoint.",
                hint=Hint("Import the archive into another store."),
            )


def add_logs(
    store: Store, key: str, records: Iterable[LogRecord], source: ObjectSource, token: str
) -> None:
    """Import the record logs of a key, which has none yet.

    Args:
        store: the target.
        key: the key.
        records: the records of all logs, each log in order.
        source: the source of the objects that they refer to.
        token: that of the import; `remove_logs` removes the records with it.

    Raises:
        ConflictError: another process appended to a log meanwhile.
        IntegrityError: a record is damaged, or the numbers are not those of a log.
        StorageError: the medium failed.
    """
    logs: dict[str, list[LogRecord]] = {}
    for record in records:
        logs.setdefault(record.log, []).append(record)
    for log, found in logs.items():
        check_numbers([record.number for record in found], log)
        stream, newest = LogStream(store, key, log), 0
        for record in found:
            whole = whole_parts(record.parts(), source)
            parts = {name: with_references(tree, store.backend) for name, tree in whole.items()}
            newest = stream.append_copy(record.number, parts, after=newest, token=token)


def remove_logs(store: Store, key: str, token: str) -> None:
    """Remove the records that an import added to a key. Raises StorageError."""
    for log in log_names(store, key):
        LogStream(store, key, log).remove_imported(token)


def copy_records(
    source: Store, target: Store, key: str, names: Iterable[str], *, dry_run: bool
) -> tuple[int, int]:
    """Add the records of a key that the target lacks; return their number and bytes.

    Args:
        source: the store to read.
        target: the store to write; it has no records of the key but copies.
        key: the key.
        names: the names of its logs.
        dry_run: only check and count.

    Raises:
        ConflictError: another process extended a log meanwhile.
        IntegrityError: a record is damaged.
        StorageError: a medium failed.
    """
    count = size = 0
    for name in names:
        theirs, ours = LogStream(source, key, name), LogStream(target, key, name)
        known, newest = ours.newest_number(), ours.newest()
        for entry in read_entries(source.backend, theirs.name, after=known):
            where = f"Record {entry.seq} of {short_repr(theirs.name)}"
            record = open_entry(entry.data, where)
            theirs.check(entry.seq, record)
            number = theirs.number(entry.seq, record)
            if number <= known:
                continue
            if number - known > _MOST_GAPS:
                raise IntegrityError(f"{where} follows too many removed records.")
            count, size, known = count + 1, size + len(entry.data), number
            whole = whole_parts(record["parts"], source.backend)
            parts = {item: with_references(tree, target.backend) for item, tree in whole.items()}
            if not dry_run:
                newest = ours.append_copy(number, parts, after=newest)
    return count, size
