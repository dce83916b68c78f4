"""Streams of records other than checkpoints, such as ledgers. Owns appending and reading them.

Large values of a record are stored as objects. Like checkpoints, records are immutable, and gc
follows the references in their `parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.errors import IntegrityError, MissingObjectsError
from agent_checkpoint.records import Checkpoint, JsonValue, check_stream, short_repr
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.checkpoint_entries import open_entry, seal_entry
from agent_checkpoint.store.objects.reader import Reader, object_names
from agent_checkpoint.store.objects.splitting import inline_parts, split_parts
from agent_checkpoint.store.sealed_streams import append_entry, read_entries
from agent_checkpoint.store.store import Store

_TRIES = 5
_PAGE = 1000


class RecordStream:
    """One append-only stream of records in a store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = check_stream(name)

    def append(
        self, record: Mapping[str, JsonValue], parts: Mapping[str, Any], *, after: int | None
    ) -> tuple[int, dict[str, Any]]:
        """Append a record durably; return its number, and the record as `read` returns it.

        Args:
            record: members with small JSON values.
            parts: encoded values of any size, by name.
            after: the expected number of the newest record.

        Raises:
            ConflictError: the stream has a newer record; nothing was written.
            StorageError: the medium failed; nothing was acknowledged.
        """
        self.store.format.check(writing=True)
        backend = self.store.backend
        for attempt in range(_TRIES):
            writer = self.store.writer(trust_cache=attempt == 0)
            if backend.properties.readable:
                trees = inline_parts(parts, writer)
            else:
                texts, _ = split_parts(parts, writer)
                trees = {name: read_json(text) for name, text in texts.items()}
            stored = {**record, "parts": trees}
            entry = seal_entry(stored, indent=backend.properties.readable)
            objects, requires = writer.flush(backend, object_names(trees.values()))
            try:
                seq = append_entry(
                    backend, self.name, entry, after=after, objects=objects, requires=requires
                )
            except MissingObjectsError:
                if attempt == _TRIES - 1:
                    raise
            else:
                writer.committed()
                return seq, stored
        raise AssertionError("unreachable: the loop returns or raises")

    def read(self, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the records with numbers above `after`, in order, each with its number.

        Raises:
            IntegrityError: a record is damaged.
            FormatError: a record has a newer format.
            UntrustedDataError: the store is shared, and a record has no valid seal.
            StorageError: the medium failed.
        """
        self.store.format.check()
        records: list[tuple[int, dict[str, Any]]] = []
        is_last = False
        while not is_last:
            page = read_entries(self.store.backend, self.name, after=after, limit=_PAGE)
            for entry in page:
                where = f"Record {entry.seq} of {short_repr(self.name)}"
                record = open_entry(entry.data, where)
                self.check(entry.seq, record)
                records.append((entry.seq, record))
                after = entry.seq
            is_last = len(page) < _PAGE
        return records

    def check(self, seq: int, record: dict[str, Any]) -> None:
        """Check the members of a record. A valid hash does not authenticate the writer.

        Raises:
            IntegrityError: the record is invalid.
        """
        if not isinstance(record.get("parts"), dict):
            raise IntegrityError(f"Record {seq} of {short_repr(self.name)} has no parts.")

    def reader(self, parts: Mapping[str, JsonValue]) -> Reader:
        """Fetch the objects of a record's parts, and return a reader for them.

        Raises:
            IntegrityError: an object is missing or damaged.
            StorageError: the medium failed.
        """
        bounds = Checkpoint("-", 1, 0, "record", None, (), {}, (), parts)
        reader = self.store.reader(bounds)
        reader.fetch(parts.values())
        return reader
