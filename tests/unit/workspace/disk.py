"""A directory made, changed and described by plain system calls, with nothing of the library."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Optional, Union

IS_ROOT = os.geteuid() == 0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_SHOWN = 64


class Entry(NamedTuple):
    """What is at a path. Of a long content there is only the hash, to keep messages short."""

    type: str
    mode: int = 0
    content: bytes = b""


Described = dict[bytes, Entry]


class File(NamedTuple):
    content: bytes = b""
    mode: int = 0o644


class Link(NamedTuple):
    target: bytes


class Folder(NamedTuple):
    mode: int = 0o755


class Fifo(NamedTuple):
    pass


class Socket(NamedTuple):
    pass


Thing = Union[File, Link, Folder, Fifo, Socket]
Things = Mapping[bytes, Thing]


def without_syncs() -> Optional[str]:
    """Return a directory on a file system that has nothing to sync, if there is one with room."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30 else None


def describe(root: Path) -> Described:
    """Return everything below a directory, by path."""
    found: Described = {}
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        with opened(root, path) as fd:
            for name in map(os.fsencode, os.listdir(fd)):
                entry = _entry(fd, name)
                found[join(path, name)] = entry
                if entry.type == "folder":
                    waiting.append(join(path, name))
    return found


def restored(now: Described, then: Described) -> Described:
    """Return what a full restore has to make of a directory.

    A special stays, and so do the directories that it is in; what should stand in the place of
    either is left out, with all below it. Everything else is as it was then.
    """
    kept: Described = {}
    closed: set[bytes] = set()
    for path in (path for path, entry in now.items() if entry.type == "special"):
        kept[path] = now[path]
        closed.add(path)
        for above in parents(path):
            there = then.get(above, Entry("special"))
            if there.type == "special":
                kept[above] = now[above]
            elif there.type != "folder":
                kept.update((p, e) for p, e in now.items() if above in (p, *parents(p)))
                closed.add(above)
    wanted = {
        path: entry
        for path, entry in then.items()
        if entry.type != "special" and closed.isdisjoint({path, *parents(path)})
    }
    return {**kept, **wanted}


def captured(described: Described) -> Described:
    """Return what a snapshot has of a directory."""
    return {path: entry for path, entry in described.items() if entry.type != "special"}


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def parents(path: bytes) -> "list[bytes]":
    """Return the directories above a path, the topmost first."""
    names = path.split(b"/")
    return [b"/".join(names[:depth]) for depth in range(1, len(names))]


@contextmanager
def opened(root: Path, path: bytes) -> Iterator[int]:
    """Give a directory, opened step by step: its path may be longer than the system takes."""
    fd = os.open(root, _DIRECTORY)
    try:
        for name in path.split(b"/") if path else ():
            below = os.open(name, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


@contextmanager
def place(root: Path, path: bytes) -> Iterator["tuple[int, bytes]"]:
    """Give the directory of a path, and the name in it."""
    directory, _, name = path.rpartition(b"/")
    with opened(root, directory) as fd:
        yield fd, name


def make(root: Path, things: Things) -> None:
    """Make entries, and the directories that they are in."""
    folders: list[tuple[bytes, int]] = []
    for path in sorted(things):
        thing = things[path]
        for above in parents(path):
            put(root, above, Folder())
        put(root, path, thing)
        if isinstance(thing, Folder):
            folders.append((path, thing.mode))
    for path, mode in reversed(folders):  # not before they are filled
        with opened(root, path) as fd:
            os.fchmod(fd, mode)


def put(root: Path, path: bytes, thing: Thing) -> None:
    """Make one entry; a directory may be there already."""
    with place(root, path) as (fd, name):
        if isinstance(thing, Folder):
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
        elif isinstance(thing, File):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
            with open(file, "wb") as stream:
                stream.write(thing.content)
                os.fchmod(file, thing.mode)
        elif isinstance(thing, Link):
            os.symlink(thing.target, name, dir_fd=fd)
        elif isinstance(thing, Fifo):
            os.mkfifo(name, dir_fd=fd)
        else:
            os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=fd)


def remove(root: Path, path: bytes) -> None:
    """Remove an entry and all below it."""
    with place(root, path) as (fd, name):
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
        if not is_folder:
            os.unlink(name, dir_fd=fd)
    if is_folder:
        clear(root, path)
        with place(root, path) as (fd, name):
            os.rmdir(name, dir_fd=fd)


def clear(root: Path, path: bytes = b"") -> None:
    """Remove all that is below a directory."""
    found = [path]
    for directory in found:  # it grows while we go along
        with opened(root, directory) as fd:
            for name in map(os.fsencode, os.listdir(fd)):
                if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    found.append(join(directory, name))
                else:
                    os.unlink(name, dir_fd=fd)
    for directory in reversed(found[1:]):
        with place(root, directory) as (fd, name):
            os.rmdir(name, dir_fd=fd)


def _entry(fd: int, name: bytes) -> Entry:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    mode = found.st_mode & 0o777
    if stat.S_ISDIR(found.st_mode):
        return Entry("folder", mode)
    if stat.S_ISLNK(found.st_mode):
        return Entry("link", 0, os.readlink(name, dir_fd=fd))
    if not stat.S_ISREG(found.st_mode):
        return Entry("special")
    with open(os.open(name, os.O_RDONLY, dir_fd=fd), "rb") as stream:
        content = stream.read()
    if len(content) > _SHOWN:
        content = b"%d bytes " % len(content) + hashlib.sha256(content).hexdigest().encode()
    return Entry("file", mode, content)
