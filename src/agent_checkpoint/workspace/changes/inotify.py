"""Changed paths below a directory, from inotify. Owns the watches; does not depend on trees.

The kernel queues an event before the call that caused it returns, and `drain` reads the queue. So
`drain` reports all earlier changes, without a thread and without waiting.

Not reported are writes through another hard link, writes through mmap until the file is unmapped,
and writes to a file that was opened without a name (O_TMPFILE) and linked before them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import termios
import weakref
from functools import cache

from agent_checkpoint.backends.os_support.mounts import MountTable
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths, WatchError
from agent_checkpoint.workspace.changes.file_systems import WatchedRoot, inspect_root, mounts_around

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORY, _IS_DIRECTORY = 0x01000000, 0x40000000

_NAMES_CHANGE = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_SELF_GONE = _DELETE_SELF | _MOVE_SELF
# _CLOSE_WRITE is also raised when a file is unmapped. Without it, a linker's output, written by
# mmap, would count as unchanged. IN_EXCL_UNLINK is not set: it would suppress events of unlinked
# open files, but it depends on the kernel's cached name, which a file system may drop while the
# file is still there.
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _NAMES_CHANGE | _SELF_GONE | _ONLY_DIRECTORY

_EVENT = struct.Struct("=iIII")
_INT = struct.Struct("=i")
_READ_AFTER = 1024
"""The queue is read after this many removed watches: each is an event, 16,384 overflow it."""

_ADVICE = {
    errno.ENOSPC: "Raise fs.inotify.max_user_watches.",
    errno.EMFILE: "Raise fs.inotify.max_user_instances, or the limit of open files.",
}


class Watcher:
    """Watches directories and collects changed paths. For one thread at a time.

    A watcher that has become unreliable stays unreliable, because its paths may be wrong. Close it,
    create a new one and scan everything.

    Raises:
        WatchError: inotify is not available, or its limit for this user is reached.
    """

    is_exact = False
    """Some changes raise no event."""

    def __init__(self) -> None:
        self._libc = _libc()
        fds: list[int] = []
        # Closes garbage-collected watchers, too: a user has only 128 inotify instances.
        self._closing = weakref.finalize(self, _close, fds)
        try:
            self._mounts = MountTable()
            fds.append(self._mounts.fd)
            fds.append(_checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)))
        except OSError as error:
            self._closing()
            raise _failure("Changes", error) from error
        self._fd = fds[1]
        self._process = _process()
        self._root: WatchedRoot | None = None
        # A directory may have two paths: bind-mounted, or moved and the event not read yet.
        self._paths: dict[int, tuple[bytes, ...]] = {}
        self._watches: dict[bytes, int] = {}
        self._below: dict[bytes, set[bytes]] = {}
        self._changed = ChangedPaths({}, set())
        self._reported = ChangedPaths({}, set())
        self._added: set[bytes] = set()
        self._removed = 0
        self._is_unreliable = False

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, fd: int, path: bytes) -> None:
        """Watch an open directory. Call this before listing it.

        A directory watched earlier at this path is no longer watched, nor are those below it.

        Raises:
            WatchError: a limit is reached, the descriptor is not a directory, or (for the root) the
                directory may change without events. The watcher is then unreliable.
        """
        if not self._is_usable():
            raise WatchError("The watcher is closed, or belongs to another process.")
        try:
            if not path:
                self._root = inspect_root(fd)
            watch = self._watch(fd)
            if self._watches.get(path, watch) != watch:
                self.forget(path)
                watch = self._watch(fd)  # again: `forget` may have removed this watch
        except OSError as error:
            self._is_unreliable = True
            raise _failure(repr(os.fsdecode(path)) if path else "The workspace", error) from error
        self._added.add(path)
        known = self._paths.get(watch, ())
        if path not in known:
            self._paths[watch] = (*known, path)
            self._watches[path] = watch
        while path:
            parent = path.rpartition(b"/")[0]
            siblings = self._below.get(parent)
            if siblings is not None:  # so its own parents are there, too
                siblings.add(path)
                break
            self._below[parent] = {path}
            path = parent

    def forget(self, path: bytes) -> None:
        """Stop watching a directory and all below it; drop their queued events."""
        if not self._is_usable():
            return
        if path:
            self._below.get(path.rpartition(b"/")[0], set()).discard(path)
        pending = [path]
        while pending:
            path = pending.pop()
            pending += self._below.pop(path, ())
            watch = self._watches.pop(path, None)
            if watch is None:
                continue
            others = tuple(other for other in self._paths[watch] if other != path)
            if others:
                self._paths[watch] = others
                continue
            del self._paths[watch]
            # Fails if the kernel has already removed the watch, because the directory was deleted.
            self._libc.inotify_rm_watch(self._fd, watch)
            self._removed += 1
            if self._removed >= _READ_AFTER:
                self._read()

    def drain(self) -> ChangedPaths | None:
        """Return the paths that changed since the last call; None if the watcher is unreliable.

        A watcher is unreliable after a queue overflow; if the root was moved or replaced, or its
        mounts changed; if a watch could not be added; after close; and in a forked child process,
        which shares the queue and must not consume its events.
        """
        if self._is_unreliable or not self._is_usable():
            return None
        self._read()
        self._check_root()
        if self._is_unreliable:
            return None
        names, replaced = self._changed
        self._reported = ChangedPaths(
            {path: set(each) for path, each in names.items()}, set(replaced)
        )
        self._added = set()
        self._changed = ChangedPaths({}, set())
        return ChangedPaths(names, replaced)

    def close(self) -> None:
        """Remove all watches. May be called twice."""
        self._closing()
        self._paths, self._watches, self._below = {}, {}, {}

    def _is_usable(self) -> bool:
        return self._closing.alive and self._process == _process()

    def _watch(self, fd: int) -> int:
        # This link leads to the open directory, even if its path now leads elsewhere. So
        # IN_DONT_FOLLOW must not be set.
        link = b"/proc/self/fd/%d" % fd
        return _checked(self._libc.inotify_add_watch(self._fd, link, _MASK))

    def _read(self) -> None:
        """Process only the events queued now: writers may be faster than this loop."""
        self._removed = 0
        try:
            (left,) = _INT.unpack(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_INT.size)))
            while left > 0:
                events = os.read(self._fd, left)
                left -= len(events)
                self._handle(events)
        except OSError:
            self._is_unreliable = True

    def _handle(self, events: bytes) -> None:
        names, replaced = self._changed
        end = 0
        while end < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, end)
            start = end + _EVENT.size
            end = start + length
            if mask & (_OVERFLOW | _UNMOUNT):
                self._is_unreliable = True
            paths = self._paths.get(watch)
            if paths is None:  # no longer watched; watch numbers are not reused
                continue
            if length:
                name = events[start:end].rstrip(b"\0")
                for path in paths:
                    names.setdefault(path, set()).add(name)
                    if mask & _IS_DIRECTORY and mask & _NAMES_CHANGE:
                        replaced.add(path + b"/" + name if path else name)
            elif mask & _IGNORED:  # the kernel removed the watch, with the directory
                for path in self._paths.pop(watch):
                    del self._watches[path]
            else:
                for path in paths:
                    self._handle_own(path, mask)

    def _handle_own(self, path: bytes, mask: int) -> None:
        """Process an event of a watched directory itself."""
        parent, _, name = path.rpartition(b"/")
        siblings = self._changed.names.setdefault(parent, set())
        if path:
            siblings.add(name)
            if mask & _SELF_GONE:
                self._changed.replaced.add(path)
        elif mask & _SELF_GONE:
            self._is_unreliable = True

    def _check_root(self) -> None:
        """Mark the watcher unreliable if the root was moved or replaced, or its mounts changed.

        The kernel raises no event if a parent of the root is moved, or if the root is deleted while
        open.
        """
        have_changed = self._mounts.have_changed()
        if self._root is None:
            self._is_unreliable |= have_changed
            return
        path, stat, mounts = self._root
        try:
            self._is_unreliable |= not os.path.samestat(os.lstat(path), stat)
            # Mounts elsewhere come and go, such as those of containers and of our own forks.
            self._is_unreliable |= have_changed and mounts_around(path) != mounts
        except OSError:
            self._is_unreliable = True
        if have_changed:
            self._report_again()

    def _report_again(self) -> None:
        """Report the last paths again: a mount may have hidden them during the scan."""
        for path, each in self._reported.names.items():
            self._changed.names.setdefault(path, set()).update(each)
        self._changed.replaced.update(self._reported.replaced)
        for path in self._added:
            self._handle_own(path, _SELF_GONE)


def _checked(result: int) -> int:
    """Return the result of a C function. Raises OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _failure(what: str, error: OSError) -> WatchError:
    advice = _ADVICE.get(error.errno or 0, "")
    reason = error.strerror or error
    return WatchError(f"{what} cannot be watched: {reason}. {advice}".strip())


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. Raises WatchError if it lacks inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        libc.inotify_init1.argtypes = [ctypes.c_int]
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
    except AttributeError:
        raise WatchError("Changes cannot be watched: inotify is not available.") from None
    return libc


_forks = 0


def _process() -> tuple[int, int]:
    # The pid is not sufficient: parent and child may both have pid 1, in different PID namespaces.
    return os.getpid(), _forks


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
