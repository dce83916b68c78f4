"""Copies the record logs of a key from store to store. Records keep their numbers."""

from __future__ import annotations

from collections.abc import Iterable

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.checkpoint_entries import open_entry
from agent_checkpoint.store.ledger.ledger_archive import whole_parts
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.record_stream import RecordStream, record_log_stream
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_MOST_GAPS = 10_000
"""Maximum numbers of removed records: each costs an append, and a crafted source must not fill the
target."""


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
        theirs = RecordStream(source, record_log_stream(key, name))
        ours = RecordStream(target, theirs.name)
        known = ours.newest()
        for entry in read_entries(source.backend, theirs.name, after=known):
            where = f"Record {entry.seq} of {short_repr(theirs.name)}"
            record = open_entry(entry.data, where)
            theirs.check(entry.seq, record)
            if entry.seq - known > _MOST_GAPS:
                raise IntegrityError(f"{where} follows too many removed records.")
            count, size = count + 1, size + len(entry.data)
            whole = whole_parts(record["parts"], source.backend)
            parts = {item: with_references(tree, target.backend) for item, tree in whole.items()}
            while not dry_run and known < entry.seq:  # a number without a record gets an empty one
                is_here = known == entry.seq - 1
                known, _ = ours.append({}, parts if is_here else {}, after=known)
    return count, size
