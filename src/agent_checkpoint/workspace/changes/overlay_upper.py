"""What a fork has changed, read from the layer that its changes are in. Owns nothing on the disk.

It takes the place of a watcher: it misses nothing, also no store through a memory map, and needs
no watches.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.changes.changed_paths import Touched


class Layer:
    """The upper layer of an overlay, all of it read at each look."""

    is_exact = True
    """Every change is in the layer."""

    def __init__(self, read: Callable[[], Touched]) -> None:
        """Take a function that tells what is in the layer; it may raise WorkspaceError."""
        self._read = read
        self._before = Touched({}, set())

    def add(self, fd: int, path: bytes) -> None:
        """Do nothing: there is nothing to watch."""

    def forget(self, path: bytes) -> None:
        """Do nothing: there is nothing to watch."""

    def drain(self) -> Touched | None:
        """Return what differs from the base, and what did at the last call.

        A file that was made and is gone again is no longer in the layer.
        """
        try:
            now = self._read()
        except WorkspaceError:
            return None
        before, self._before = self._before, now
        names = {path: set(few) for path, few in now.names.items()}
        for path, few in before.names.items():
            names.setdefault(path, set()).update(few)
        return Touched(names, now.replaced | before.replaced)

    def close(self) -> None:
        """Do nothing: the layer is its fork's."""
