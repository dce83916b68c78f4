"""The store: writes, reads and removes checkpoints. Works on encoded states, not Python objects.

A checkpoint exists if and only if its stream entry exists. Nothing is updated in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agent_checkpoint import telemetry
from agent_checkpoint.backends.base import Append, Backend
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import (
    UNUSABLE,
    ConflictError,
    Hint,
    InvalidInputError,
    MissingObjectsError,
    NotFoundError,
)
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import Compression
from agent_checkpoint.records import (
    Checkpoint,
    Draft,
    Entry,
    JsonValue,
    check_key,
    short_repr,
)
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.checkpoint_entries import (
    append_record,
    now_ns,
    read_checkpoint,
    write_checkpoint,
    write_readable,
)
from agent_checkpoint.store.commit_queue import CommitQueue
from agent_checkpoint.store.format_record import FormatRecord
from agent_checkpoint.store.objects.list_cache import CachedList
from agent_checkpoint.store.objects.object_cache import ObjectCache
from agent_checkpoint.store.objects.object_format import PlainObject, missing_objects
from agent_checkpoint.store.objects.reader import MAX_STATE, Reader, object_names
from agent_checkpoint.store.objects.splitting import inline_parts, split_parts
from agent_checkpoint.store.objects.trust import trust_of
from agent_checkpoint.store.objects.writer import WriteCache, Writer
from agent_checkpoint.store.sealed_streams import read_entries, sealed_entry
from agent_checkpoint.store.store_compression import ObjectCodecs

if TYPE_CHECKING:
    from agent_checkpoint.store.import_journal import Import

_KEY_PREFIX = "key/"
_IMPORTED = b'"import":'
_TRIES = 5
NO_OBJECTS: Mapping[str, PlainObject] = MappingProxyType({})
_MOST_HEADS = 1000
_MOST_LISTS = 8


class _Head(NamedTuple):
    """The last checkpoint that this Store wrote to a key. Avoids parsing its entry again."""

    seq: int
    id: str
    mark: bytes
    """Bytes that identify the entry: its timestamp."""
    roots: tuple[str, ...]
    """The ids of the objects that it refers to."""
    is_alone: bool
    """Whether this Store wrote the head before it, too."""


class Encoded(NamedTuple):
    """An entry for the backend, its parts, the ids of referenced objects, and its whole size."""

    entry: bytes
    parts: Mapping[str, JsonValue]
    roots: tuple[str, ...]
    size: int
    redacted: int = 0


class WrittenParts(Mapping[str, JsonValue]):
    """The parts of an entry just written, parsed when they are used: most never are."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts = texts
        self._values: dict[str, JsonValue] = {}

    def __getitem__(self, name: str) -> JsonValue:
        if name not in self._values:
            self._values[name] = read_json(self._texts[name])
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]


class Store:
    """Checkpoints by key, on one backend. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.format = FormatRecord(backend)
        self.codecs = ObjectCodecs(backend)
        self._commits = CommitQueue(backend)
        self._write_cache: WriteCache = WeakKeyDictionary()
        self._lists: dict[str, list[CachedList]] = {}
        self._cache = ObjectCache()
        self._heads: dict[str, _Head] = {}
        self._trust = trust_of(backend)
        self._epochs: dict[str, int] = {}
        """The epoch of the trust at the last complete save of a key; default 0."""

    def write(
        self,
        draft: Draft,
        *,
        parents: tuple[str, ...] | None = None,
        after: int | None = None,
        ts_ns: int | None = None,
        adopted: Mapping[str, PlainObject] = NO_OBJECTS,
    ) -> Checkpoint:
        """Append a checkpoint to its key and return it with its number.

        Args:
            draft: the checkpoint to write.
            parents: the ids of its parents; default: the current head.
            after: the expected number of the head; 0 if the key must be new.
            ts_ns: its creation time; default: now.
            adopted: objects that the parts of `draft.source` reference and that may not be stored
                yet.

        Raises:
            ConflictError: the head is not the expected one; nothing was written.
            FormatError: the store has a newer format.
            StorageError: the medium failed; nothing was acknowledged.
        """
        with telemetry.operation("save", key=draft.key, kind=draft.kind) as outcome:
            written = self._append_checkpoint(draft, parents, after, ts_ns, adopted)
            outcome.update(checkpoint=written.id, size=written.size)
        return written

    def _append_checkpoint(
        self,
        draft: Draft,
        parents: tuple[str, ...] | None,
        after: int | None,
        ts_ns: int | None,
        adopted: Mapping[str, PlainObject],
    ) -> Checkpoint:
        """Append a checkpoint; see `write`. Without `parents` it follows the head."""
        self.format.check(writing=True)
        known = self._heads.get(draft.key)
        if parents is not None:
            return self._append_after(parents, draft, after, ts_ns, adopted)
        if after is None and known and known.is_alone and not self.backend.properties.is_local:
            try:  # without the round trip that reads the head
                return self._append_after((known.id,), draft, known.seq, ts_ns, adopted)
            except ConflictError:  # another process wrote to the key
                telemetry.count("conflict", operation="save")
        parents = self._readable_head(draft.key)
        return self._append_after(parents, draft, after, ts_ns, adopted)

    def _append_after(
        self,
        parents: tuple[str, ...],
        draft: Draft,
        after: int | None,
        ts_ns: int | None,
        adopted: Mapping[str, PlainObject],
    ) -> Checkpoint:
        """Append a checkpoint with these parents; see `write`."""
        known = self._heads.get(draft.key)
        ts_ns = now_ns() if ts_ns is None else ts_ns
        encode = self._encode_inline if self.backend.properties.readable else self._encode_split
        try:
            seq, (_, parts, roots, size, redacted) = self.commit(
                _stream(draft.key),
                partial(encode, draft, ts_ns, parents),
                after=after,
                draft=draft,
                adopted=adopted,
            )
        except RecursionError:
            raise InvalidInputError(
                f"The state for {short_repr(draft.key)} is nested too deeply for Python's stack."
            ) from None
        written = Checkpoint(
            key=draft.key,
            seq=seq,
            ts_ns=ts_ns,
            kind=draft.kind,
            label=draft.label,
            tags=draft.tags,
            metrics=draft.metrics,
            parents=parents,
            parts=parts,
            size=size,
            token=draft.token,
            claim=draft.claim,
            redacted=redacted,
        )
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[draft.key] = _Head(
            seq, written.id, str(ts_ns).encode(), roots, known is not None and known.id in parents
        )
        return written

    def written_seq(self, key: str, checkpoint_id: str) -> int | None:
        """Return the number of a checkpoint if it is the last one that this Store wrote to the key.

        It saves a read where an append checks that the checkpoint is still the head.
        """
        known = self._heads.get(key)
        return known.seq if known is not None and known.id == checkpoint_id else None

    def known_parts(self) -> list[Any]:
        """Return the live objects that the write cache has entries for."""
        return list(self._write_cache)

    def writer(self, key: str | None = None, *, trust_cache: bool = True) -> Writer:
        """Return a writer for the objects of a checkpoint; with a key, it uses its list cache.

        It trusts no cache at the first save of a key after an object was found missing, so that
        the save stores the object again if the state still contains it.
        """
        lists = head = None
        if key is not None:
            if key not in self._lists and len(self._lists) >= _MOST_LISTS:
                self._lists.clear()
            lists, head = self._lists.setdefault(key, []), self._heads.get(key)
            trust_cache = trust_cache and self._epochs.get(key, 0) == self._trust.epoch
        return Writer(
            self._write_cache,
            lists,
            backend=self.backend,
            compression=self._compression,
            trust_cache=trust_cache,
            trust=self._trust,
            previous=() if head is None else head.roots,
        )

    def _compression(self) -> Compression:
        """Return the compression of new objects.

        Raises:
            FormatError: the store has zstd objects, and zstd is not installed.
            StorageError: the medium failed.
        """
        self.format.check(writing=True)
        if not self.format.needs_zstd:
            self.codecs.check()
        return "zstd" if self.format.needs_zstd else "zlib"

    def reader(self, *checkpoints: Checkpoint) -> Reader:
        """Return a reader for the objects of these checkpoints."""
        return Reader(self.backend, self._cache, states=[item.parts for item in checkpoints])

    def head(self, key: str) -> Checkpoint | None:
        """Return the newest checkpoint of the key, or None if there is no such key.

        Raises:
            IntegrityError: the checkpoint is damaged.
            FormatError: the checkpoint has a newer format.
            UntrustedDataError: the store is shared, and the checkpoint has no valid seal.
            StorageError: the medium failed.
        """
        return next(self.newest_first(key, page=1), None)

    def read(self, key: str, seq: int) -> Checkpoint | None:
        """Return the checkpoint with this number, or None. Raises the same errors as `head`."""
        self.format.check()
        _, entries = self._read(key, after=seq - 1, before=seq + 1)
        return read_checkpoint(key, seq, entries[0].data) if entries else None

    def newest_first(
        self, key: str, *, before: int | None = None, page: int = 100
    ) -> Iterator[Checkpoint]:
        """Iterate over the checkpoints of a key, newest first, reading page by page.

        Raises the same errors as `head`.
        """
        for entry in self.entries(key, before=before, page=page):
            yield read_checkpoint(key, entry.seq, entry.data)

    def readable(self, key: str, *, page: int = 100) -> Iterator[Checkpoint]:
        """Iterate over the checkpoints of a key that can be read, newest first.

        `verify` reports the others. Raises FormatError, StorageError.
        """
        for entry in self.entries(key, page=page):
            try:
                checkpoint = read_checkpoint(key, entry.seq, entry.data)
            except UNUSABLE:
                continue
            yield checkpoint

    def entries(
        self,
        key: str,
        *,
        before: int | None = None,
        after: int | None = None,
        page: int = 100,
        oldest_first: bool = False,
    ) -> Iterator[Entry]:
        """Iterate over the raw entries of a key, newest first. Raises FormatError, StorageError."""
        self.format.check()
        edges = {"before": before, "after": after}
        while True:
            entries, visible = self._read(key, limit=page, newest_first=not oldest_first, **edges)
            yield from visible
            if len(entries) < page:
                return
            edges["after" if oldest_first else "before"] = entries[-1].seq

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys that have checkpoints and begin with the prefix, sorted.

        Raises:
            FormatError: the store has a newer format.
            EncryptionKeyError: the store is encrypted, and was opened without a key.
            StorageError: the medium failed.
        """
        self.format.check()
        names = self.backend.streams(_KEY_PREFIX + prefix)
        keys = {name[len(_KEY_PREFIX) :] for name in names}
        for item in self.imports():
            if item.key in keys and next(self.entries(item.key, page=1), None) is None:
                keys.remove(item.key)
        return sorted(keys)

    def imports(self) -> list[Import]:
        """Return the imports that are in progress or were interrupted.

        Raises:
            IntegrityError: the record of an import is damaged.
            StorageError: the medium failed.
        """
        with block_forks():
            from agent_checkpoint.store.import_journal import unfinished_imports

        return unfinished_imports(self.backend)

    def newest(self, key: str) -> int:
        """Return the number of the newest entry of a key, including entries of running imports.

        0 if there is none.

        Raises:
            StorageError: the medium failed.
        """
        entries = self.backend.read(_stream(key), limit=1, newest_first=True)
        return entries[0].seq if entries else 0

    def imported(self, key: str, token: str) -> list[int]:
        """Return the numbers of the checkpoints that an import has written so far.

        Raises:
            StorageError: the medium failed.
        """
        entries = self.backend.read(_stream(key))
        return [entry.seq for entry in entries if token.encode() in entry.data]

    def append_hidden(self, key: str, token: str, *, after: int) -> int:
        """Use up a number of a key: append an entry of a running import, and return its number.

        Raises:
            ConflictError: the newest entry is not number `after`.
            StorageError: the medium failed.
        """
        record: dict[str, JsonValue] = {"key": key, "import": token, "parts": {}}
        return append_record(self.backend, _stream(key), record, after=after)

    def _read(self, key: str, **which: Any) -> tuple[list[Entry], list[Entry]]:
        """Return the selected entries: all, and those that are not of an unfinished import."""
        entries = read_entries(self.backend, _stream(key), **which)
        if not any(_IMPORTED in entry.data for entry in entries):
            return entries, entries
        tokens = [item.token.encode() for item in self.imports()]
        # Read again, after the journal: an import that is not in it is complete in this read.
        entries = read_entries(self.backend, _stream(key), **which)
        visible = [entry for entry in entries if not any(token in entry.data for token in tokens)]
        return entries, visible

    def remove(self, key: str, seqs: Iterable[int]) -> None:
        """Remove checkpoints of a key permanently.

        Raises:
            FormatError: the store has a newer format.
            StorageError: the medium failed.
        """
        self.format.check(writing=True)
        self.backend.remove(_stream(key), seqs)

    def commit(
        self,
        stream: str,
        encode: Callable[[Writer], Encoded],
        *,
        after: int | None,
        draft: Draft | None = None,
        adopted: Mapping[str, PlainObject] = NO_OBJECTS,
        wait: float = 0,
    ) -> tuple[int, Encoded]:
        """Append an entry with its objects to a stream; return its number, and the entry.

        Args:
            stream: the name of the stream.
            encode: puts the objects into a writer and returns the entry. It is called again if
                gc deleted objects that the entry shares.
            after: the expected number of the newest entry.
            draft: the checkpoint that the entry contains, if any.
            adopted: objects that may not be stored yet.
            wait: seconds to wait for another thread that commits, and takes the entry along.

        Raises:
            ConflictError: the stream has a newer entry; nothing was written.
            StorageError: the medium failed; nothing was acknowledged.
        """
        key = None if draft is None else draft.key
        trust_cache = True
        for attempt in range(_TRIES):
            writer = self.writer(key, trust_cache=trust_cache)
            writer.adopt(adopted)
            encoded = encode(writer)
            objects, requires = writer.flush(encoded.roots)
            try:
                entry = sealed_entry(self.backend, stream, encoded.entry)
                item = Append(stream, entry, after, objects, requires)
                seq = self._commits.append(item, wait=wait)
            except MissingObjectsError as error:
                # gc swept objects that were unreachable when it marked: write them again. If only
                # roots of the last checkpoint are missing, it was pruned, and cannot vouch.
                head = self._heads.pop(key, None) if key is not None else None
                trust_cache = trust_cache and head is not None and error.ids <= set(head.roots)
                if draft is not None and draft.source is not None and head is None:
                    self._trust.report_lost(error.ids)
                    raise missing_objects(error.ids) from error
                if attempt == _TRIES - 1:
                    raise
            else:
                writer.committed()
                writer.fill_cache(self._cache)
                if key is not None and writer.epoch and not writer.is_partial:
                    self._epochs[key] = writer.epoch
                return seq, encoded
        raise AssertionError("unreachable: the loop returns or raises")

    def _encode_inline(
        self, draft: Draft, ts_ns: int, parents: tuple[str, ...], writer: Writer
    ) -> Encoded:
        parts = inline_parts(draft.parts, writer)
        draft = _with_count(draft, writer)
        entry = write_readable(draft, ts_ns=ts_ns, parents=parents, parts=parts)
        roots = tuple(object_names(parts.values()))
        return Encoded(entry, parts, roots, len(entry), draft.redacted)

    def _encode_split(
        self, draft: Draft, ts_ns: int, parents: tuple[str, ...], writer: Writer
    ) -> Encoded:
        if draft.source is None:
            texts, roots = split_parts(draft.parts, writer)
            size = writer.size + sum(map(len, texts.values()))
            if size > MAX_STATE:
                raise InvalidInputError(
                    f"The state for {short_repr(draft.key)} has {size:,} bytes; the limit of a "
                    f"checkpoint is {MAX_STATE:,}. Keep large files in a workspace, or split the "
                    "state over several keys."
                )
        else:
            texts = {name: write_json(tree) for name, tree in draft.parts.items()}
            roots, size = tuple(object_names(draft.parts.values())), draft.source.size
        draft = _with_count(draft, writer)
        entry = write_checkpoint(draft, ts_ns=ts_ns, parents=parents, parts=texts, size=size)
        return Encoded(entry, WrittenParts(texts), roots, size, draft.redacted)

    def _readable_head(self, key: str) -> tuple[str, ...]:
        # An unreadable newest entry must not stop an agent from saving.
        for entry in self.entries(key, page=1):
            known = self._heads.get(key)
            if known is not None and known.seq == entry.seq and known.mark in entry.data:
                return (known.id,)
            try:
                return (read_checkpoint(key, entry.seq, entry.data).id,)
            except UNUSABLE:
                continue
        return ()


def key_not_found(key: str, store: Store) -> NotFoundError:
    """Return the error for an unknown key or id, with similar keys."""
    with block_forks():
        from difflib import get_close_matches  # slow to import, and needed only here

    close = get_close_matches(key, store.list_keys(), n=3)
    hint = (
        Hint(f"Did you mean {', '.join(map(short_repr, close))}?")
        if close
        else Hint("list_keys() lists all keys.", "list_keys")
    )
    return NotFoundError(f"There is no key or checkpoint {short_repr(key)}.", hint=hint)


def _with_count(draft: Draft, writer: Writer) -> Draft:
    """Add the secrets that were replaced while the parts were written."""
    return draft._replace(redacted=draft.redacted + writer.redacted) if writer.redacted else draft


def _stream(key: str) -> str:
    return _KEY_PREFIX + check_key(key)
