"""The stat pass: finds the changed paths of a known directory tree by stat signatures.

Most directories are unchanged, so the cost of a full scan is the cost of checking these. The pass
allocates as little as possible for an unchanged directory. A directory with the times of its known
state has the same names: it is not opened, and only its known entries are looked up. A parent that
is swapped for a symlink meanwhile gives the signatures of other files, which differ.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Collection, Mapping

from agent_checkpoint.backends.os_support.mounts import pseudo_devices
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.directory_times import DirectoryTimes
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.safe_open import DirectoryOpener
from agent_checkpoint.workspace.tree.dir_state import (
    NO_TIMES,
    READ_AGAIN,
    SIGNATURE,
    STORE,
    DirState,
    Note,
    stat_signature,
)

_TYPE, _DIRECTORY = 0o170000, stat.S_IFDIR

_Below = list[tuple[bytes, DirState, os.stat_result]]
"""Subdirectories: path, known state, and stat result."""


class StatPass:
    """One pass over a known tree."""

    def __init__(self, root: int, watch: Callable[[int, bytes], None] | None) -> None:
        """Prepare the pass.

        Args:
            root: the descriptor of the directory.
            watch: called with every directory before it is listed; None if all are watched.
        """
        self._root = root
        self._device = os.fstat(root).st_dev
        self._pseudo: frozenset[int] | None = None
        self._watch = watch
        self._times = DirectoryTimes(root)
        self.learned: dict[bytes, bytes] = {}
        """New times of known directories, by path."""
        self.links = HardLinks()
        """The files with several hard links."""
        self.changed = ChangedPaths({}, set())
        """The entries that differ from the known state."""

    def run(self, known: DirState, path: bytes = b"", leave: Collection[bytes] = ()) -> list[bytes]:
        """Compare a directory and all directories below it with their known states.

        Args:
            known: the state of the directory.
            path: the directory.
            leave: directories to leave out, with all that is below them.

        Returns:
            The directories that were left out, without those that were removed or replaced.

        Raises:
            OSError: a known directory was removed, or is no longer a directory.
        """
        left: list[bytes] = []
        status = os.lstat(path or b".", dir_fd=self._root)
        with DirectoryOpener(os.dup(self._root)) as opener:
            stack = [(path, known, status)]
            while stack:
                path, state, status = stack.pop()
                if path in leave:
                    left.append(path)
                    continue
                below = self._look_up(path, state, status)
                if below is None:
                    below = self._list(path, opener.open(path), state)
                stack += below
        return left

    def keep_learned(self, root: DirState) -> None:
        """Keep the new times in a tree."""
        for path, times in self.learned.items():
            state = root.below(path)
            # Compared first: this decodes the directory, which would set its old times later.
            if state is not None and state.times != times:
                state.times = times

    def _look_up(self, path: bytes, state: DirState, status: os.stat_result) -> _Below | None:
        """Stat the known entries of a directory; None if it has changed, or may have others."""
        if self._watch is not None:
            return None
        times, names, known, notes, subdirs = state.entries()
        if not self._times.are_same(times, status):
            return None
        lstat, pack, root, device = os.lstat, SIGNATURE.pack, self._root, self._device
        start = path + b"/" if path else b""
        signatures: list[bytes] = []
        below: _Below = []
        try:
            for name in names:
                status = lstat(start + name, dir_fd=root)
                mode = status.st_mode
                if mode & _TYPE == _DIRECTORY:
                    is_here = status.st_dev == device
                    signatures.append(
                        pack(0, 0, 0, status.st_ino, mode) if is_here else self._mounted(status)
                    )
                    below.append((start + name, subdirs[name], status))
                    continue
                if status.st_nlink > 1:
                    self.links.add(status, path, name)
                size, inode = status.st_size, status.st_ino
                signatures.append(pack(size, status.st_mtime_ns, status.st_ctime_ns, inode, mode))
            for name, note in notes.items():
                if not note.is_captured:
                    kind = stat.S_IFMT(lstat(start + name, dir_fd=root).st_mode)
                    if not _is_still_left_out(note, kind):
                        return None
        except (KeyError, OSError, struct.error):
            return None  # a new directory; removed just now; too long a path; a time out of range
        return below if b"".join(signatures) == known else None

    def _list(self, path: bytes, fd: int, state: DirState) -> _Below:
        """List a directory and compare it; return its subdirectories that were not replaced."""
        if self._watch is not None:
            self._watch(fd, path)
        times = self._times.before_listing(fd)
        pack = SIGNATURE.pack
        present: dict[str, bytes] = {}
        subdirs: dict[str, os.stat_result] = {}
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                mode = found.st_mode
                if mode & _TYPE == _DIRECTORY:
                    present[entry.name] = self._mounted(found)
                    subdirs[entry.name] = found
                    continue
                if found.st_nlink > 1:
                    self.links.add(found, path, os.fsencode(entry.name))
                try:
                    present[entry.name] = pack(
                        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, mode
                    )
                except struct.error:
                    present[entry.name] = stat_signature(found)
        texts, signatures, notes = state.texts, state.signatures, state.notes
        is_new = times not in (NO_TIMES, state.times)
        if is_new and present.keys() == {*texts, *map(os.fsdecode, notes)}:
            self.learned[path] = times
        differing: set[str] = set()
        if notes or not _is_same(present, texts, signatures):
            known = dict(zip(texts, state.signature_list()))
            differing = self._differing(path, present, known, notes)
        start = path + b"/" if path else b""
        below = ((os.fsdecode(name), name, known) for name, known in state.subdirs.items())
        return [
            (start + name, known, subdirs[text])
            for text, name, known in below
            if text not in differing
        ]

    def _mounted(self, status: os.stat_result) -> bytes:
        """Return the signature of a directory that may be mounted; none for a kernel file system.

        The number of a device is reused: a kernel file system may be where another one was.
        """
        if status.st_dev != self._device:
            if self._pseudo is None:
                self._pseudo = pseudo_devices()
            if status.st_dev in self._pseudo:
                return READ_AGAIN
        return stat_signature(status, self._device)

    def _differing(
        self,
        path: bytes,
        present: Mapping[str, bytes],
        known: Mapping[str, bytes],
        notes: Mapping[bytes, Note],
    ) -> set[str]:
        """Record the names that differ in one directory, and return them."""
        names: set[str] = set()
        for text in known.keys() | present.keys():
            signature = present.get(text)
            if signature == known.get(text):
                continue
            kind = None if signature is None else stat.S_IFMT(SIGNATURE.unpack(signature)[4])
            note = notes.get(os.fsencode(text)) if notes else None
            if note is not None and kind is not None and _is_still_left_out(note, kind):
                continue
            names.add(text)
            if kind == stat.S_IFDIR:
                name = os.fsencode(text)
                self.changed.replaced.add(path + b"/" + name if path else name)
        # Entries that were not captured may have been removed.
        names.update(text for text in map(os.fsdecode, notes) if text not in present)
        if names:
            self.changed.names[path] = set(map(os.fsencode, names))
        return names


def _is_same(present: Mapping[str, bytes], names: Collection[str], signatures: bytes) -> bool:
    """Return whether the entries of a directory are those with these names and signatures."""
    if len(present) != len(names):
        return False
    try:
        return b"".join([present[name] for name in names]) == signatures
    except KeyError:
        return False


def _is_still_left_out(note: Note, kind: int) -> bool:
    """Return whether an entry of this type need not be looked at: a store may no longer be one."""
    return note.type == kind and note.kind != STORE
