"""Collects the objects of one checkpoint until its entry is written.

Determines which objects are new and which are already stored. Does not interpret their content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import FormatError, IntegrityError, InvalidInputError
from agent_checkpoint.options import Compression
from agent_checkpoint.store.objects.decode_budget import BASE_BUDGET, PackedSizes, content_allowance
from agent_checkpoint.store.objects.list_cache import CachedList, ListWriter
from agent_checkpoint.store.objects.object_cache import ObjectCache
from agent_checkpoint.store.objects.object_format import (
    Object,
    PlainObject,
    SplicedRefs,
    as_read,
    children_first,
    make_object,
    open_object,
)
from agent_checkpoint.store.objects.trust import Trust, Vouchers

_QUERY_THRESHOLD = 16384
"""Up to this many bytes are written without a query for objects that already exist."""

_ASKED_AT_ONCE = 256
"""Up to this many objects are asked for in one query."""

_BATCH = 1 << 25
"""Above this size, objects are stored in batches before the entry, to limit a commit's size."""

_MAX_CACHED = 1000

WriteCache = WeakKeyDictionary[Any, Any]
"""Maps a live object to its data that is known to be stored; weak keys."""


class Writer:
    """Collects objects; `flush` determines which of them must be written."""

    def __init__(
        self,
        write_cache: WriteCache,
        lists: list[CachedList] | None = None,
        *,
        backend: Backend | None = None,
        compression: Callable[[], Compression] = lambda: "zlib",
        trust_cache: bool = True,
        trust: Trust | None = None,
        previous: Collection[str] = (),
    ) -> None:
        """Create a writer for one checkpoint.

        Args:
            write_cache: data that is known to be stored, by live object.
            lists: the cached long lists of the key.
            backend: stores objects before the entry; if None, all objects are collected here.
            compression: called right before objects are stored; returns the compression, or
                raises if no object may be stored.
            trust_cache: assume that objects of earlier checkpoints are still stored, and refer to
                them without creating them again.
            trust: the objects that this process has committed to the store.
            previous: the roots of an earlier checkpoint, which vouch for the objects below them.
        """
        self.backend = backend
        self.compression = compression
        self.write_cache = write_cache
        self.trust_cache = trust_cache
        self.asks_all = not trust_cache
        """Whether `flush` asks for every object, even below objects that are stored.

        Set if the objects are complete, so that lost ones can be stored again.
        """
        self.is_partial = False
        """Whether parts of another checkpoint are reused, so that their objects are not created."""
        self._trust = trust or Trust()
        self.epoch = self._trust.epoch
        """The epoch of the trust when this writer was created."""
        self._previous = previous
        self.lists = ListWriter([] if lists is None else lists)
        self.size = 0
        """Total size of the values stored as objects; a shared value counts once per use."""
        self.decode_cost = 0
        """Decode cost of the values stored as objects."""
        self.redacted = 0
        """How many secrets were replaced in values that encode themselves when they are written."""
        self._pending: dict[str, PlainObject] = {}
        self._spliced: dict[str, SplicedRefs] = {}
        self._new: set[str] = set()
        self._verified: set[str] = set()
        self._roots: Collection[str] = ()
        self._committed: list[Callable[[], object]] = []
        self._waits: list[Callable[[], object]] = []

    def put(self, kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> str:
        """Add an object to be written, and return its id.

        Raises:
            IntegrityError: the object is larger than MAX_OBJECT.
        """
        name, packed = make_object(kind, payload, refs)
        self._pending[name] = packed
        if isinstance(refs, SplicedRefs):
            self._spliced[name] = refs
        return name

    def adopt(self, objects: Mapping[str, PlainObject]) -> None:
        """Add existing objects, such as those of an archive."""
        self._pending.update(objects)

    def holds(self, name: str) -> bool:
        """Return whether the writer already has an object."""
        return name in self._pending

    def merge(self, other: Writer) -> None:
        """Add the objects and commit callbacks of another writer."""
        self._pending.update(other._pending)
        self._spliced.update(other._spliced)
        self._committed += other._committed
        self._waits += other._waits
        self.redacted += other.redacted
        self.asks_all = self.asks_all or other.asks_all

    def missing_from_store(self, names: Collection[str]) -> Collection[str]:
        """Return the ids of objects that the store does not have. Raises StorageError."""
        return names if self.backend is None else self.backend.missing_objects(names)

    def put_early(self, objects: Mapping[str, bytes]) -> None:
        """Store objects without references immediately, to save memory. Thread-safe.

        Raises:
            StorageError: the medium failed.
        """
        if objects and self.backend is not None:
            self.backend.put_objects(objects)
            self._trust.report_stored(objects)

    def wait_for(self, stored: Callable[[], object]) -> None:
        """Register a call that returns when objects that another thread stores are stored.

        Other work need not wait for them, only the entry.
        """
        self._waits.append(stored)

    def wait(self) -> None:
        """Wait until all objects that other threads store are stored. Raises StorageError."""
        for stored in self._waits:
            stored()

    def pending(self) -> Iterable[tuple[str, PlainObject]]:
        """Return the collected objects by id."""
        return self._pending.items()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Register a callback to be called when the entry is durable."""
        self._committed.append(call)

    def committed(self) -> None:
        """Run the commit callbacks. Call it when the entry is durable."""
        for call in self._committed:
            call()
        # The roots last: many objects would push them out, and the next save needs them.
        names = sorted(self._verified, key=self._roots.__contains__)
        self._trust.report_stored(names)
        self._trust.add([(name, self._pending[name]) for name in names], self.epoch)

    def confirm(self) -> None:
        """Run the commit callbacks without an entry: the store has one with these objects.

        Raises:
            StorageError: another thread could not store objects that the store had lost.
        """
        self.wait()
        self.committed()

    def fill_cache(self, cache: ObjectCache) -> None:
        """Add the new objects to a cache, because they are likely to be read next.

        Does nothing if there are too many, as in a first snapshot: they would evict everything
        else.
        """
        for name in self._new if len(self._new) <= _MAX_CACHED else ():
            cache.put_object(name, as_read(self._pending[name]))

    def check_decode_cost(self, roots: Iterable[str]) -> None:
        """Check that a load would not reject the state for its decode cost.

        Args:
            roots: the ids of its topmost objects.

        Raises:
            InvalidInputError: the decode cost is too high for the content.
            StorageError: the medium failed.
        """
        if self.decode_cost <= BASE_BUDGET:
            return

        def fetch(names: Sequence[str]) -> Iterator[tuple[str, Object]]:
            elsewhere = [name for name in names if name not in self._pending]
            found = {} if self.backend is None else self.backend.get_objects(elsewhere)
            for name in names:
                if name in self._pending:
                    yield name, as_read(self._pending[name])
                elif name in found:  # else the append fails
                    with suppress(IntegrityError, FormatError):  # verify() reports it
                        yield name, open_object(name, found[name])

        # By the function, which stays alive.
        known: PackedSizes = self.write_cache.setdefault(content_allowance, {})
        if content_allowance(roots, 2 * self.decode_cost, fetch, known) < 2 * self.decode_cost:
            raise InvalidInputError(
                "The state exceeds the decode limit: its decode cost (the number of JSON brackets, "
                f"colons, commas and quotes) is {self.decode_cost:,}, too high for its distinct "
                "content. A load would reject it as a decompression bomb. Store repeated values "
                "once, as bytes, or as a numpy array."
            )

    def flush(self, roots: Iterable[str]) -> tuple[dict[str, bytes], set[str]]:
        """Return the objects to store with the entry, in order, and the ids that must exist.

        Invariant: if an object is stored, everything it refers to is stored too. Objects are
        written children first, and gc deletes parents first. Only objects without references are
        written before the entry: gc may delete what they refer to, because no entry does.

        Raises:
            InvalidInputError: a load would reject the state for its decode cost.
            FormatError: the store has zstd objects, and zstd is not installed.
            StorageError: the medium failed.
        """
        if self.backend is None:
            raise AssertionError("unreachable: only the writers of a store are flushed")
        self._roots = roots = list(roots)
        self.check_decode_cost(roots)
        new, requires = self._partition(roots, lambda names: names)
        self._verified = new
        # A spliced object differs from its base by a new object: it is seldom stored.
        made = [name for name in new if name not in self._spliced]
        if sum([self._pending[name].size for name in made]) > _QUERY_THRESHOLD:
            if self._is_trusted:
                new, requires = self._without_stored(roots, new, requires)
                self._verified = new
            else:
                missing = set(self.backend.missing_objects(new))
                if missing != new:
                    new = missing
                    refs = {ref for name in new for ref in self._pending[name].refs}
                    requires = refs.union(roots) - new
        self._new = new
        compression = self.compression()  # last: it checks the codecs of objects that are shared
        stored: dict[str, bytes] = {}
        early: list[str] = []
        size = 0
        for name in self._children_first(new):
            plain = self._pending[name]
            stored[name] = plain.stored(compression)
            if not plain.refs:
                early.append(name)
                size += len(stored[name])
            if size > _BATCH:
                requires.update(early)
                self.backend.put_objects({name: stored.pop(name) for name in early})
                early, size = [], 0
        self.wait()
        return stored, requires

    def _children_first(self, names: set[str]) -> Iterable[str]:
        """Return the ids of pending objects in order, each after all its references."""
        refs_of = {name: names.intersection(self._pending[name].refs) for name in names}
        if 2 * len(names) >= len(self._pending):  # a tree is put in order, but for its files
            ordered = [name for name in self._pending if name in names]
            ordered.sort(key=lambda name: bool(refs_of[name]))
            placed: set[str] = set()
            for name in ordered:
                if not refs_of[name] <= placed:
                    break
                placed.add(name)
            else:
                return ordered
        return children_first(names, refs_of)

    def _without_stored(
        self, roots: Iterable[str], new: set[str], requires: set[str]
    ) -> tuple[set[str], set[str]]:
        """Return the same as `_partition`, given its result if nothing that is pending is stored.

        A few objects are asked for at once, many level by level: those below a stored one are not.
        """
        if self.backend is None:
            raise AssertionError("unreachable: only the writers of a store are flushed")
        if len(new) > _ASKED_AT_ONCE:
            return self._partition(roots, self.backend.missing_objects)
        missing = set(self.backend.missing_objects(new))
        return (new, requires) if missing == new else self._partition(roots, missing.intersection)

    @property
    def _is_trusted(self) -> bool:
        """Whether an object that is stored is known to have everything below it."""
        return not self.asks_all and self.epoch == self._trust.epoch

    def _partition(
        self, roots: Iterable[str], missing: Callable[[set[str]], Collection[str]]
    ) -> tuple[set[str], set[str]]:
        """Return the ids of new objects, and of the stored objects that vouch for shared ones.

        Args:
            roots: the ids of the topmost objects.
            missing: returns which of the given objects are not stored.
        """
        new: set[str] = set()
        requires: set[str] = set()
        vouchers = Vouchers(self._trust, self._previous if self._is_trusted else ())
        level = set(roots)
        while level:
            vouched, by = vouchers.find(level, level - self._pending.keys())
            requires |= by
            level -= vouched
            pending = level & self._pending.keys()
            added = pending.intersection(missing(pending)) if pending else set()
            requires |= level - added
            new |= added
            level = set()
            for name in added:
                refs = self._spliced.get(name)
                root = None if refs is None else vouchers.find_base(refs)
                if refs is None or root is None:
                    level.update(self._pending[name].refs)
                else:
                    requires.add(root)
                    level.update(refs.new)
            level -= new
            level -= requires
            vouchers.descend(vouched)
        return new, requires
