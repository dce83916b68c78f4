"""Ledgers in archives: the archive of a session contains the ledger of its external side effects.

Owns the frame of a ledger record, and the import into a store that already has the ledger. Does not
interpret effects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_checkpoint.errors import ConflictError, IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue, is_stream, short_repr
from agent_checkpoint.store.checkpoint_entries import now_ns, open_entry
from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    STREAM_MEMBERS,
    LedgerStream,
    check_record,
)
from agent_checkpoint.store.ledger.ledger_state import check_records
from agent_checkpoint.store.objects.reader import ObjectSource, Reader, object_names, resolve_parts
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.objects.varint import read_varint, write_varint
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_MOST_GAPS = 10_000
"""Maximum gaps in the record numbers, beyond one per record. A purge leaves gaps, and an import
fills each with a placeholder; a crafted file must not fill a store with placeholders."""


class LedgerRecord(NamedTuple):
    """A ledger record in an archive."""

    lineage: str
    seq: int
    entry: bytes

    def frame(self) -> bytes:
        """Encode the record as the content of an archive frame."""
        return pack_record(*self)


def read_frame(content: bytes) -> LedgerRecord:
    """Decode the content of an archive frame. Raises IntegrityError."""
    found = LedgerRecord(*unpack_record(content))
    if not is_stream(PREFIX + found.lineage):
        raise IntegrityError("The archive contains an invalid ledger name.")
    return found


def pack_record(name: str, number: int, entry: bytes) -> bytes:
    """Encode a record as the content of an archive frame."""
    encoded = name.encode()
    return write_varint(len(encoded)) + encoded + write_varint(number) + entry


def unpack_record(content: bytes) -> tuple[str, int, bytes]:
    """Decode what `pack_record` encoded. Raises IntegrityError."""
    length, start = read_varint(content, 0)
    try:
        name = content[start : start + length].decode()
    except UnicodeDecodeError:
        raise IntegrityError("The archive contains a name that is not UTF-8.") from None
    number, start = read_varint(content, start + length)
    return name, number, content[start:]


def record_of(item: LedgerRecord) -> dict[str, Any]:
    """Decode and check the entry of a record. Raises IntegrityError, FormatError."""
    record = open_entry(item.entry, f"Record {item.seq} of {short_repr(PREFIX + item.lineage)}")
    check_record(item.lineage, item.seq, record)
    return record


def needed_objects(item: LedgerRecord) -> list[str]:
    """Return the ids of the objects that a record refers to. Raises IntegrityError."""
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

    The archive contains the name of the ledger, and a forged archive must not gain access to the
    ledger of another session. A ledger that was used in this store is therefore shared only with
    a session that has used it before.

    Raises:
        IntegrityError: the ledger is damaged.
        StorageError: the medium failed.
    """
    records = [record for _, record in LedgerStream(store, lineage).read()]
    if not records or records[-1]["type"] == "imported":
        return True
    return any(record["type"] == "epoch" and record["session"] == key for record in records)


def add_records(store: Store, records: list[LedgerRecord], source: ObjectSource) -> None:
    """Import a ledger into a store; the records keep their numbers.

    An existing ledger of that name is never extended: otherwise the sender of an archive could
    answer approval requests of the recipient, or forge outcomes of effects.

    Args:
        store: the target.
        records: all records of one ledger, in order.
        source: the source of the objects that they refer to.

    Raises:
        ConflictError: the store has a ledger of that name with fewer or different records.
        IntegrityError: a record is damaged, or the records are not a valid ledger.
        StorageError: the medium failed.
    """
    if not records:
        return
    lineage = records[0].lineage
    check_numbers([item.seq for item in records], PREFIX + lineage)
    numbered = [(item.seq, record_of(item)) for item in records]
    check_records(lineage, numbered)
    stream = LedgerStream(store, lineage)
    existing = dict(stream.read())
    last = max(existing, default=0)
    exists = last > 0
    for seq, record in numbered:
        plain = {name: value for name, value in record.items() if name not in STREAM_MEMBERS}
        if exists:
            known = existing.get(seq)
            if seq > last or (known and any(known.get(key) != plain[key] for key in plain)):
                raise ConflictError(
                    f"This store already has the ledger {short_repr(lineage)}, and the "
                    "archive contains more or different records of it, which are not trusted. "
                    "Import the archive into another store."
                )
            continue
        while last < seq - 1:  # a placeholder for each purged number
            last, _ = stream.append({"type": "nothing"}, {}, after=last)
        parts = whole_parts(record["parts"], source)
        # One by one: the name of a part may look like a tag.
        parts = {name: with_references(tree, store.backend) for name, tree in parts.items()}
        last, _ = stream.append(plain, parts, after=last)
    if not exists:
        stream.append({"type": "imported", "ts_ns": now_ns()}, {}, after=last)


def check_numbers(numbers: list[int], name: str) -> None:
    """Check that the numbers of records rise, with few gaps. Raises IntegrityError."""
    is_rising = all(one < other for one, other in zip([0, *numbers], numbers))
    if not is_rising or numbers[-1] > _MOST_GAPS + 2 * len(numbers):
        raise IntegrityError(f"The record numbers of {short_repr(name)} are invalid.")


def whole_parts(parts: Mapping[str, JsonValue], source: ObjectSource) -> dict[str, JsonValue]:
    """Return the parts of a record with their values inline. Raises IntegrityError."""
    resolved = resolve_parts(parts, Reader(source, states=[parts]))
    return {name: inline_tree(tree) for name, tree in resolved.items()}
