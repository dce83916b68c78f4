"""Collects the objects of one checkpoint until its entry is written.

Owns which objects are new and which are stored already; knows nothing of their content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import FormatError, IntegrityError, InvalidInputError
from agent_checkpoint.store.objects.decode_budget import BASE_BUDGET, PackedSizes, content_allowance
from agent_checkpoint.store.objects.list_cache import ListCache
from agent_checkpoint.store.objects.object_cache import ObjectCache
from agent_checkpoint.store.objects.object_format import (
    Object,
    PlainObject,
    as_read,
    make_object,
    open_object,
)

_QUERY_THRESHOLD = 16384
"""Up to this many bytes are written without a query for objects that exist already."""

_BATCH = 1 << 25
"""More bytes than this are stored before the entry, in batches: they need not fit one commit."""

_MAX_CACHED = 1000

WriteCache = WeakKeyDictionary[Any, Any]
"""What a store is known to hold of a live object, by that object."""


class Writer:
    """Collects objects; `flush` decides which of them have to be written."""

    def __init__(
        self,
        write_cache: WriteCache,
        lists: ListCache | None = None,
        *,
        backend: Backend | None = None,
        compression: Callable[[], str] = lambda: "zlib",
        trust_cache: bool = True,
    ) -> None:
        """Begin a checkpoint.

        Args:
            write_cache: what the store is known to hold, by live object; weak keys.
            lists: the cached long lists of the key.
            backend: stores objects before the entry; without one, all are collected here.
            compression: returns the compression, right before objects are stored; raises if
                none may be stored.
            trust_cache: whether objects of earlier checkpoints may be referred to without being
                made again.
        """
        self.backend = backend
        self.compression = compression
        self.write_cache = write_cache
        self.trust_cache = trust_cache
        self.lists = (lists or ListCache()).begin()
        self.size = 0
        """Bytes of all out-of-line values as text, counted without sharing."""
        self.decode_cost = 0
        """Decode cost of the out-of-line values."""
        self._pending: dict[str, PlainObject] = {}
        self._new: set[str] = set()
        self._committed: list[Callable[[], object]] = []

    def put(self, kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> str:
        """Add an object to be written, and return its name.

        Raises:
            IntegrityError: it is larger than an object may be.
        """
        name, packed = make_object(kind, payload, refs)
        self._pending[name] = packed
        return name

    def adopt(self, objects: Mapping[str, PlainObject]) -> None:
        """Add objects that were made elsewhere."""
        self._pending.update(objects)

    def holds(self, name: str) -> bool:
        """Return whether an object was put already."""
        return name in self._pending

    def merge(self, other: Writer) -> None:
        """Add what another writer has collected."""
        self._pending.update(other._pending)
        self._committed += other._committed

    def missing_from_store(self, names: Collection[str]) -> Collection[str]:
        """Return the names that the store does not have. Raises StorageError."""
        return names if self.backend is None else self.backend.missing_objects(names)

    def put_early(self, objects: Mapping[str, bytes]) -> None:
        """Store terminal objects right away, because they are many. Safe from any thread.

        Raises:
            StorageError: the medium failed.
        """
        if objects and self.backend is not None:
            self.backend.put_objects(objects)

    def pending(self) -> Iterable[tuple[str, PlainObject]]:
        """Return the objects that were put, by name; children first."""
        return self._pending.items()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Register a callback for when the entry is durable."""
        self._committed.append(call)

    def committed(self) -> None:
        """Run the callbacks: the entry is durable."""
        for call in self._committed:
            call()

    def fill_cache(self, cache: ObjectCache) -> None:
        """Cache the new objects: they are likely to be read next.

        A first snapshot of many directories is not cached; it would evict everything else.
        """
        for name in self._new if len(self._new) <= _MAX_CACHED else ():
            cache.put_object(name, as_read(self._pending[name]))

    def check_decode_cost(self, roots: Iterable[str], backend: Backend | None = None) -> None:
        """Refuse a state that a load would refuse for its decode cost.

        Args:
            roots: the names of its topmost objects.
            backend: where the objects are that were not put here.

        Raises:
            InvalidInputError: the decode cost is too high for the content.
            StorageError: the medium failed.
        """
        if self.decode_cost <= BASE_BUDGET:
            return

        def fetch(names: Sequence[str]) -> Iterator[tuple[str, Object]]:
            elsewhere = [name for name in names if name not in self._pending]
            found = {} if backend is None else backend.get_objects(elsewhere)
            for name in names:
                if name in self._pending:
                    yield name, as_read(self._pending[name])
                elif name in found:  # else the append fails
                    with suppress(IntegrityError, FormatError):  # verify() reports it
                        yield name, open_object(name, found[name])

        known: PackedSizes = self.write_cache.setdefault(
            content_allowance, {}
        )  # by the function, which stays
        if content_allowance(roots, 2 * self.decode_cost, fetch, known) < 2 * self.decode_cost:
            raise InvalidInputError(
                f"The state exceeds the decode limit: decode cost {self.decode_cost:,} (brackets, "
                "quotes and commas of its JSON), with too little distinct content. A load would "
                "refuse it as a decompression bomb. Store repeated values once, as bytes, or as a "
                "numpy array."
            )

    def flush(self, backend: Backend, roots: Iterable[str]) -> tuple[dict[str, bytes], set[str]]:
        """Return the objects to store with the entry, and the names that must exist already.

        If an object is stored, everything it refers to is stored too: only terminal objects are
        stored before an entry, and gc deletes parents first.

        Raises:
            InvalidInputError: a load would refuse the state for its decode cost.
            FormatError: the store has objects that this installation cannot read.
            StorageError: the medium failed.
        """
        roots = list(roots)
        self.check_decode_cost(roots, backend)
        new, requires = self._partition(backend, roots)
        self._new = new
        compression = self.compression()  # last: it checks the codecs of objects that are shared
        stored: dict[str, bytes] = {}
        early: list[str] = []
        size = 0
        for name, plain in self._pending.items():  # children first
            if name in new:
                stored[name] = plain.stored(compression)
                if not plain.refs:
                    early.append(name)
                    size += len(stored[name])
                if size > _BATCH:
                    requires.update(early)
                    backend.put_objects({name: stored.pop(name) for name in early})
                    early, size = [], 0
        return stored, requires

    def _partition(self, backend: Backend, roots: Iterable[str]) -> tuple[set[str], set[str]]:
        """Return the names of new objects, and of stored ones that are shared."""
        new: set[str] = set()
        requires: set[str] = set()
        do_query = sum(plain.size for plain in self._pending.values()) > _QUERY_THRESHOLD
        level = set(roots)
        while level:
            stored = {name for name in level if name not in self._pending}
            if do_query:
                stored = level - backend.missing_objects(level - stored)
            requires |= stored
            new |= level - stored
            children = {ref for name in level - stored for ref in self._pending[name].refs}
            level = children - new - requires
        return new, requires
