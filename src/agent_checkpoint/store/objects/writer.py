"""The objects of one checkpoint, from the moment they are made until its entry is written.

Owns telling new objects from those that are stored already; knows nothing of what is in them.
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

_NOT_WORTH_ASKING = 16384
"""Up to so many bytes are written without asking first which of them are stored."""

_BATCH = 1 << 25
"""More bytes than this are stored ahead of the entry, in batches: they need not fit a commit."""

_WORTH_KEEPING = 1000

WriteCache = WeakKeyDictionary[Any, Any]
"""What a store is known to have, by whom."""


class Writer:
    """Collects objects; `flush` finds out what of them has to be written."""

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
            memory: what the store is known to have, by whom; kept as long as they live.
            lists: what it is known to have of the long lists of the key.
            backend: takes what is stored ahead of the entry; without one, all of it is kept here.
            compression: tells how objects are packed, right before some are stored; raises if
                none may be.
            trust_memory: whether what was stored by an earlier checkpoint may be referred to
                without being made again.
        """
        self.backend = backend
        self.compression = compression
        self.write_cache = write_cache
        self.trust_cache = trust_cache
        self.lists = (lists or ListCache()).begin()
        self.size = 0
        """Bytes of the state as text that stand outside of the entry: what it would take alone."""
        self.decode_cost = 0
        """What they weigh."""
        self._pending: dict[str, PlainObject] = {}
        self._new: set[str] = set()
        self._committed: list[Callable[[], object]] = []

    def put(self, kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> str:
        """Keep an object to be written, and return its name.

        Raises:
            IntegrityError: it is larger than an object may be.
        """
        name, packed = make_object(kind, payload, refs)
        self._pending[name] = packed
        return name

    def adopt(self, objects: Mapping[str, PlainObject]) -> None:
        """Keep objects to be written that were made elsewhere."""
        self._pending.update(objects)

    def holds(self, name: str) -> bool:
        """Tell whether an object was put already."""
        return name in self._pending

    def merge(self, other: Writer) -> None:
        """Take over what another writer has collected."""
        self._pending.update(other._pending)
        self._committed += other._committed

    def missing_from_store(self, names: Collection[str]) -> Collection[str]:
        """Return those of the objects that the store lacks. Raises StorageError."""
        return names if self.backend is None else self.backend.missing_objects(names)

    def put_early(self, objects: Mapping[str, bytes]) -> None:
        """Store objects that refer to nothing right away, for they are many. From any thread.

        Raises:
            StorageError: the medium failed.
        """
        if objects and self.backend is not None:
            self.backend.put_objects(objects)

    def pending(self) -> Iterable[tuple[str, PlainObject]]:
        """Return the objects that were put, by name; what they refer to comes first."""
        return self._pending.items()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Have something called once the entry is durable."""
        self._committed.append(call)

    def committed(self) -> None:
        """Tell those who asked that the entry is durable."""
        for call in self._committed:
            call()

    def keep(self, cache: ObjectCache) -> None:
        """Keep what was written in memory: it is what is most likely to be read next.

        Not of a first snapshot of many directories, which would push out all else.
        """
        for name in self._new if len(self._new) <= _WORTH_KEEPING else ():
            cache.put_object(name, as_read(self._pending[name]))

    def check_decode_cost(self, roots: Iterable[str], backend: Backend | None = None) -> None:
        """Refuse a state that repeats so little content so often that no load would take it.

        Args:
            roots: the names of its topmost objects.
            backend: where the objects are that were not put here.

        Raises:
            InvalidInputError: it is such a state.
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
                elif name in found:  # else the append will tell
                    with suppress(IntegrityError, FormatError):  # verify() tells
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
        """Return the objects that the entry must bring, and the names of those that must be there.

        Where an object is stored, all that it refers to is stored too: only what refers to nothing
        is stored ahead of an entry, and gc deletes what refers first.

        Raises:
            InvalidInputError: the state weighs more than any load would take.
            FormatError: the store has objects that this installation cannot read.
            StorageError: the medium failed.
        """
        roots = list(roots)
        self.check_decode_cost(roots, backend)
        new, requires = self._sort_out(backend, roots)
        self._new = new
        compression = self.compression()  # after it is known what is reused: that is looked at
        stored: dict[str, bytes] = {}
        ahead: list[str] = []
        size = 0
        for name, packed in self._pending.items():  # what is referred to comes first
            if name in new:
                stored[name] = packed.stored(compression)
                if not packed.refs:
                    ahead.append(name)
                    size += len(stored[name])
                if size > _BATCH:
                    requires.update(ahead)
                    backend.put_objects({name: stored.pop(name) for name in ahead})
                    ahead, size = [], 0
        return stored, requires

    def _sort_out(self, backend: Backend, roots: Iterable[str]) -> tuple[set[str], set[str]]:
        new: set[str] = set()
        requires: set[str] = set()
        ask = sum(packed.size for packed in self._pending.values()) > _NOT_WORTH_ASKING
        wanted = set(roots)
        while wanted:
            known = {name for name in wanted if name not in self._pending}
            if ask:
                known = wanted - backend.missing_objects(wanted - known)
            requires |= known
            new |= wanted - known
            below = {ref for name in wanted - known for ref in self._pending[name].refs}
            wanted = below - new - requires
        return new, requires
