"""Which names below a directory were touched. Owns the inotify watches; knows nothing of trees.

The kernel queues an event before the call that caused it returns, and the queue is read when the
caller asks: what was written before is told, without a thread and without waiting.

Not told are writes by another hard link, stores through mmap until the file is unmapped, and writes
to a file that was opened without a name (O_TMPFILE) and linked before them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import termios
import weakref
from functools import cache
from pathlib import Path

from agent_checkpoint.backends.disk.mounts import open_table
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths as ChangedPaths
from agent_checkpoint.workspace.changes.changed_paths import WatchError as WatchError
from agent_checkpoint.workspace.changes.file_systems import WatchedRoot, inspect_root, mounts_around

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORY, _IS_DIRECTORY = 0x01000000, 0x40000000

_NAMES_CHANGE = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_SELF_GONE = _DELETE_SELF | _MOVE_SELF
# _CLOSE_WRITE also comes when a file is unmapped: else a linker's output, which is stored through
# mmap, would be taken for unchanged. IN_EXCL_UNLINK is left out: it would spare a look at files
# that are unlinked but open, yet it goes by the kernel's cached name, which a file system may drop
# while the file is still there.
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _NAMES_CHANGE | _SELF_GONE | _ONLY_DIRECTORY

_EVENT = struct.Struct("=iIII")
_INT = struct.Struct("=i")
_READ_AFTER = 1024
"""After so many removed watches the queue is read: each removal is an event, 16,384 overflow it."""

_ADVICE = {
    errno.ENOSPC: "Raise fs.inotify.max_user_watches.",
    errno.EMFILE: "Raise fs.inotify.max_user_instances, or the limit of open files.",
}


class Watcher:
    """Watches on directories, which tell what was touched in them. For one thread at a time.

    Once in doubt it stays so, since the paths that it knows may be wrong: close it, make another,
    and look at everything.

    Raises:
        WatchError: there is no inotify here, or no more of it for this user.
    """

    is_exact = False
    """Not every change raises an event."""

    def __init__(self) -> None:
        self._libc = _libc()
        fds: list[int] = []
        # One that is lost scanner of is closed too: a user has 128 of them.
        self._closing = weakref.finalize(self, _close, fds)
        try:
            fds.append(open_table())
            fds.append(_checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)))
        except OSError as error:
            self._closing()
            raise _failure("Changes", error) from error
        self._mounts, self._fd = fds
        self._mount_poll = select.poll()
        self._mount_poll.register(self._mounts, select.POLLPRI)
        self._process = _process()
        self._root: WatchedRoot | None = None
        # One directory may be at two paths: bound to both, or moved before that was read.
        self._paths: dict[int, tuple[bytes, ...]] = {}
        self._watches: dict[bytes, int] = {}
        self._below: dict[bytes, set[bytes]] = {}
        self._touched = ChangedPaths({}, set())
        self._told = ChangedPaths({}, set())
        self._added: set[bytes] = set()
        self._removed = 0
        self._in_doubt = False

    def __len__(self) -> int:
        return len(self._paths)

    def add(self, fd: int, path: bytes) -> None:
        """Watch an open directory; whoever lists one does this first.

        If another one was watched at this path, that and all below it are forgotten.

        Raises:
            WatchError: a limit is reached, it is no directory, or (for the root) it may change
                unseen. From then on the watcher is in doubt.
        """
        if not self._is_usable():
            raise WatchError("The watcher is closed, or belongs to another process.")
        try:
            if not path:
                self._root = inspect_root(fd)
            watch = self._watch(fd)
            if self._watches.get(path, watch) != watch:
                self.forget(path)
                watch = self._watch(fd)  # it may have been one of those below
        except OSError as error:
            self._in_doubt = True
            raise _failure(repr(os.fsdecode(path)) if path else "The workspace", error) from error
        self._added.add(path)
        known = self._paths.get(watch, ())
        if path not in known:
            self._paths[watch] = (*known, path)
            self._watches[path] = watch
        while path:
            parent = path.rpartition(b"/")[0]
            beside = self._below.setdefault(parent, set())
            if path in beside:
                break
            beside.add(path)
            path = parent

    def forget(self, path: bytes) -> None:
        """Watch neither the directory nor any below it; what they have queued is not told."""
        if not self._is_usable():
            return
        if path:
            self._below.get(path.rpartition(b"/")[0], set()).discard(path)
        waiting = [path]
        while waiting:
            path = waiting.pop()
            waiting += self._below.pop(path, ())
            watch = self._watches.pop(path, None)
            if watch is None:
                continue
            others = tuple(other for other in self._paths[watch] if other != path)
            if others:
                self._paths[watch] = others
                continue
            del self._paths[watch]
            # It fails if the kernel removed the watch already, with the directory.
            self._libc.inotify_rm_watch(self._fd, watch)
            self._removed += 1
            if self._removed >= _READ_AFTER:
                self._read()

    def drain(self) -> ChangedPaths | None:
        """Return what was touched since the last call; None if that is in doubt.

        It is in doubt after an overflow; when the root's path leads elsewhere, or something was
        mounted or unmounted there; when a watch was refused; after close; and in a forked process,
        which must not take events from the queue that it shares.
        """
        if self._in_doubt or not self._is_usable():
            return None
        self._read()
        self._check_root()
        if self._in_doubt:
            return None
        names, replaced = self._touched
        self._told = ChangedPaths({path: set(some) for path, some in names.items()}, set(replaced))
        self._added = set()
        self._touched = ChangedPaths({}, set())
        return ChangedPaths(names, replaced)

    def close(self) -> None:
        """Give all watches back. Twice is fine."""
        self._closing()
        self._paths, self._watches, self._below = {}, {}, {}

    def _is_usable(self) -> bool:
        return self._closing.alive and self._process == _process()

    def _watch(self, fd: int) -> int:
        # This link leads to the open directory itself, wherever its name leads by now. That is why
        # IN_DONT_FOLLOW is not set.
        link = b"/proc/self/fd/%d" % fd
        return _checked(self._libc.inotify_add_watch(self._fd, link, _MASK))

    def _read(self) -> None:
        """Take in what is queued now, and no more: writers may be faster than this."""
        self._removed = 0
        try:
            (left,) = _INT.unpack(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_INT.size)))
            while left > 0:
                events = os.read(self._fd, left)
                left -= len(events)
                self._take(events)
        except OSError:
            self._in_doubt = True

    def _take(self, events: bytes) -> None:
        names, replaced = self._touched
        end = 0
        while end < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, end)
            start = end + _EVENT.size
            end = start + length
            if mask & (_OVERFLOW | _UNMOUNT):
                self._in_doubt = True
            paths = self._paths.get(watch)
            if paths is None:  # it was forgotten, and nobody else gets its number
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
                    self._take_own(path, mask)

    def _take_own(self, path: bytes, mask: int) -> None:
        """Take in an event of a directory itself."""
        parent, _, name = path.rpartition(b"/")
        beside = self._touched.names.setdefault(parent, set())
        if path:
            beside.add(name)
            if mask & _SELF_GONE:
                self._touched.replaced.add(path)
        elif mask & _SELF_GONE:
            self._in_doubt = True

    def _check_root(self) -> None:
        """Doubt if the root's path leads elsewhere, or other mounts are there.

        No event tells that a directory above it moved, nor that it was deleted if it is open.
        """
        have_changed = bool(self._mount_poll.poll(0))
        if self._root is None:
            self._in_doubt |= have_changed
            return
        path, found, mounts = self._root
        try:
            self._in_doubt |= not os.path.samestat(os.lstat(path), found)
            # Mounts elsewhere come and go: of containers, of our own forks.
            self._in_doubt |= have_changed and mounts_around(path) != mounts
        except OSError:
            self._in_doubt = True
        if have_changed:
            self._tell_again()

    def _tell_again(self) -> None:
        """Have the caller look again: a mount may have hidden what it saw, and be gone by now."""
        for path, some in self._told.names.items():
            self._touched.names.setdefault(path, set()).update(some)
        self._touched.replaced.update(self._told.replaced)
        for path in self._added:
            self._take_own(path, _SELF_GONE)


def can_watch(root: Path) -> bool:
    """Tell whether all changes below a directory can be watched, as far as file systems go.

    Not if others can change it unseen, as on a network; nor if it cannot be told. `Watcher.add`
    refuses such a root as well, also one that was mounted on after this was asked.
    """
    try:
        _libc()
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            inspect_root(fd)
        finally:
            os.close(fd)
    except (OSError, WatchError):
        return False
    return True


def _checked(result: int) -> int:
    """Return what a C function returned. Raises OSError if that is an error."""
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
    """Return the C library. Raises WatchError if it has no inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        libc.inotify_init1.argtypes = [ctypes.c_int]
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
    except AttributeError:
        raise WatchError("Changes cannot be watched: there is no inotify here.") from None
    return libc


_forks = 0


def _process() -> tuple[int, int]:
    # The number alone is not enough: a child in a new PID namespace is 1, as its parent may be.
    return os.getpid(), _forks


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
