"""Streams of records other than checkpoints, such as ledgers. Owns appending and reading them.

Large values of a record are stored as objects. Like checkpoints, records are immutable, and gc
follows the references in their `parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from agent_checkpoint.errors import UNUSABLE, IntegrityError
from agent_checkpoint.records import JsonValue, check_stream, short_repr
from agent_checkpoint.store.checkpoint_entries import open_entry, seal_entry, seal_parts
from agent_checkpoint.store.objects.reader import Reader, object_names
from agent_checkpoint.store.objects.splitting import inline_parts, split_parts
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Encoded, Store, WrittenParts

_PAGE = 1000
_NUMBER = "number"
_TOKEN = "token"  # noqa: S105 - a member of a record, not a secret
RECORD_LOGS = "meta/records/"
"""Prefix of the streams of record logs, which belong to a key: `meta/records/<key>/<name>`."""


def record_log_stream(key: str, name: str) -> str:
    """Return the name of the stream of a record log; key and name are percent-encoded."""
    return f"{RECORD_LOGS}{_quoted(key)}/{quote(name, '')}"


@lru_cache(maxsize=64)
def _quoted(key: str) -> str:
    return quote(key, "")


def record_logs(store: Store, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over the record logs of the keys that begin with the prefix: key and name of each.

    Raises:
        StorageError: the medium failed.
    """
    for stream in store.backend.streams(RECORD_LOGS + quote(prefix, "")):
        key, _, name = stream[len(RECORD_LOGS) :].partition("/")
        yield unquote(key), unquote(name)


class RecordStream:
    """One append-only stream of records in a store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = check_stream(name)

    def append(
        self,
        record: Mapping[str, JsonValue],
        parts: Mapping[str, Any],
        *,
        after: int | None,
        wait: float = 0,
    ) -> tuple[int, dict[str, Any]]:
        """Append a record durably; return its number, and the record as `read` returns it.

        Args:
            record: members with small JSON values.
            parts: encoded values of any size, by name.
            after: the expected number of the newest record.
            wait: as for `Store.commit`.

        Raises:
            ConflictError: the stream has a newer record; nothing was written.
            StorageError: the medium failed; nothing was acknowledged.
        """
        self.store.format.check(writing=True)
        is_readable = self.store.backend.properties.readable

        def encode(writer: Writer) -> Encoded:
            if is_readable:
                trees = inline_parts(parts, writer)
                entry = seal_entry({**record, "parts": trees}, indent=True)
                return Encoded(entry, trees, tuple(object_names(trees.values())), len(entry))
            texts, roots = split_parts(parts, writer)
            entry = seal_parts(dict(record), texts)
            return Encoded(entry, WrittenParts(texts), roots, len(entry))

        seq, encoded = self.store.commit(self.name, encode, after=after, wait=wait)
        return seq, {**record, "parts": encoded.parts}

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

    def newest(self) -> int:
        """Return the number of the newest record, 0 if there is none. Raises StorageError."""
        entries = self.store.backend.read(self.name, limit=1, newest_first=True)
        return entries[0].seq if entries else 0

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
        reader = Reader(self.store.backend, states=[parts])
        reader.fetch(parts.values())
        return reader


class LogStream(RecordStream):
    """The stream of a record log. A copied record keeps its number, which is at most its entry's.

    So numbers rise and stay unique, also if the log was cleared and its entries count from there.
    """

    def __init__(self, store: Store, key: str, log: str) -> None:
        super().__init__(store, record_log_stream(key, log))

    def number(self, seq: int, record: Mapping[str, Any]) -> int:
        """Return the number of the record in an entry. Raises IntegrityError."""
        number = record.get(_NUMBER, seq)
        if type(number) is not int or not 0 < number <= seq:
            raise IntegrityError(f"Record {seq} of {short_repr(self.name)} has a wrong number.")
        return number

    def read_numbered(self, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
        """Return the records with numbers above `after`, without those of an unfinished import.

        Raises the same errors as `read`.
        """
        found = self.read(after)
        hidden: set[Any] = set()
        if any(_TOKEN in record for _, record in found):
            hidden = {item.token for item in self.store.imports()}
        numbered = [
            (self.number(seq, record), record)
            for seq, record in found
            if record.get(_TOKEN) not in hidden
        ]
        return [(number, record) for number, record in numbered if number > after]

    def newest_number(self) -> int:
        """Return the number of the newest record, 0 if there is none.

        Raises IntegrityError, StorageError.
        """
        entries = self.store.backend.read(self.name, limit=1, newest_first=True)
        if not entries or f'"{_NUMBER}"'.encode() not in entries[0].data:
            return entries[0].seq if entries else 0
        found = self.read(entries[0].seq - 1)
        return self.number(*found[-1]) if found else 0

    def clear(self, before: int | None = None) -> None:
        """Remove all records, or those with numbers below `before`.

        Raises:
            IntegrityError: `before` is given, and a record is damaged.
            StorageError: the medium failed.
        """
        if before is None:
            removed = [entry.seq for entry in self.store.backend.read(self.name)]
        else:
            removed = [seq for seq, one in self.read() if self.number(seq, one) < before]
        self.store.backend.remove(self.name, removed)

    def append_copy(
        self, number: int, parts: Mapping[str, Any], *, after: int, token: str | None = None
    ) -> int:
        """Append a copy of a record; return the number of its entry.

        Args:
            number: the number of the record.
            parts: its parts.
            after: the expected number of the newest entry.
            token: that of the import, which `remove_imported` takes.

        Raises the same errors as `append`.
        """
        members: dict[str, JsonValue] = {} if token is None else {_TOKEN: token}
        while after < number - 1:  # the number of a removed record gets an empty one
            after, _ = self.append(members, {}, after=after)
        return self.append({**members, _NUMBER: number}, parts, after=after)[0]

    def remove_imported(self, token: str) -> None:
        """Remove the records of an import. Raises StorageError."""
        removed = []
        for entry in read_entries(self.store.backend, self.name):
            with suppress(*UNUSABLE):
                if open_entry(entry.data, self.name).get(_TOKEN) == token:
                    removed.append(entry.seq)
        self.store.backend.remove(self.name, removed)
