"""Garbage collection: deletes unreachable objects by mark and sweep.

Saves continue during the mark phase. Each sweep blocks commits, and first marks the objects of
entries that were committed since. A save that shares a deleted object fails at its commit, and
writes the object again. If the backend finds changes since a position, there are many short sweeps,
else one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agent_checkpoint import telemetry
from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import Hint, StorageError
from agent_checkpoint.records import ObjectInfo, short_repr
from agent_checkpoint.store.archive.importer import remove_dead_imports
from agent_checkpoint.store.checkpoint_entries import open_entry
from agent_checkpoint.store.objects.object_format import LostObjectError, children_first
from agent_checkpoint.store.reachability import RefGraph, mark, read_or_reason, roots_of
from agent_checkpoint.store.store import Store

_CLOCK_SLACK = 300.0
_PAGE = 1000
_TRIES = 5
_SWEEP_OBJECTS = 1000
_SWEEP_BYTES = 16 << 20


@dataclass(frozen=True)
class GcReport:
    """The result of `gc`: number and size of objects deleted, or to be deleted on a dry run."""

    objects: int
    bytes: int
    repacked: int = 0
    """Number of zstd objects that were recompressed with zlib."""


def gc(store: Store, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
    """Delete the objects that are not reachable from any entry of any stream.

    In a store that does not declare zstd, zstd objects are recompressed with zlib.

    Args:
        store: the store.
        dry_run: only report what would be deleted.
        ignore_clock: continue even if objects have timestamps in the future.

    Raises:
        IntegrityError: an entry or object is damaged, so its references are unknown.
        StorageError: the medium failed, or objects have timestamps in the future.
    """
    with telemetry.operation("gc", dry_run=dry_run) as outcome:
        report = _gc(store, dry_run=dry_run, ignore_clock=ignore_clock)
        outcome.update(objects=report.objects, size=report.bytes)
    return report


def _gc(store: Store, *, dry_run: bool, ignore_clock: bool) -> GcReport:
    store.format.check()
    if not dry_run:
        remove_dead_imports(store)
    for attempt in range(_TRIES):
        try:
            return _collect(store, dry_run=dry_run, ignore_clock=ignore_clock)
        except LostObjectError:  # another gc deleted it while it was not needed, or it is damage
            if attempt == _TRIES - 1:
                raise
    raise AssertionError


def _collect(store: Store, *, dry_run: bool, ignore_clock: bool) -> GcReport:
    marks = _Marks(store.backend)
    marks.update()
    present = {info.id: info for info in store.backend.list_objects()}
    if not ignore_clock:
        _check_clock(present)
    doomed = present.keys() - marks.seen.keys()
    if dry_run:
        return _report(present, doomed)
    swept = _sweep(store, marks, present, doomed) if doomed else set()
    return _report(present, swept, _repack(store) if present else 0)


def _repack(store: Store) -> int:
    store.format.check(writing=True)
    return 0 if store.format.needs_zstd else store.codecs.repack()


def _sweep(
    store: Store, marks: _Marks, present: dict[str, ObjectInfo], doomed: set[str]
) -> set[str]:
    """Delete the doomed objects that are still unreachable; return their ids."""
    store.format.check(writing=True)
    backend = store.backend
    order = _parents_first(backend, doomed)
    swept: set[str] = set()
    fresh: set[str] = set()
    kept: RefGraph = {}

    def update() -> None:
        for info in marks.update():
            if info.id not in present or info.id in swept:
                fresh.add(info.id)

    def sweep(batch: list[str]) -> Iterator[str]:
        update()  # no commit can happen from here on
        # New objects that are already unreachable are left for the next gc, with all objects that
        # they refer to: the references of a stored object must never dangle.
        unreachable = fresh - marks.seen.keys() - kept.keys()
        mark(backend, unreachable - backend.missing_objects(unreachable), kept)
        for name in batch:
            if name not in marks.seen and name not in kept:
                swept.add(name)
                yield name

    if marks.position is None:
        backend.delete_objects(sweep(order))
        return swept
    update()  # so that the first sweep has little left to read
    for batch in _batches(order, present):
        backend.delete_objects(sweep(batch))
    return swept


def _batches(order: list[str], present: dict[str, ObjectInfo]) -> Iterator[list[str]]:
    """Divide ids into batches that a database deletes within a fraction of a second."""
    batch: list[str] = []
    size = 0
    for name in order:
        batch.append(name)
        size += present[name].size
        if len(batch) == _SWEEP_OBJECTS or size >= _SWEEP_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Marks:
    """The objects that are reachable from the entries read so far."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seen: RefGraph = {}
        self.position: Any = None
        """The position of the last call, if the backend has one."""
        self._read: dict[str, int] = {}

    def update(self) -> Iterable[ObjectInfo]:
        """Mark the objects that entries appended since the last call refer to.

        Returns the objects stored since, and maybe more. After an error the marks are unusable.
        """
        streams, objects, self.position = self.backend.changes(self.position)
        roots: set[str] = set()
        for stream in list(streams):
            after = self._read.get(stream, 0)
            while page := self.backend.read(stream, after=after, limit=_PAGE):
                for entry in page:
                    where = f"Entry {entry.seq} of {short_repr(stream)}"
                    roots |= roots_of(open_entry(entry.data, where), where)
                after = self._read[stream] = page[-1].seq
                if len(page) < _PAGE:
                    break
        mark(self.backend, roots, self.seen)
        return objects


def _parents_first(backend: Backend, doomed: set[str]) -> list[str]:
    """Return the ids, parents first, so that an interrupted sweep leaves no dangling reference."""
    found = read_or_reason(backend, doomed)
    refs = {name: item.refs for name, item in found if not isinstance(item, str)}
    return [name for name in reversed([*children_first(doomed, refs)]) if name in doomed]


def _check_clock(present: dict[str, ObjectInfo]) -> None:
    newest = max((info.ts for info in present.values()), default=0.0)
    ahead = newest - time.time()
    if ahead > _CLOCK_SLACK:
        raise StorageError(
            "Nothing was deleted: the timestamp of the newest object is "
            f"{ahead:.0f} seconds in the future.",
            hint=Hint("Set the clock, or use gc(ignore_clock=True).", "clock"),
        )


def _report(present: dict[str, ObjectInfo], doomed: set[str], repacked: int = 0) -> GcReport:
    return GcReport(len(doomed), sum(present[name].size for name in doomed), repacked)
