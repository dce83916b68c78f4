"""Which entries of a directory are captured. Owns that, and what is said of the others."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from agent_checkpoint.backends.disk.mounts import pseudo_devices
from agent_checkpoint.workspace.changes.hard_links import Links
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.scan.dir_builder import Node
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.tree.dir_state import IGNORED, SPECIAL, STORE, Note, stamp_of

_SPECIALS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_STORE = Note(STORE, "a store of agent-checkpoint that is in use", stat.S_IFDIR)


class Excluded(NamedTuple):
    """What is never looked at: a name in the root, and directories by device and inode."""

    in_root: bytes
    places: Collection[tuple[int, int]]


class Admission:
    """Decides about the entries of one tree."""

    def __init__(self, device: int, excluded: Excluded, links: Links) -> None:
        """Begin a tree.

        Args:
            device: what its root is on.
            excluded: what is never captured.
            links: is told of files that have several names.
        """
        self._device = device
        self._excluded = excluded
        self._links = links
        self._pseudo: frozenset[int] | None = None

    def take(
        self, node: Node, name: bytes, found: os.stat_result, rules: Rules, directory: int
    ) -> bool:
        """Add an entry of an open directory to a node if it is captured; else say why not."""
        mode = found.st_mode
        is_folder = stat.S_ISDIR(mode)
        # What excludes is itself kept: who restores has to know what was left out.
        if (
            rules
            and rules.excludes(node.path, name, is_folder)
            and name not in rules.files(node.path)
        ):
            node.notes[name] = Note(IGNORED, type=stat.S_IFMT(mode))
        elif name == self._excluded.in_root and not node.path:
            node.notes[name] = Note(SPECIAL, "where restores are staged", stat.S_IFMT(mode))
        elif not (is_folder or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            kind = stat.S_IFMT(mode)
            node.notes[name] = Note(SPECIAL, _SPECIALS.get(kind, "no file"), kind)
        elif is_folder and (found.st_dev, found.st_ino) in self._excluded.places:
            node.notes[name] = Note(IGNORED, "it belongs to agent-checkpoint")
        elif found.st_dev != self._device and self._is_pseudo(found.st_dev):
            node.notes[name] = Note(SPECIAL, "a part of the kernel that is mounted there")
        elif is_folder and is_store(directory, name):
            node.notes[name] = _STORE
        else:
            node.names.append(name)
            node.stamps.append(stamp_of(found))
            if found.st_nlink > 1 and not is_folder:
                self._links.add(found, node.path, name)
            return True
        return False

    def _is_pseudo(self, device: int) -> bool:
        if self._pseudo is None:
            self._pseudo = pseudo_devices()
        return device in self._pseudo
