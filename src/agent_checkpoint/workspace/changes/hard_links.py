"""Files that have several names. Owns finding those that were changed by another of their names.

The kernel tells of a change by the one name that it was made by.
"""

from __future__ import annotations

import os
from collections import defaultdict

from agent_checkpoint.workspace.safe_open import directory_below
from agent_checkpoint.workspace.tree.dir_state import Folder, stamp_of


class Links:
    """The names, within a workspace, of files that have more than one, there or elsewhere."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], set[tuple[bytes, bytes]]] = {}
        self.has_new = False
        """Whether a name came up that was not known: others of the same file may be, too."""

    def add(self, found: os.stat_result, directory: bytes, name: bytes) -> None:
        """Take note of a name."""
        names = self._names.setdefault((found.st_dev, found.st_ino), set())
        self.has_new |= (directory, name) not in names
        names.add((directory, name))

    def touched(self, root: int, known: Folder) -> dict[bytes, set[bytes]]:
        """Return, by directory, the names of files with several that are not as they were."""
        together: dict[bytes, set[bytes]] = defaultdict(set)
        for names in self._names.values():
            for directory, name in names if len(names) > 1 else ():
                together[directory].add(name)
        found: dict[bytes, set[bytes]] = {}
        for directory, few in together.items():
            folder = _below(known, directory)
            if folder is None:
                continue
            try:
                with directory_below(root, directory) as fd:
                    changed = {name for name in few if _is_changed(folder, name, fd)}
            except OSError:  # an event tells that it is gone
                continue
            if changed:
                found[directory] = changed
        return found


def _below(folder: Folder | None, path: bytes) -> Folder | None:
    for name in path.split(b"/") if path else ():
        folder = None if folder is None else folder.folders.get(name)
    return folder


def _is_changed(folder: Folder, name: bytes, fd: int) -> bool:
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return folder.stamp_of(name) != stamp_of(found)
