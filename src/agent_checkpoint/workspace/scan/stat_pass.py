"""What is not as it was seen, in a directory tree that is known. Owns the quick pass over it.

Nearly all directories are as they were, and this has to be found out for each of them: it is what
a look at everything costs. So nothing is made for a directory that is the same.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Mapping
from typing import Generic, Protocol

from agent_checkpoint.workspace.changes.changed_paths import Touched
from agent_checkpoint.workspace.changes.hard_links import Links
from agent_checkpoint.workspace.safe_open import DIRECTORY, directory_below
from agent_checkpoint.workspace.tree.dir_state import STAMP, STORE, Handle, Note, Row, stamp_of

_TYPE, _DIRECTORY = 0o170000, stat.S_IFDIR
_MOST_OPEN = 128


class Known(Protocol[Handle]):
    """A tree that is known, in memory or as an index."""

    @property
    def top(self) -> Handle:
        """What the root is known by."""

    def row(self, handle: Handle) -> Row[Handle]:
        """Return what a directory is compared with."""


class Recheck(Generic[Handle]):
    """One pass over a tree that is known."""

    def __init__(
        self, root: int, known: Known[Handle], watch: Callable[[int, bytes], None] | None
    ) -> None:
        """Prepare.

        Args:
            root: the directory, open.
            known: what it was.
            watch: told of every directory before it is listed, if they are not watched yet.
        """
        self._root = root
        self._known = known
        self._watch = watch
        self.links = Links()
        """The files that have several names."""
        self.touched = Touched({}, set())
        """What is not as it was."""

    def run(self) -> None:
        """Compare everything with what is known of it.

        Raises:
            OSError: a directory that is known is gone, or is something else.
        """
        # Directories that are open, with what is still to be looked at in each of them. Paths end
        # with a slash, but for the root's.
        frames: list[tuple[str, int, list[tuple[str, Handle]]]] = []
        compare = self._compare
        fd = os.dup(self._root)
        try:
            frames.append(("", fd, []))
            frames[-1] = ("", fd, compare("", fd, self._known.top))
            while frames:
                path, fd, waiting = frames[-1]
                if not waiting:
                    frames.pop()
                    os.close(fd)
                    continue
                name, handle = waiting.pop()
                below = f"{path}{name}/"
                if len(frames) >= _MOST_OPEN:  # there are deeper trees than a process has files
                    self._deep(below, handle)
                    continue
                inner = os.open(name, DIRECTORY, dir_fd=fd)
                try:
                    inside = compare(below, inner, handle)
                except BaseException:
                    os.close(inner)
                    raise
                if inside:
                    frames.append((below, inner, inside))
                else:
                    os.close(inner)
        finally:
            for _, fd, _ in frames:
                os.close(fd)

    def _deep(self, path: str, handle: Handle) -> None:
        stack = [(path, handle)]
        while stack:
            path, handle = stack.pop()
            with directory_below(self._root, _encoded(path)) as fd:
                waiting = self._compare(path, fd, handle)
            stack += ((f"{path}{name}/", below) for name, below in waiting)

    def _compare(self, path: str, fd: int, handle: Handle) -> list[tuple[str, Handle]]:
        """Compare one directory; return those in it that are the same directories as before."""
        if self._watch is not None:
            self._watch(fd, _encoded(path))
        pack = STAMP.pack
        found: dict[str, bytes] = {}
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    seen = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                mode = seen.st_mode
                if mode & _TYPE == _DIRECTORY:
                    found[entry.name] = pack(0, 0, 0, seen.st_ino, mode)
                    continue
                if seen.st_nlink > 1:
                    self.links.add(seen, _encoded(path), os.fsencode(entry.name))
                try:
                    found[entry.name] = pack(
                        seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, mode
                    )
                except struct.error:
                    found[entry.name] = stamp_of(seen)
        texts, stamps, notes, below = self._known.row(handle)
        if len(found) == len(texts) and not notes:
            try:
                if b"".join([found[name] for name in texts]) == stamps:
                    return below
            except KeyError:
                pass
        before = dict(zip(texts, _each(stamps)))
        differing = self._differing(path, found, before, notes)
        return [(name, one) for name, one in below if name not in differing]

    def _differing(
        self,
        path: str,
        found: Mapping[str, bytes],
        before: Mapping[str, bytes],
        notes: Mapping[bytes, Note],
    ) -> set[str]:
        """Take note of what differs in one directory, and return it."""
        names: set[str] = set()
        for text in before.keys() | found.keys():
            stamp = found.get(text)
            if stamp == before.get(text):
                continue
            kind = None if stamp is None else stat.S_IFMT(STAMP.unpack(stamp)[4])
            note = notes.get(os.fsencode(text)) if notes else None
            if note is not None and kind is not None and note.type == kind and note.kind != STORE:
                continue  # it is left out, as it was; what was a store need not be one any more
            names.add(text)
            if kind == stat.S_IFDIR:
                self.touched.replaced.add(os.fsencode(path + text))
        # What was left out may be gone.
        names.update(text for text in map(os.fsdecode, notes) if text not in found)
        if names:
            self.touched.names[_encoded(path)] = set(map(os.fsencode, names))
        return names


def _encoded(path: str) -> bytes:
    """Return the path of a directory as others know it."""
    return os.fsencode(path[:-1])


def _each(stamps: bytes) -> list[bytes]:
    return [stamps[at : at + STAMP.size] for at in range(0, len(stamps), STAMP.size)]
