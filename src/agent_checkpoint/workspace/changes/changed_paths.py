"""What is told of a directory tree between two looks, by a watcher or a layer. Owns no source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class WatchError(Exception):
    """Changes cannot be watched: look at everything instead."""


class Touched(NamedTuple):
    """What the events named; it need not have changed. Paths are relative to the root, b""."""

    names: dict[bytes, set[bytes]]
    """By directory, the names in it. The root with no name: its own attributes were touched."""
    replaced: set[bytes]
    """Directories that came, went or moved, so that nothing known of what is below them holds."""


def above(paths: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Return the names of directories, by the directory above them; the root has none."""
    found: dict[bytes, list[bytes]] = {}
    for path in filter(None, paths):
        parent, _, name = path.rpartition(b"/")
        found.setdefault(parent, []).append(name)
    return found


def with_parents(paths: Iterable[bytes]) -> set[bytes]:
    """Return the paths and those of all directories above them."""
    found = {b""}
    for path in paths:
        while path and path not in found:
            found.add(path)
            path = path.rpartition(b"/")[0]
    return found
