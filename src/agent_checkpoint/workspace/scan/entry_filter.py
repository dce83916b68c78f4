"""Decides which entries of a directory are captured, and adds notes for the others."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from agent_checkpoint.backends.os_support.mounts import pseudo_devices
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.scan.dir_builder import DirBuilder
from agent_checkpoint.workspace.scan.nested_stores import is_store
from agent_checkpoint.workspace.tree.dir_state import IGNORED, SPECIAL, STORE, Note, stat_signature

STAGING = b".agent-checkpoint-restore"
"""The staging directory of restores, in the root; never captured."""
_SPECIALS = {
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_STORE = Note(STORE, "a store of agent-checkpoint that is in use", stat.S_IFDIR)


class EntryFilter:
    """Decides which entries of one tree are captured."""

    def __init__(
        self, device: int, own_inodes: Collection[tuple[int, int]], links: HardLinks
    ) -> None:
        """Prepare for a tree.

        Args:
            device: the device of its root.
            own_inodes: directories that are never captured, by device and inode.
            links: collects files with several hard links.
        """
        self._device = device
        self._own_inodes = own_inodes
        self._links = links
        self._pseudo: frozenset[int] | None = None

    def admit(
        self, builder: DirBuilder, name: bytes, status: os.stat_result, rules: Rules, directory: int
    ) -> bool:
        """Add an entry to the builder if it is captured; otherwise add a note.

        Returns whether the entry is captured.
        """
        mode = status.st_mode
        is_dir = stat.S_ISDIR(mode)
        # Rule files are captured even if they match a rule: a restore needs the rules of the tree.
        if (
            rules
            and rules.excludes(builder.path, name, is_dir)
            and name not in rules.files(builder.path)
        ):
            builder.notes[name] = Note(IGNORED, type=stat.S_IFMT(mode))
        elif name == STAGING and not builder.path:
            builder.notes[name] = Note(SPECIAL, "where restores are staged", stat.S_IFMT(mode))
        elif not (is_dir or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            kind = stat.S_IFMT(mode)
            builder.notes[name] = Note(SPECIAL, _SPECIALS.get(kind, "no file"), kind)
        elif is_dir and (status.st_dev, status.st_ino) in self._own_inodes:
            builder.notes[name] = Note(IGNORED, "it belongs to agent-checkpoint")
        elif status.st_dev != self._device and self._is_pseudo(status.st_dev):
            builder.notes[name] = Note(SPECIAL, "a part of the kernel that is mounted there")
        elif is_dir and is_store(directory, name):
            builder.notes[name] = _STORE
        else:
            builder.names.append(name)
            builder.signatures.append(stat_signature(status))
            if status.st_nlink > 1 and not is_dir:
                self._links.add(status, builder.path, name)
            return True
        return False

    def _is_pseudo(self, device: int) -> bool:
        if self._pseudo is None:
            self._pseudo = pseudo_devices()
        return device in self._pseudo
