"""Changes a private directory from one tree to another. Nothing else may write to it meanwhile.

Unlike a restore it is not journaled and not synced: the directory is one of a probe or a fork,
which is made again after a crash.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.workspace.fork.overlay_mount import wrap_errors
from agent_checkpoint.workspace.restore.staging import write_file
from agent_checkpoint.workspace.safe_open import (
    DirectoryOpener,
    new_file,
    open_root,
)
from agent_checkpoint.workspace.tree.compare import Change
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, MODE_BITS, Get, Item

_BATCH = 200
MTime = Callable[[bytes], int]
"""Returns the modification time of a path in nanoseconds."""


class TreeUpdate:
    """Applies the changes between two trees to a directory that has the first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modes: dict[bytes, int] = {}
        """The final modes of directories."""

    def run(self, changes: Sequence[Change], get: Get) -> None:
        """Apply changes, in the order of `differences`.

        Raises:
            IntegrityError: a stored file content is missing or damaged.
            WorkspaceError: the directory cannot be written, or does not have the first tree.
        """
        with wrap_errors(f"update {str(self._root)!r}"):
            with DirectoryOpener(open_root(self._root)) as opener:
                for change in reversed(changes):
                    if change.before is not None and not _stays(change):
                        _remove(change, self._writable(opener, change))
            with DirectoryOpener(open_root(self._root)) as opener:
                for start in range(0, len(changes), _BATCH):
                    self._make(changes[start : start + _BATCH], opener, get)
                for path in sorted(self._modes, reverse=True):
                    with suppress(FileNotFoundError, NotADirectoryError):  # removed since
                        os.fchmod(opener.open(path), self._modes[path])

    def _make(self, changes: Sequence[Change], opener: DirectoryOpener, get: Get) -> None:
        items = [change.after for change in changes if change.after is not None]
        blobs = iter(get([item.ref for item in items if _is_whole(item)]))
        for change in changes:
            after, name = change.after, change.name
            if after is None:
                continue
            fd = self._writable(opener, change)
            if after.type == FOLDER:
                if not _stays(change):
                    os.mkdir(name, 0o700, dir_fd=fd)
                self._modes[change.path] = after.mode
            elif after.type == FILE:
                with new_file(name, fd) as new:
                    write_file(new, after, blobs, get)
            else:
                os.symlink(after.target, name, dir_fd=fd)

    def _writable(self, opener: DirectoryOpener, change: Change) -> int:
        """Open the parent of a path, made writable until the end."""
        parent = change.path.rpartition(b"/")[0]
        fd = opener.open(parent)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o700 != 0o700:
            self._modes.setdefault(parent, mode & MODE_BITS)
            os.fchmod(fd, mode | 0o700)
        return fd


def set_times(root: Path, paths: Sequence[bytes], time_of: MTime) -> None:
    """Set the modification times of files and links; paths that do not exist are skipped.

    Raises:
        WorkspaceError: a time cannot be set.
    """
    with (
        wrap_errors(f"set times in {str(root)!r}"),
        DirectoryOpener(open_root(root)) as opener,
    ):
        for path in sorted(paths):
            parent, _, name = path.rpartition(b"/")
            ns = time_of(path)
            with suppress(FileNotFoundError, NotADirectoryError):
                fd = opener.open(parent)
                os.utime(name, ns=(ns, ns), dir_fd=fd, follow_symlinks=False)


def _stays(change: Change) -> bool:
    """Return whether a directory only gets another mode."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.type == after.type == FOLDER


def _is_whole(item: Item) -> bool:
    """Return whether an entry is a file that is stored in one object."""
    return item.type == FILE and item.id == item.ref


def _remove(change: Change, directory: int) -> None:
    if change.before is not None and change.before.type == FOLDER:
        os.rmdir(change.name, dir_fd=directory)
    else:
        os.unlink(change.name, dir_fd=directory)
