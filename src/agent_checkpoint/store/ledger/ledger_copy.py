"""Copies a ledger from store to store, record by record.

Owns the form of a copied record. Its member `copied` is its number in the source, at which it
applies. No copied record grants anything: epochs and answers become placeholders, and requests have
expired. Each record is therefore safe by itself, and a copy can be interrupted after any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.checkpoint_entries import open_entry
from agent_checkpoint.store.ledger.ledger_archive import (
    LedgerRecord,
    check_numbers,
    read_ledger,
    record_of,
    whole_parts,
)
from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    STREAM_MEMBERS,
    LedgerStream,
    effective_seq,
)
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

_COPIED = "copied"
_PLACEHOLDER = "nothing"


class _Known(NamedTuple):
    """The ledger in the target: its newest number, and its newest copied record."""

    newest: int
    copied: dict[str, Any]

    @property
    def last(self) -> int:
        """The number of the newest copied record in the source."""
        return int(self.copied.get(_COPIED, 0))


def copy_ledger(
    source: Store,
    target: Store,
    lineage: str,
    *,
    is_live: Callable[[str], bool],
    is_needed: bool,
    dry_run: bool,
) -> tuple[int, int]:
    """Add the records that the target lacks; return their number, and their bytes in the source.

    Args:
        source: the store to read.
        target: the store to write.
        lineage: the name of the ledger.
        is_live: whether the target has checkpoints of a key that are not copies.
        is_needed: whether checkpoints that refer to the ledger will be copied.
        dry_run: only check and count.

    Raises:
        ConflictError: the ledger in the target has other records; nothing was written. Or another
            process extended it meanwhile.
        IntegrityError: a record is damaged, or the records are not a valid ledger.
        UntrustedDataError: a store is shared, and a record has no valid seal.
        StorageError: a medium failed.
    """
    newest, _ = _newest(source, lineage)
    known = _known(target, lineage, newest, is_live, is_needed)
    if known is None or newest <= known.last:
        return 0, 0
    records = list(read_ledger(source, lineage))
    check_numbers([item.seq for item in records], lineage)
    for item in records:
        if item.seq == known.last:
            copy = _as_copied(item)
            if any(known.copied.get(name) != copy[name] for name in copy):
                raise _diverged(lineage, f"record {item.seq} differs from the source")
    new = [item for item in records if item.seq > known.last]
    if not dry_run:
        _append_all(source, target, new, known.newest)
    return len(new), sum(len(item.entry) for item in new)


def has_own_records(target: Store, lineage: str) -> bool:
    """Return whether a ledger has effects that were recorded in this store, which no copy extends.

    Raises IntegrityError and StorageError.
    """
    records = (record for _, record in LedgerStream(target, lineage).read())
    return any(record["type"] != "epoch" and not _is_copied(record) for record in records)


def _append_all(source: Store, target: Store, records: list[LedgerRecord], newest: int) -> None:
    """Append records; they keep their numbers, or have `instead` if these are in use."""
    stream = LedgerStream(target, records[0].lineage)

    def append(record: dict[str, JsonValue], parts: dict[str, Any]) -> int:
        seq, _ = stream.append(record, parts, after=newest)
        if seq != newest + 1:  # the record would apply at another number
            target.backend.remove(stream.name, [seq])
            raise _diverged(stream.lineage, f"record {newest + 1} was removed there")
        return seq

    for item in records:
        while newest < item.seq - 1:
            newest = append({"type": _PLACEHOLDER, _COPIED: newest + 1}, {})
        copy = _as_copied(item)
        parts: dict[str, Any] = {}
        if copy["type"] != _PLACEHOLDER:
            original = record_of(item)
            if newest != item.seq - 1:
                copy["instead"] = effective_seq(item.seq, original)
            whole = whole_parts(original["parts"], source.backend)
            parts = {name: with_references(tree, target.backend) for name, tree in whole.items()}
        newest = append(copy, parts)


def _as_copied(item: LedgerRecord) -> dict[str, JsonValue]:
    """Return the members of a record in the copy."""
    record = record_of(item)
    if record["type"] in ("epoch", "answered"):
        return {"type": _PLACEHOLDER, _COPIED: item.seq}
    copy = {name: value for name, value in record.items() if name not in STREAM_MEMBERS}
    copy.pop("seal", None)  # that of a shared store
    if record["type"] == "asked":
        copy["expires"] = 0
    return {**copy, _COPIED: item.seq}


def _newest(store: Store, lineage: str) -> tuple[int, dict[str, Any]]:
    """Return the newest record of a ledger, with its number; 0 if there is none."""
    for entry in read_entries(store.backend, PREFIX + lineage, limit=1, newest_first=True):
        return entry.seq, open_entry(
            entry.data, f"Record {entry.seq} of {short_repr(PREFIX + lineage)}"
        )
    return 0, {}


def _is_copied(record: dict[str, Any]) -> bool:
    return type(record.get(_COPIED)) is int


def _known(
    target: Store, lineage: str, newest: int, is_live: Callable[[str], bool], is_needed: bool
) -> _Known | None:
    """Return the ledger in the target; None if it has own records, and needs no others.

    A copy extends only what copies wrote: otherwise a source could forge outcomes of effects of
    the user's sessions. If the newest record is copied, so are all but epochs of deleted sessions.
    Raises ConflictError.
    """
    seq, record = _newest(target, lineage)
    if seq == 0 or _is_copied(record):
        return _Known(seq, record)
    numbered = LedgerStream(target, lineage).read()
    copied = [record for _, record in numbered if _is_copied(record)]
    known = _Known(seq, copied[-1] if copied else {})
    own = [(number, record) for number, record in numbered if not _is_copied(record)]
    for number, record in own:
        if record["type"] != "epoch" or is_live(record["session"]):
            if is_needed or newest > (known.last if copied else seq):
                raise _diverged(lineage, f"record {number} was written there")
            return None
    return known


def _diverged(lineage: str, why: str) -> ConflictError:
    return ConflictError(
        f"The ledger {short_repr(lineage)} in the target cannot be extended: {why}. "
        "Copy the session to a new store instead."
    )
