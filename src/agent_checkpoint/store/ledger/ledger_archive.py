"""Ledgers in archives: who takes a session elsewhere takes along what it did outside.

Owns the frame of a record, and what becomes of a ledger that is there already; knows no effects.
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
"""How many more numbers than two a record a ledger may have: what was purged leaves gaps, but a
crafted file must not fill a store with them."""


class LedgerRecord(NamedTuple):
    """A record of a ledger, as an archive has it."""

    lineage: str
    seq: int
    entry: bytes

    def frame(self) -> bytes:
        """Return the content of its frame."""
        name = self.lineage.encode()
        return write_varint(len(name)) + name + write_varint(self.seq) + self.entry


def read_frame(content: bytes) -> LedgerRecord:
    """Return the record of a frame. Raises IntegrityError."""
    length, start = read_varint(content, 0)
    try:
        lineage = content[start : start + length].decode()
    except UnicodeDecodeError:
        raise IntegrityError("The name of a ledger is not UTF-8.") from None
    if not is_stream(PREFIX + lineage):
        raise IntegrityError("A ledger has no name that one can have.")
    seq, start = read_varint(content, start + length)
    return LedgerRecord(lineage, seq, content[start:])


def record_of(packed: LedgerRecord) -> dict[str, Any]:
    """Return the record itself. Raises IntegrityError, FormatError."""
    record = open_entry(
        packed.entry, f"Record {packed.seq} of {short_repr(PREFIX + packed.lineage)}"
    )
    check_record(packed.lineage, packed.seq, record)
    return record


def needed_objects(packed: LedgerRecord) -> list[str]:
    """Return the names of the objects that a record needs. Raises IntegrityError."""
    return list(object_names(record_of(packed)["parts"].values()))


def read_ledger(store: Store, lineage: str) -> Iterator[LedgerRecord]:
    """Iterate over the records of a ledger, in order. Raises IntegrityError, StorageError."""
    found = [
        LedgerRecord(lineage, entry.seq, entry.data)
        for entry in read_entries(store.backend, PREFIX + lineage)
    ]
    check_records(lineage, [(packed.seq, record_of(packed)) for packed in found])
    yield from found


def may_share(store: Store, lineage: str, key: str) -> bool:
    """Tell whether an imported session may have the ledger of that name.

    Every archive of a session tells the name of its ledger. Whoever forges one with that name must
    not get at what others of this store did outside. So a ledger that was used here is shared only
    by a session that has held it, and comes back.

    Raises:
        IntegrityError: the ledger is damaged.
        StorageError: the medium failed.
    """
    there = [record for _, record in LedgerStream(store, lineage).read()]
    if not there or there[-1]["type"] == "imported":
        return True
    return any(record["type"] == "epoch" and record["session"] == key for record in there)


def add_records(store: Store, records: list[LedgerRecord], source: ObjectSource) -> None:
    """Put a ledger into a store, with the numbers that it has.

    A store that has a ledger of that name believes nothing else of it: else who sends an archive
    could answer the requests of who gets it, or say what was done.

    Args:
        store: where to.
        records: all of one ledger, in order.
        source: where the objects are that they need.

    Raises:
        ConflictError: the store has a ledger of that name, which says less, or other things.
        IntegrityError: a record is damaged, or they are no ledger.
        StorageError: the medium failed.
    """
    if not records:
        return
    lineage = records[0].lineage
    _check_numbers(records)
    check_records(lineage, [(packed.seq, record_of(packed)) for packed in records])
    stream = LedgerStream(store, lineage)
    there = dict(stream.read())
    last = max(there, default=0)
    is_there = last > 0
    for packed in records:
        record = record_of(packed)
        plain = {name: value for name, value in record.items() if name not in STREAM_MEMBERS}
        if is_there:
            known = there.get(packed.seq)
            if packed.seq > last or (known and any(known.get(key) != plain[key] for key in plain)):
                raise ConflictError(
                    f"This store has the ledger {short_repr(packed.lineage)}, and the one of the "
                    "archive says more, or other things: it is not believed. Import it into "
                    "another store."
                )
            continue
        while last < packed.seq - 1:  # a number that was purged stays one that says nothing
            last = stream.append({"type": "nothing"}, {}, after=last)
        parts = _whole_parts(record["parts"], source)
        # One by one: a part may be called as a tag is.
        parts = {name: with_references(tree, store.backend) for name, tree in parts.items()}
        last = stream.append(plain, parts, after=last)
    if not is_there:
        stream.append({"type": "imported", "ts_ns": now_ns()}, {}, after=last)


def _check_numbers(records: list[LedgerRecord]) -> None:
    numbers = [packed.seq for packed in records]
    is_rising = all(one < other for one, other in zip([0, *numbers], numbers))
    if not is_rising or numbers[-1] > _MOST_GAPS + 2 * len(numbers):
        raise IntegrityError(
            f"The ledger {short_repr(records[0].lineage)} has numbers that no ledger has."
        )


def _whole_parts(parts: Mapping[str, JsonValue], source: ObjectSource) -> dict[str, JsonValue]:
    bounds = Checkpoint("-", 1, 0, "record", None, (), {}, (), parts)
    reader = Reader(source, checkpoints=[bounds])
    reader.fetch(parts.values())
    return {name: inline_tree(resolve_tree(tree, reader)) for name, tree in parts.items()}
