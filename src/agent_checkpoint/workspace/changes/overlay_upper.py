"""Changed paths of an overlay fork, read from its upper directory. Writes nothing.

It is used instead of the inotify watcher. It reports every change, including writes through a
memory map, and needs no watches.
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
        """Use a function that lists the changes in the upper directory.

        Args:
            read: lists the changes; may raise WorkspaceError.
        """
        self._read = read
        self._before = ChangedPaths({}, set())

    def add(self, fd: int, path: bytes) -> None:
        """Do nothing: no watches are needed."""

    def forget(self, path: bytes) -> None:
        """Do nothing: no watches are needed."""

    def drain(self) -> ChangedPaths | None:
        """Return the paths that are in the upper directory now or were at the last call.

        The earlier paths are included because a file that was created and then deleted leaves no
        trace in the upper directory. None if the directory cannot be read.
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
