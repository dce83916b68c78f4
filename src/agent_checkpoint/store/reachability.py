"""Reachability: follows references from entries to objects. Read-only.

Entries of every stream may refer to objects, through tags in their `parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.store.objects.object_format import (
    Object,
    TerminalRef,
    children_first,
    open_object,
)
from agent_checkpoint.store.objects.reader import ObjectSource, fetch_objects, object_names

_BATCH = 16
"""Objects per read. Each may have up to 32 MiB."""
_FIRST_MARKED, _MOST_MARKED = 4, 256
_MARKED_BYTES = 1 << 25
"""Objects per read of a mark: as many as have about this many bytes, judging by the last read."""


def roots_of(record: dict[str, Any], where: str) -> set[str]:
    """Return the ids of the objects that the record of an entry refers to.

    Args:
        record: the record.
        where: a description of the entry, for messages.

    Raises:
        IntegrityError: a reference is malformed.
    """
    parts = record.get("parts", {})
    try:
        return set(object_names(parts.values()))
    except (IntegrityError, AttributeError):
        raise IntegrityError(f"{where} has malformed object references.") from None


RefGraph = dict[str, Optional[tuple[str, ...]]]
"""References by object id; None for an object that was not read because it is a leaf."""


Fetch = Callable[[ObjectSource, Iterable[str]], Iterator[tuple[str, Object]]]


def fetch_bounded(source: ObjectSource, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
    """Iterate over objects in reads of bounded size. Raises the same errors as `fetch_objects`."""
    ordered = list(names)
    at, count = 0, _FIRST_MARKED
    while at < len(ordered):
        batch = ordered[at : at + count]
        size = 0
        for name, item in fetch_objects(source, batch):
            size += len(item.payload)
            yield name, item
        at += len(batch)
        count = max(1, min(_MOST_MARKED, len(batch) * _MARKED_BYTES // max(size, 1)))


def mark(
    source: ObjectSource, roots: Iterable[str], seen: RefGraph, *, fetch: Fetch = fetch_bounded
) -> None:
    """Add all objects that are reachable from the roots to `seen`, with their references.

    An object is not read if all references to it are leaf references. It is read if any other
    reference leads to it, so that a forged leaf reference cannot hide references from gc. No
    object is read twice.

    Args:
        source: where objects are read from.
        roots: the object ids to start from.
        seen: the graph so far.
        fetch: reads objects; objects that it omits are not followed.

    Raises:
        IntegrityError: an object is missing or damaged, so its references are unknown.
        FormatError: an object is compressed with zstd, which is not installed.
        StorageError: the medium failed.
    """
    names = list(roots)
    while names:
        terminal = [name for name in names if type(name) is TerminalRef]
        inner = {name for name in names if type(name) is not TerminalRef and seen.get(name) is None}
        seen.update((name, None) for name in terminal if name not in seen)
        names = []
        for name, item in fetch(source, inner):
            seen[name] = item.refs
            names += item.refs


def reachable(roots: Iterable[str], seen: RefGraph) -> set[str]:
    """Return the object ids that are reachable from the roots, in a graph built by `mark`."""
    return set(children_first(roots, seen))


def read_or_reason(
    source: ObjectSource, names: Iterable[str]
) -> Iterator[tuple[str, Object | str]]:
    """Iterate over objects; for a missing or damaged object, yield the error message instead.

    Raises:
        StorageError: the medium failed.
    """
    ordered = list(names)
    for at in range(0, len(ordered), _BATCH):
        batch = ordered[at : at + _BATCH]
        try:
            stored = source.get_objects(batch)
        except (IntegrityError, FormatError) as error:
            if len(batch) == 1:
                yield batch[0], str(error)
            else:  # one by one, to find which it is
                for name in batch:
                    yield from read_or_reason(source, [name])
            continue
        for name in batch:
            if name not in stored:
                yield name, f"The object {name} is missing."
                continue
            try:
                item: Object | str = open_object(name, stored[name])
            except (IntegrityError, FormatError) as error:
                item = str(error)
            yield name, item
