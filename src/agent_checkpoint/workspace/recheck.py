"""What is not as it was seen, in a directory tree that is known. Owns the quick pass over it.

Nearly all directories are as they were, and this has to be found out for each of them: it is what
a look at everything costs. So nothing is made for a directory that is the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from agent_checkpoint.workspace.beneath import directory_below, open_directory
from agent_checkpoint.workspace.folders import STAMP, Folder
from agent_checkpoint.workspace.links import Links
from agent_checkpoint.workspace.touched import Touched

_TYPE, _DIRECTORY = 0o170000, stat.S_IFDIR
_MOST_OPEN = 128


class Recheck:
    """One pass over a tree that is known."""

    def __init__(self, root: int, watch: Callable[[int, bytes], None] | None) -> None:
        """Prepare.

        Args:
            root: the directory, open.
            watch: told of every directory before it is listed, if they are not watched yet.
        """
        self._root = root
        self._watch = watch
        self.links = Links()
        """The files that have several names."""
        self.touched = Touched({}, set())
        """What is not as it was."""

    def run(self, known: Folder) -> None:
        """Compare everything with what is known of it.

        Raises:
            OSError: a directory that is known is gone, or is something else.
        """
        # Directories that are open, with what is still to be looked at in each of them.
        frames: list[tuple[bytes, int, list[tuple[bytes, Folder]]]] = []
        fd = os.dup(self._root)
        try:
            frames.append((b"", fd, self._compare(b"", fd, known)))
            while frames:
                path, fd, waiting = frames[-1]
                if not waiting:
                    frames.pop()
                    os.close(fd)
                    continue
                name, folder = waiting.pop()
                below = path + b"/" + name if path else name
                if len(frames) < _MOST_OPEN:
                    inner = open_directory(name, fd)
                    frames.append((below, inner, []))
                    frames[-1] = (below, inner, self._compare(below, inner, folder))
                else:  # there are deeper trees than a process has files
                    self._deep(below, folder)
        finally:
            for _, fd, _ in frames:
                os.close(fd)

    def _deep(self, path: bytes, folder: Folder) -> None:
        stack = [(path, folder)]
        while stack:
            path, folder = stack.pop()
            with directory_below(self._root, path) as fd:
                waiting = self._compare(path, fd, folder)
            stack += ((path + b"/" + name, below) for name, below in waiting)

    def _compare(self, path: bytes, fd: int, known: Folder) -> list[tuple[bytes, Folder]]:
        """Compare one directory; return those in it that are the same directories as before."""
        if self._watch is not None:
            self._watch(fd, path)
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
                    self.links.add(seen, path, os.fsencode(entry.name))
                found[entry.name] = pack(
                    seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, mode
                )
        try:
            stamps = b"".join([found[name] for name in known.texts])
        except KeyError:
            stamps = b""
        if stamps == known.stamps and len(found) == len(known.texts) and not known.notes:
            return list(known.folders.items()) if known.folders else []
        return self._differing(path, found, known)

    def _differing(
        self, path: bytes, found: dict[str, bytes], known: Folder
    ) -> list[tuple[bytes, Folder]]:
        before = dict(zip(known.texts, known.all_stamps()))
        names: set[bytes] = set()
        same = dict(known.folders)
        for text in before.keys() | found.keys():
            name, stamp = os.fsencode(text), found.get(text)
            if stamp == before.get(text):
                continue
            kind = None if stamp is None else stat.S_IFMT(STAMP.unpack(stamp)[4])
            note = known.notes.get(name)
            if note is not None and kind is not None and note.type == kind:
                continue  # it is left out, as it was
            names.add(name)
            same.pop(name, None)
            if kind == stat.S_IFDIR:
                self.touched.replaced.add(path + b"/" + name if path else name)
        # What was left out may be gone.
        names.update(name for name in known.notes if os.fsdecode(name) not in found)
        if names:
            self.touched.names[path] = names
        return list(same.items())
