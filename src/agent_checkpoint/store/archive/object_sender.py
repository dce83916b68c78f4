"""Sends the objects that a store lacks from another store. Owns what is known to be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.compression import ZSTD_CODEC
from agent_checkpoint.store.objects.object_format import (
    Object,
    PlainObject,
    as_read,
    missing_objects,
    open_object,
    plain_object,
)
from agent_checkpoint.store.objects.reader import ObjectSource
from agent_checkpoint.store.reachability import RefGraph, mark
from agent_checkpoint.store.store import Store

_ASKED = 1000
"""Objects per question to the target."""
_READ = 64
"""Objects per read. Each may have up to 32 MiB."""
_BATCH = 1 << 22
"""Bytes of objects per write."""


class ObjectSender:
    """Sends the objects that the target lacks. Every object is verified."""

    def __init__(self, source: Backend, target: Store, dry_run: bool) -> None:
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.count = self.bytes = 0
        self._inner: dict[str, PlainObject] = {}
        """Objects with references, to be written with the entry that needs them: until then gc may
        delete what they refer to."""
        self._present: set[str] = set()
        self._batch: dict[str, bytes] = {}
        self._batch_size = 0

    def send(self, roots: Iterable[str]) -> dict[str, PlainObject]:
        """Store the objects without references; return the others, to be written with the entry.

        An object that the target has is not followed: what it refers to is there, too.

        Raises:
            IntegrityError: an object is missing or damaged.
            FormatError: an object is compressed with zstd, which is not installed.
            StorageError: a medium failed.
        """
        seen: RefGraph = {}
        try:
            mark(self.source, roots, seen, fetch=self._fetch)
            leaves = [str(name) for name, refs in seen.items() if refs is None]
            for name, found in self._fetch(self.source, leaves):
                if found.refs:
                    raise IntegrityError(f"The object {name} is not a leaf, as its parent says.")
            self._flush()
        except BaseException:
            self.forget()
            raise
        return {name: self._inner[name] for name in seen if name in self._inner}

    def committed(self, names: Iterable[str]) -> None:
        """Note that the entry with these objects was written."""
        for name in names:
            self._present.add(name)
            del self._inner[name]

    def forget(self) -> None:
        """Forget what the target has."""
        self._inner.clear()
        self._present.clear()
        self._batch, self._batch_size = {}, 0

    def _fetch(self, source: ObjectSource, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
        """Iterate over the objects that the target lacks, and store those without references."""
        ordered = sorted(set(names) - self._present)
        yield from ((name, as_read(self._inner[name])) for name in ordered if name in self._inner)
        ordered = [name for name in ordered if name not in self._inner]
        for asked in _slices(ordered, _ASKED):
            lost = self.target.backend.missing_objects(asked)
            self._present.update(name for name in asked if name not in lost)
            for batch in _slices([name for name in asked if name in lost], _READ):
                stored = source.get_objects(batch)
                gone = [name for name in batch if name not in stored]
                if gone:
                    raise missing_objects(gone)
                for name in batch:
                    found = open_object(name, stored[name])
                    self._add(name, stored[name], found)
                    yield name, found

    def _add(self, name: str, stored: bytes, found: Object) -> None:
        self.count += 1
        self.bytes += len(stored)
        if found.refs:
            self._inner[name] = plain_object(found.kind, found.payload, found.refs)
            return
        if stored[:1] == ZSTD_CODEC and not self.target.format.needs_zstd:
            stored = plain_object(found.kind, found.payload).stored()
        self._present.add(name)
        self._batch[name] = stored
        self._batch_size += len(stored)
        if self._batch_size > _BATCH:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch, self._batch_size = self._batch, {}, 0
        if batch and not self.dry_run:
            self.target.backend.put_objects(batch)


def _slices(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[at : at + size] for at in range(0, len(items), size))
