"""Deleting the objects that nothing needs. Owns the order of marking and sweeping.

Savers are not stopped while the store is looked through. What they write meanwhile is looked at
within the sweep, when none of them can commit; and a saver that reuses an object finds out, when it
commits, whether that was swept away, and writes it again.
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
    """Objects that not every installation could read, stored anew so that each can."""


def gc(store: Store, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
    """Delete the objects that no entry of any stream needs.

    Those that stay are repacked, if not every installation could read them and the store does not
    say so.

    Args:
        store: where.
        dry_run: only tell what would be deleted.
        ignore_clock: go on although objects seem to come from the future.

    Raises:
        IntegrityError: an entry or object is damaged, so nobody can tell what it needs.
        StorageError: the medium failed, or the clock makes no sense.
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
    """Delete what was not marked, and is not needed since; return the names."""
    store.format.check(writing=True)
    order = _parents_first(store.backend, doomed)
    swept: set[str] = set()

    def sweep() -> Iterator[str]:
        marks.go_on()  # nobody can commit now: this is the last word
        # What came and was forgotten meanwhile is left for the next time, with all it refers to:
        # where an object is stored, all below it is.
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
    """Return all that is reachable; what another gc sweeps away meanwhile was not."""
    for _ in range(_TRIES - 1):
        with suppress(LostObjectError):
            marks = _Marks(backend)
            marks.go_on()
            return marks
    marks = _Marks(backend)
    marks.go_on()
    return marks


class _Marks:
    """All that is reachable from the entries that were looked at."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seen: RefGraph = {}
        self._read: dict[str, int] = {}

    def go_on(self) -> None:
        """Look at the entries that are new since the last time."""
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
    """Return the names in such an order that, wherever it stops, what is left lacks nothing."""
    refs: dict[str, set[str]] = {}
    for name, found in read_or_reason(backend, doomed):
        refs[name] = set() if isinstance(found, str) else doomed.intersection(found.refs)
    users = dict.fromkeys(doomed, 0)
    for names in refs.values():
        for name in names:
            users[name] += 1
    order = [name for name, count in users.items() if count == 0]
    for name in order:  # it grows while we go along
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
            f"The clock makes no sense: an object was stored {ahead:.0f} seconds from now. Set the "
            "clock right, or say gc(ignore_clock=True); nothing was deleted."
        )


def _report(present: dict[str, ObjectInfo], doomed: set[str], repacked: int = 0) -> GcReport:
    return GcReport(len(doomed), sum(present[name].size for name in doomed), repacked)
