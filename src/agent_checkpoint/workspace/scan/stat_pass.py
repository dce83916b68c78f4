"""The stat pass: finds the changed paths of a known directory tree by stat signatures.

Most directories are unchanged, so the cost of a full scan is the cost of checking these. The pass
allocates as little as possible for an unchanged directory.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Collection, Mapping

from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.safe_open import DirectoryOpener
from agent_checkpoint.workspace.tree.dir_state import (
    SIGNATURE,
    STORE,
    DirState,
    Note,
    stat_signature,
)

_TYPE, _DIRECTORY = 0o170000, stat.S_IFDIR


class StatPass:
    """One pass over a known tree."""

    def __init__(self, root: int, watch: Callable[[int, bytes], None] | None) -> None:
        """Prepare the pass.

        Args:
            root: the descriptor of the directory.
            watch: called with every directory before it is listed; None if all are watched.
        """
        self._root = root
        self._watch = watch
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
        with DirectoryOpener(os.dup(self._root)) as opener:
            stack = [(path, known)]
            while stack:
                path, state = stack.pop()
                if path in leave:
                    left.append(path)
                    continue
                subdirs = self._compare(path, opener.open(path), state)
                if subdirs:
                    start = path + b"/" if path else b""
                    stack += [(start + name, subdir) for name, subdir in subdirs.items()]
        return left

    def _compare(self, path: bytes, fd: int, state: DirState) -> Mapping[bytes, DirState]:
        """Compare one directory; return its subdirectories that were not replaced."""
        if self._watch is not None:
            self._watch(fd, path)
        pack = SIGNATURE.pack
        present: dict[str, bytes] = {}
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                mode = status.st_mode
                if mode & _TYPE == _DIRECTORY:
                    present[entry.name] = pack(0, 0, 0, status.st_ino, mode)
                    continue
                if status.st_nlink > 1:
                    self.links.add(status, path, os.fsencode(entry.name))
                try:
                    present[entry.name] = pack(
                        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, mode
                    )
                except struct.error:
                    present[entry.name] = stat_signature(status)
        texts, signatures, notes = state.texts, state.signatures, state.notes
        if len(present) == len(texts) and not notes:
            try:
                if b"".join([present[name] for name in texts]) == signatures:
                    return state.subdirs
            except KeyError:
                pass
        known = dict(zip(texts, state.signature_list()))
        differing = self._differing(path, present, known, notes)
        subdirs = state.subdirs
        return {name: subdirs[name] for name in subdirs if os.fsdecode(name) not in differing}

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
            if note is not None and kind is not None and note.type == kind and note.kind != STORE:
                continue  # still not captured; but a store may no longer be one
            names.add(text)
            if kind == stat.S_IFDIR:
                name = os.fsencode(text)
                self.changed.replaced.add(path + b"/" + name if path else name)
        # Entries that were not captured may have been removed.
        names.update(text for text in map(os.fsdecode, notes) if text not in present)
        if names:
            self.changed.names[path] = set(map(os.fsencode, names))
        return names
