"""Tells whether a directory can be watched, for tests that need a watcher."""

import os
from pathlib import Path

from agent_checkpoint.workspace.changes.changed_paths import WatchError
from agent_checkpoint.workspace.changes.inotify import Watcher


def can_watch(root: Path) -> bool:
    """Return whether the file systems below a directory raise an event for every change."""
    try:
        watcher = Watcher()
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, WatchError):
        return False
    try:
        watcher.add(fd, b"")
    except WatchError:
        return False
    finally:
        os.close(fd)
        watcher.close()
    return True
