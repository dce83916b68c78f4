"""The change journal of a directory: its changed paths since an earlier moment. Owns a watcher.

A process that serves other processes (see `service.py`) keeps it. All directories below the root
are watched, whatever the ignore rules of those who ask.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths, WatchError
from agent_checkpoint.workspace.changes.inotify import Watcher
from agent_checkpoint.workspace.changes.served import Answer, Token
from agent_checkpoint.workspace.safe_open import DirectoryOpener

_MOST_PATHS = 20_000
"""The journal forgets the oldest changes beyond this number."""
_TRIES = 3
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class ChangeJournal:
    """The changes below one directory, in order. For one thread at a time.

    A token names a moment of one journal. It is taken after all earlier events have been read and
    every directory is watched, so a change after it is in the journal after it.
    """

    def __init__(self, root: int) -> None:
        """Watch a directory and everything below it.

        Args:
            root: the descriptor of the directory; a copy of it stays open.

        Raises:
            OSError: the directory cannot be listed.
            WatchError: it cannot be watched.
        """
        self._epoch = os.urandom(16)
        self._number = 0
        self._oldest = 0
        """Tokens with smaller numbers are no longer answered."""
        # Both are sorted by the last change, newest last.
        self._changed: dict[bytes, int] = {}
        self._replaced: dict[bytes, int] = {}
        self._closed: set[bytes] = set()
        """Directories that cannot be opened, and so are not watched."""
        self._watcher = Watcher()
        self._root = os.dup(root)
        try:
            self._watch_below(b"")
            if not self.update():
                raise WatchError("The directory or its mounts change.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop watching."""
        self._watcher.close()
        os.close(self._root)

    def update(self) -> bool:
        """Read the queued events; return whether the journal is still complete.

        It is not after a queue overflow, if the root was moved or its mounts changed, or if a new
        directory cannot be watched. Then a new journal is needed.
        """
        for _ in range(_TRIES):
            events = self._watcher.drain()
            if events is None or not self._note(events):
                return False
            if not events.replaced:
                break
            # If a mount has hidden a directory while it was being watched, the next drain reports
            # it. Read it now: later, more mounts will have come and gone.
        return True

    def _note(self, events: ChangedPaths) -> bool:
        """Add changed paths and watch the new directories; return whether that was possible."""
        replaced = events.replaced | self._closed
        paths = {_joined(path, name) for path, names in events.names.items() for name in names}
        paths |= replaced
        if not paths:
            return True
        self._number += 1
        self._number_paths(self._changed, paths)
        self._number_paths(self._replaced, replaced)
        for path in replaced:  # all of them first: one may have been moved to another
            self._watcher.forget(path)
        self._closed = set()
        try:
            for path in replaced:
                if path.rpartition(b"/")[0] not in replaced:  # else with its parent
                    self._watch_below(path)
        except (OSError, WatchError):
            return False
        return True

    def since(self, token: Token | None) -> Answer:
        """Return the paths that changed after a token; the paths are None if they are unknown."""
        now = Token(self._epoch, self._number)
        if token is None or token.epoch != self._epoch:
            return Answer(now, None)
        if not self._oldest <= token.number <= self._number:
            return Answer(now, None)
        names: dict[bytes, set[bytes]] = {}
        for path in _newer(self._changed, token.number):
            parent, _, name = path.rpartition(b"/")
            names.setdefault(parent, set()).add(name)
        return Answer(now, ChangedPaths(names, set(_newer(self._replaced, token.number))))

    def _number_paths(self, numbers: dict[bytes, int], paths: set[bytes]) -> None:
        for path in paths:
            numbers.pop(path, None)  # to the end
            numbers[path] = self._number
        while len(numbers) > _MOST_PATHS:
            oldest = next(iter(numbers))
            self._oldest = max(self._oldest, numbers.pop(oldest))

    def _watch_below(self, top: bytes) -> None:
        """Watch a directory and everything below it.

        Each directory is watched before it is listed. So a directory that is missed here, or gone,
        is in an event of its parent.

        Raises OSError, WatchError.
        """
        with DirectoryOpener(os.dup(self._root)) as opener:
            stack = [top]
            while stack:
                path = stack.pop()
                try:
                    fd = opener.open(path)
                except PermissionError:
                    self._closed.add(path)
                    continue
                except OSError as error:
                    if not path or error.errno not in _GONE:
                        raise
                    continue
                self._watcher.add(fd, path)
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(_joined(path, os.fsencode(entry.name)))


def _joined(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def _newer(numbers: dict[bytes, int], than: int) -> Iterator[bytes]:
    for path, number in reversed(numbers.items()):
        if number <= than:
            return
        yield path
