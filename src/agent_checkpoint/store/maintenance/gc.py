"""Garbage collection: deletes unreachable objects by mark and sweep.

Saves continue during the mark phase. The sweep holds off commits, and first marks what was
committed since. A save that reuses a swept object finds out at its commit, and writes it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import ObjectInfo, short_repr
from agent_checkpoint.store.archive.importer import remove_dead_imports
from agent_checkpoint.store.entries import open_entry
from agent_checkpoint.store.objects.object_format import LostObjectError
from agent_checkpoint.store.reachability import RefGraph, mark, read_or_reason, roots_of
from agent_checkpoint.store.store import Store

_CLOCK_SLACK = 300.0
_PAGE = 1000
_TRIES = 5


@dataclass(frozen=True)
class GcReport:
    """What `gc` deleted, or would have."""

    objects: int
    bytes: int
    repacked: int = 0
    """Objects that were recompressed, so that every installation can read them."""


def gc(store: Store, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
    """Delete the objects that are not reachable from any entry of any stream.

    Zstd objects in a store whose format record does not name zstd are recompressed.

    Args:
        store: the store.
        dry_run: only report what would be deleted.
        ignore_clock: continue although objects have timestamps in the future.

    Raises:
        IntegrityError: an entry or object is damaged, so it is unknown what it refers to.
        StorageError: the medium failed, or the clock is wrong.
    """
    store.format.check()
    if not dry_run:
        remove_dead_imports(store)
    marks = _marked(store.backend)
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
    """Delete objects that were not marked before and are not marked now; return the names."""
    store.format.check(writing=True)
    order = _parents_first(store.backend, doomed)
    swept: set[str] = set()

    def sweep() -> Iterator[str]:
        marks.update()  # no commit can happen from here on
        # New objects that are unreachable again are left for the next gc, with all they refer to:
        # if an object is stored, everything below it is stored.
        kept: RefGraph = {}
        fresh = (info.id for info in store.backend.list_objects() if info.id not in present)
        mark(store.backend, [name for name in fresh if name not in marks.seen], kept)
        for name in order:
            if name not in marks.seen and name not in kept:
                swept.add(name)
                yield name

    store.backend.delete_objects(sweep())
    return swept


def _marked(backend: Backend) -> _Marks:
    """Return all reachable objects; retry if another gc sweeps one meanwhile."""
    for _ in range(_TRIES - 1):
        with suppress(LostObjectError):
            marks = _Marks(backend)
            marks.update()
            return marks
    marks = _Marks(backend)
    marks.update()
    return marks


class _Marks:
    """The objects that are reachable from the entries read so far."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seen: RefGraph = {}
        self._read: dict[str, int] = {}

    def update(self) -> None:
        """Mark what the entries since the last call refer to."""
        roots: set[str] = set()
        for stream in list(self.backend.streams()):
            after = self._read.get(stream, 0)
            while page := self.backend.read(stream, after=after, limit=_PAGE):
                for entry in page:
                    where = f"Entry {entry.seq} of {short_repr(stream)}"
                    roots |= roots_of(open_entry(entry.data, where), where)
                after = self._read[stream] = page[-1].seq
                if len(page) < _PAGE:
                    break
        mark(self.backend, roots, self.seen)


def _parents_first(backend: Backend, doomed: set[str]) -> list[str]:
    """Return the names parents first: an interrupted sweep leaves no dangling reference."""
    refs: dict[str, set[str]] = {}
    for name, found in read_or_reason(backend, doomed):
        refs[name] = set() if isinstance(found, str) else doomed.intersection(found.refs)
    users = dict.fromkeys(doomed, 0)
    for names in refs.values():
        for name in names:
            users[name] += 1
    order = [name for name, count in users.items() if count == 0]
    for name in order:  # grows during the loop
        for ref in refs[name]:
            users[ref] -= 1
            if users[ref] == 0:
                order.append(ref)
    return order


def _check_clock(present: dict[str, ObjectInfo]) -> None:
    newest = max((info.ts for info in present.values()), default=0.0)
    ahead = newest - time.time()
    if ahead > _CLOCK_SLACK:
        raise StorageError(
            f"Nothing was deleted: the newest object is {ahead:.0f} seconds in the future. Set "
            "the clock, or use gc(ignore_clock=True)."
        )


def _report(present: dict[str, ObjectInfo], doomed: set[str], repacked: int = 0) -> GcReport:
    return GcReport(len(doomed), sum(present[name].size for name in doomed), repacked)
