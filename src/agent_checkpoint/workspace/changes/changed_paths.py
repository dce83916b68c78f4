"""The paths that changed between two scans, as a change source reports them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class WatchError(Exception):
    """Changes cannot be watched: every scan must cover everything."""


class ChangedPaths(NamedTuple):
    """Paths that may have changed, relative to the root, which is b""."""

    names: dict[bytes, set[bytes]]
    """Names by directory. The root without a name: its own attributes may have changed."""
    replaced: set[bytes]
    """Directories that were created, deleted or moved: the known state below them is void."""


def by_parent(paths: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Return the names of directories by their parent; the root has none."""
    names: dict[bytes, list[bytes]] = {}
    for path in filter(None, paths):
        parent, _, name = path.rpartition(b"/")
        names.setdefault(parent, []).append(name)
    return names


def with_parents(paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths with those of all their parents."""
    result = {b""}
    for path in paths:
        while path and path not in result:
            result.add(path)
            path = path.rpartition(b"/")[0]
    return result
