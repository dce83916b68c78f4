"""Ledgers in archives: an exported session takes its external side effects along.

Owns the frame of a record, and importing into a store that has the ledger already; knows no
effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agent_checkpoint.errors import ConflictError, IntegrityError
from agent_checkpoint.records import Checkpoint, JsonValue, is_stream, short_repr
from agent_checkpoint.store.entries import now_ns, open_entry
from agent_checkpoint.store.ledger.account import check_records
from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    STREAM_MEMBERS,
    LedgerStream,
    check_record,
)
from agent_checkpoint.store.objects.reader import ObjectSource, Reader, object_names, resolve_tree
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.objects.varint import read_varint, write_varint
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_MOST_GAPS = 10_000
"""Most gaps in the numbers of a ledger, beyond one per record. A purge leaves gaps, but a crafted
file must not fill a store with them."""


class LedgerRecord(NamedTuple):
    """A record of a ledger in an archive."""

    lineage: str
    seq: int
    entry: bytes

    def frame(self) -> bytes:
        """Return the content of its frame in an archive."""
        name = self.lineage.encode()
        return write_varint(len(name)) + name + write_varint(self.seq) + self.entry


def read_frame(content: bytes) -> LedgerRecord:
    """Return the record of a frame. Raises IntegrityError."""
    length, start = read_varint(content, 0)
    try:
        lineage = content[start : start + length].decode()
    except UnicodeDecodeError:
        raise IntegrityError("A ledger name is not UTF-8.") from None
    if not is_stream(PREFIX + lineage):
        raise IntegrityError("A ledger name is invalid.")
    seq, start = read_varint(content, start + length)
    return LedgerRecord(lineage, seq, content[start:])


def record_of(item: LedgerRecord) -> dict[str, Any]:
    """Return the parsed and checked record. Raises IntegrityError, FormatError."""
    record = open_entry(item.entry, f"Record {item.seq} of {short_repr(PREFIX + item.lineage)}")
    check_record(item.lineage, item.seq, record)
    return record


def needed_objects(item: LedgerRecord) -> list[str]:
    """Return the names of the objects that a record needs. Raises IntegrityError."""
    return list(object_names(record_of(item)["parts"].values()))


def read_ledger(store: Store, lineage: str) -> Iterator[LedgerRecord]:
    """Iterate over the records of a ledger, in order. Raises IntegrityError, StorageError."""
    records = [
        LedgerRecord(lineage, entry.seq, entry.data)
        for entry in read_entries(store.backend, PREFIX + lineage)
    ]
    check_records(lineage, [(item.seq, record_of(item)) for item in records])
    yield from records


def may_share(store: Store, lineage: str, key: str) -> bool:
    """Return whether an imported session may use the existing ledger of that name.

    An archive names the ledger of its session. A forged archive must not gain access to the ledger
    of another session in this store. So a ledger that was used here is shared only with a session
    that has used it before.

    Raises:
        IntegrityError: the ledger is damaged.
        StorageError: the medium failed.
    """
    records = [record for _, record in LedgerStream(store, lineage).read()]
    if not records or records[-1]["type"] == "imported":
        return True
    return any(record["type"] == "epoch" and record["session"] == key for record in records)


def add_records(store: Store, records: list[LedgerRecord], source: ObjectSource) -> None:
    """Import a ledger into a store, with its numbers.

    An existing ledger of that name is never extended: else the sender of an archive could answer
    approval requests of the recipient, or forge outcomes of effects.

    Args:
        store: the target.
        records: all records of one ledger, in order.
        source: where the objects are that they need.

    Raises:
        ConflictError: the store has a ledger of that name with fewer or different records.
        IntegrityError: a record is damaged, or they are not a valid ledger.
        StorageError: the medium failed.
    """
    if not records:
        return
    lineage = records[0].lineage
    _check_numbers(records)
    check_records(lineage, [(item.seq, record_of(item)) for item in records])
    stream = LedgerStream(store, lineage)
    existing = dict(stream.read())
    last = max(existing, default=0)
    exists = last > 0
    for item in records:
        record = record_of(item)
        plain = {name: value for name, value in record.items() if name not in STREAM_MEMBERS}
        if exists:
            known = existing.get(item.seq)
            if item.seq > last or (known and any(known.get(key) != plain[key] for key in plain)):
                raise ConflictError(
                    f"This store already has the ledger {short_repr(item.lineage)}, and the "
                    "archive holds more or different records of it. They are not trusted. Import "
                    "the archive into another store."
                )
            continue
        while last < item.seq - 1:  # a placeholder for each purged number
            last = stream.append({"type": "nothing"}, {}, after=last)
        parts = _whole_parts(record["parts"], source)
        # One by one: the name of a part may look like a tag.
        parts = {name: with_references(tree, store.backend) for name, tree in parts.items()}
        last = stream.append(plain, parts, after=last)
    if not exists:
        stream.append({"type": "imported", "ts_ns": now_ns()}, {}, after=last)


def _check_numbers(records: list[LedgerRecord]) -> None:
    numbers = [item.seq for item in records]
    is_rising = all(one < other for one, other in zip([0, *numbers], numbers))
    if not is_rising or numbers[-1] > _MOST_GAPS + 2 * len(numbers):
        raise IntegrityError(
            f"The record numbers of the ledger {short_repr(records[0].lineage)} are invalid."
        )


def _whole_parts(parts: Mapping[str, JsonValue], source: ObjectSource) -> dict[str, JsonValue]:
    bounds = Checkpoint("-", 1, 0, "record", None, (), {}, (), parts)
    reader = Reader(source, checkpoints=[bounds])
    reader.fetch(parts.values())
    return {name: inline_tree(resolve_tree(tree, reader)) for name, tree in parts.items()}
