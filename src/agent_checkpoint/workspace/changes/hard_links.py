"""Files with several hard links. Finds those that were changed through another link.

The kernel reports a change only for the link through which it was made.
"""

from __future__ import annotations

import os
from collections import defaultdict

from agent_checkpoint.workspace.safe_open import directory_below
from agent_checkpoint.workspace.tree.dir_state import DirState, stat_signature


class HardLinks:
    """The paths within a workspace of files that have more than one hard link."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], set[tuple[bytes, bytes]]] = {}
        self.has_new = False
        """Whether a new link was added. Other links of the same file may not be recorded yet."""

    def add(self, stat: os.stat_result, directory: bytes, name: bytes) -> None:
        """Record a link."""
        self.add_entry(stat.st_dev, stat.st_ino, directory, name)

    def add_entry(self, device: int, inode: int, directory: bytes, name: bytes) -> None:
        """Record a link, given the device and inode of its file."""
        links = self._links.setdefault((device, inode), set())
        self.has_new |= (directory, name) not in links
        links.add((directory, name))

    def entries(self) -> list[tuple[int, int, bytes, bytes]]:
        """Return device, inode, directory and name of every link."""
        return [(*file, *link) for file, links in self._links.items() for link in links]

    def changed(self, root: int, known: DirState) -> dict[bytes, set[bytes]]:
        """Return, by directory, the links whose stat signature differs from the known one."""
        candidates: dict[bytes, set[bytes]] = defaultdict(set)
        for links in self._links.values():
            for directory, name in links if len(links) > 1 else ():
                candidates[directory].add(name)
        changed: dict[bytes, set[bytes]] = {}
        for directory, names in candidates.items():
            state = known.below(directory)
            if state is None:
                continue
            try:
                with directory_below(root, directory) as fd:
                    differing = {name for name in names if _is_changed(state, name, fd)}
            except OSError:  # removed; the removal raised an event
                continue
            if differing:
                changed[directory] = differing
        return changed


def _is_changed(state: DirState, name: bytes, fd: int) -> bool:
    try:
        stat = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return state.signature_of(name) != stat_signature(stat)
