"""The paths that a change source reports as changed between two scans."""

from __future__ import annotations

from collections.abc import Iterable

from agent_checkpoint.named_tuple import NamedTuple


class WatchError(Exception):
    """Changes cannot be watched, so every scan must be a full scan."""


class ChangedPaths(NamedTuple):
    """Paths that may have changed, relative to the root, which is b""."""

    names: dict[bytes, set[bytes]]
    """Changed names by directory.

    An empty set for the root: its own attributes may have changed.
    """
    replaced: set[bytes]
    """Directories that were created, deleted or moved: their cached state is invalid."""


def by_parent(paths: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Return the names of directories, grouped by parent; the root is omitted."""
    names: dict[bytes, list[bytes]] = {}
    for path in filter(None, paths):
        parent, _, name = path.rpartition(b"/")
        names.setdefault(parent, []).append(name)
    return names


def with_parents(paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths and all their parents."""
    result = {b""}
    for path in paths:
        while path and path not in result:
            result.add(path)
            path = path.rpartition(b"/")[0]
    return result
