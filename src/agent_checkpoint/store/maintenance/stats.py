"""Statistics: the disk space of a store and of its keys. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.objects.object_format import Object, children_first
from agent_checkpoint.store.objects.reader import ObjectSource, object_names
from agent_checkpoint.store.objects.references import files_size
from agent_checkpoint.store.reachability import RefGraph, mark, reachable, read_or_reason
from agent_checkpoint.store.store import Store

_MOST = 1 << 62


def stats(store: Store) -> dict[str, Any]:
    """Return counts and sizes, in total and per key.

    `logical_bytes`: size of every state as JSON, plus all files of its workspaces.
    `stored_bytes`: size of the stored entries and objects. An object that several keys reference
    counts once for each of these keys, and once in the total. `own_bytes` (per key): the same
    without objects that other keys reference. `unshared_bytes`: the size if checkpoints did not
    share objects. `dedupe_ratio`: `logical_bytes` divided by `stored_bytes`. `redacted`: how many
    secrets `redact=` replaced.

    Raises:
        StorageError: the medium failed.
    """
    rows = {key: _read_row(store, key) for key in store.list_keys()}
    sizes = {info.id: info.size for info in store.backend.list_objects()}
    roots = {name for row in rows.values() for name in row.roots}
    seen: RefGraph = {}
    files: dict[str, int] = {}  # declared sizes of snapshots

    def readable(source: ObjectSource, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
        for name, found in read_or_reason(source, names):
            if not isinstance(found, str):  # else verify() reports it
                files[name] = files_size(found)
                yield name, found

    mark(store.backend, roots, seen, fetch=readable)
    order = list(children_first(roots, seen))
    whole = _sums(order, seen, lambda name, below: sizes.get(name, 0) + below)
    files = _sums(order, seen, lambda name, below: files.get(name, 0) or below)
    own = _own_sizes(rows, order, seen, sizes)
    keys: dict[str, dict[str, int]] = {}
    for key, row in rows.items():
        needed = reachable(row.roots, seen)
        keys[key] = {
            "checkpoints": row.checkpoints,
            "logical_bytes": row.states + row.sum_of(files),
            "stored_bytes": row.entries + sum(sizes.get(name, 0) for name in needed),
            "own_bytes": row.entries + own[key],
            "unshared_bytes": row.entries + row.sum_of(whole),
            "redacted": row.redacted,
        }
    stored = sum(row.entries for row in rows.values()) + sum(sizes.values())
    logical = sum(row["logical_bytes"] for row in keys.values())
    return {
        "checkpoints": sum(row.checkpoints for row in rows.values()),
        "logical_bytes": logical,
        "stored_bytes": stored,
        "unshared_bytes": sum(row["unshared_bytes"] for row in keys.values()),
        "dedupe_ratio": logical / stored if stored else 1.0,
        "objects": len(sizes),
        "redacted": sum(row.redacted for row in rows.values()),
        "keys": keys,
    }


@dataclass
class _Row:
    """Totals over the entries of a key."""

    checkpoints: int = 0
    entries: int = 0
    redacted: int = 0
    states: int = 0
    """Size of the states as JSON."""
    roots: Counter[str] = field(default_factory=Counter)
    """The ids of the objects that the entries refer to, with the number of references."""

    def sum_of(self, sizes: dict[str, int]) -> int:
        """Return the total size of the root objects; each counts once per reference."""
        return sum(sizes.get(name, 0) * times for name, times in self.roots.items())


def _read_row(store: Store, key: str) -> _Row:
    row = _Row()
    for entry in store.entries(key):
        row.checkpoints += 1
        row.entries += len(entry.data)
        with suppress(*UNUSABLE):  # verify() reports it
            checkpoint = read_checkpoint(key, entry.seq, entry.data)
            row.roots.update(list(object_names(checkpoint.parts.values())))
            row.states += checkpoint.size
            row.redacted += checkpoint.redacted
    return row


def _sums(
    order: Iterable[str], seen: RefGraph, figure: Callable[[str, int], int]
) -> dict[str, int]:
    """Return a figure for each object, computed from its id and the sum over its children."""
    sums: dict[str, int] = {}
    for name in order:
        below = sum(sums.get(ref, 0) for ref in seen.get(name) or ())
        # A few crafted objects can expand to a size beyond any bound.
        sums[name] = min(figure(name, below), _MOST)
    return sums


def _own_sizes(
    rows: dict[str, _Row], order: list[str], seen: RefGraph, sizes: dict[str, int]
) -> Counter[str]:
    """Return, by key, the size of the objects that only this key references."""
    owners: dict[str, str | None] = {}  # None: shared
    for key, row in rows.items():
        for name in row.roots:
            owners[name] = key if owners.get(name, key) == key else None
    own: Counter[str] = Counter()
    for name in reversed(order):  # parents first
        owner = owners[name]
        for ref in seen.get(name) or ():
            owners[ref] = owner if owners.get(ref, owner) == owner else None
        if owner is not None:
            own[owner] += sizes.get(name, 0)
    return own
