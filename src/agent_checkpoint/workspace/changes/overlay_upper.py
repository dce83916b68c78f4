"""Changed paths of an overlay fork, read from its upper directory. Owns nothing on disk.

It replaces the watcher: it misses no change, not even a write through a memory map, and needs no
watches.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths


class OverlayUpper:
    """The upper directory of an overlay, read completely at each scan."""

    is_exact = True
    """Every change is in the upper directory."""

    def __init__(self, read: Callable[[], ChangedPaths]) -> None:
        """Take a function that lists the upper directory; it may raise WorkspaceError."""
        self._read = read
        self._before = ChangedPaths({}, set())

    def add(self, fd: int, path: bytes) -> None:
        """Do nothing: no watches are needed."""

    def forget(self, path: bytes) -> None:
        """Do nothing: no watches are needed."""

    def drain(self) -> ChangedPaths | None:
        """Return the paths that differ from the lower directory now, or did at the last call.

        A file that was created and deleted again is no longer in the upper directory.
        """
        try:
            now = self._read()
        except WorkspaceError:
            return None
        before, self._before = self._before, now
        names = {path: set(each) for path, each in now.names.items()}
        for path, each in before.names.items():
            names.setdefault(path, set()).update(each)
        return ChangedPaths(names, now.replaced | before.replaced)

    def close(self) -> None:
        """Do nothing: the upper directory belongs to the fork."""
