"""What is told of a directory tree between two looks, by a watcher or a layer. Owns no source."""

from __future__ import annotations

from typing import NamedTuple


class WatchError(Exception):
    """Changes cannot be watched: look at everything instead."""


class Touched(NamedTuple):
    """What the events named; it need not have changed. Paths are relative to the root, b""."""

    names: dict[bytes, set[bytes]]
    """By directory, the names in it. The root with no name: its own attributes were touched."""
    replaced: set[bytes]
    """Directories that came, went or moved, so that nothing known of what is below them holds."""
