"""A directory of cached files with a size limit, which many processes can use at once.

<directory>/agent-checkpoint-cache   the state; its lock is held by every change
<directory>/ab/<name>                a file: the SHA-256 of name and content, then the content

Owns names, state and eviction. Does not depend on any backend.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT
from agent_checkpoint.backends.os_support.posix import (
    check_path,
    exclusive_lock,
    make_directory,
    open_single_link,
    scan_directory,
    wrap_os_errors,
)
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.file_trust import other_owner, other_writer, why_replaceable
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

_STATE = struct.Struct("<QQB")
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# A cache of agent-checkpoint.\n"
_NAME = re.compile(r"[0-9a-f]{2,}-[0-9a-f]{16}")
_FOLDERS = [f"{number:02x}" for number in range(256)]
_BLOCK = 4096
_SAMPLE = 64
_MAX_SAMPLES = 16
_LARGEST = 8  # the largest file is this part of the limit
_WAIT = 1.0  # seconds to wait for the lock to add a file
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class _State(NamedTuple):
    generation: int
    """Changes whenever files are removed on purpose: what was read before may be gone."""
    total: int
    """The size of all files, in bytes of whole blocks. Never too small."""
    hand: int
    """The folder in which the next eviction begins."""


class CacheDirectory:
    """Named contents in files. The least recently used ones are evicted, within a sample."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        """Use a directory, which the first `open` creates.

        Raises:
            InvalidInputError: the directory is another one's, or contains other files, or
                `max_bytes` is not a positive number.
            StorageError: the file system failed.
        """
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
            raise InvalidInputError(
                f"The size of a cache must be a positive number of bytes, not "
                f"{short_repr(max_bytes)}."
            )
        self.path = check_path(path).absolute()
        self.max_bytes = max_bytes
        self._state = self.path / "agent-checkpoint-cache"
        with wrap_os_errors(f"use the cache {self.path}"):
            self._check()

    def open(self) -> int:
        """Create the directory if it is missing. Return the generation, for `add`.

        Raises:
            InvalidInputError: the directory belongs to another user, or contains other files.
            OSError: the file system failed.
            StorageError: another process keeps the cache locked.
        """
        with suppress(FileNotFoundError):
            state = self._parse_state()
            if state is not None:
                return state.generation
        make_directory(self.path)
        self._check()
        with exclusive_lock(self._state, _WAIT):
            self.path.chmod(0o700)
            self._write("CACHEDIR.TAG", _TAG)
            return self._read_state().generation

    def get(self, name: str) -> bytes | None:
        """Return a content, and record its use. None if it is missing, damaged or unreadable."""
        path = self._file(name)
        try:
            with open(os.open(path, os.O_RDONLY | _FLAGS), "rb") as file:
                stored = file.read()
                now = time.time_ns()
                os.utime(file.fileno(), ns=(now, now))
        except OSError:
            return None
        data = stored[32:]
        if _checksum(name, data) != stored[:32]:
            with suppress(OSError):
                path.unlink()
            return None
        return data

    def add(self, contents: Mapping[str, bytes], generation: int) -> None:
        """Add contents, unless files were removed since `open` returned the generation.

        A content that is larger than an eighth of the limit is not added.

        Raises:
            OSError: the file system failed.
            StorageError: another process keeps the cache locked.
        """
        largest = self.max_bytes // _LARGEST
        fitting = [name for name, data in contents.items() if _file_size(data) <= largest]
        if not fitting:
            return
        with exclusive_lock(self._state, _WAIT):
            state = self._read_state()
            if state.generation != generation:
                return
            added, size = [], 0
            for name in fitting:
                more = size + _file_size(contents[name])
                if more <= self.max_bytes and not self._file(name).exists():
                    state = self._make_room(state, more)
                    if state.total + more <= self.max_bytes:
                        added.append(name)
                        size = more
            # First the state: a crash must not leave files that do not count.
            self._write_state(state._replace(total=state.total + size))
            for name in added:
                data = contents[name]
                self._write(f"{name[:2]}/{name}", _checksum(name, data) + data)

    def remove(self, names: Iterable[str]) -> None:
        """Remove contents; those that are read at this moment are not added.

        Raises:
            OSError: the file system failed.
            StorageError: another process keeps the cache locked.
        """
        self._remove(self._file(name) for name in names)

    def clear(self) -> None:
        """Remove all contents. Raises the same errors as `remove`."""
        everything = (Path(item.path) for folder in _FOLDERS for item in self._items(folder))
        self._remove(everything)

    # -- internals -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise InvalidInputError(f"The cache {self.path} is not a directory.")
        found = self.path.stat()
        why = other_owner(self.path, found) or other_writer(self.path, found)
        why = why or why_replaceable(self.path)
        if why is not None:
            raise InvalidInputError(
                f"Refusing to use the cache {self.path}: {why}. Choose a directory of your own."
            )
        if next(self.path.iterdir(), None) is not None and not self._state.exists():
            raise InvalidInputError(
                f"{self.path} contains other files and is not a cache. Choose an empty directory."
            )

    def _parse_state(self) -> _State | None:
        """Return the state; None if it is new or damaged. Raises OSError."""
        text = self._state.read_bytes()
        return _State(*_STATE.unpack(text)) if len(text) == _STATE.size else None

    def _read_state(self) -> _State:
        """Return the state, under the lock. Raises OSError."""
        state = self._parse_state()
        if state is None:
            items = (item for folder in _FOLDERS for item in self._items(folder))
            total = sum(_blocks(item.stat(follow_symlinks=False).st_size) for item in items)
            state = _State(int.from_bytes(os.urandom(6), "big"), total, 0)
            self._write_state(state)
        return state

    def _write_state(self, state: _State) -> None:
        with open_single_link(self._state, os.O_WRONLY) as fd:
            os.pwrite(fd, _STATE.pack(*state), 0)
            os.ftruncate(fd, _STATE.size)

    def _make_room(self, state: _State, size: int) -> _State:
        """Evict files until one more fits, or the work for one file is done."""
        for _ in range(_MAX_SAMPLES):
            if state.total + size <= self.max_bytes:
                break
            state = self._evict(state)
        return state

    def _evict(self, state: _State) -> _State:
        """Remove the least recently used eighth of a sample: of all files if they are few."""
        _, total, hand = state
        sample: list[tuple[int, int, str]] = []
        for _ in _FOLDERS:
            for item in self._items(_FOLDERS[hand]):
                with suppress(FileNotFoundError):
                    found = item.stat(follow_symlinks=False)
                    sample.append((found.st_mtime_ns, _blocks(found.st_size), item.path))
            hand = (hand + 1) % len(_FOLDERS)
            if len(sample) >= _SAMPLE:
                break
        sizes = sum(size for _, size, _ in sample)
        if len(sample) < _SAMPLE:
            total = sizes  # exact: all files were seen
        goal = total - sizes // 8
        for _, size, path in sorted(sample):
            if total <= goal:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return state._replace(total=max(0, total), hand=hand)

    def _items(self, folder: str) -> Iterator[os.DirEntry[str]]:
        for item in scan_directory(self.path / folder):
            if _NAME.fullmatch(item.name) is not None:
                yield item

    def _remove(self, paths: Iterable[Path]) -> None:
        if not self._state.exists():
            return
        with exclusive_lock(self._state, LOCK_TIMEOUT):
            state = self._read_state()
            state = state._replace(generation=(state.generation + 1) % (1 << 64))
            self._write_state(state)
            (self.path / "new").unlink(missing_ok=True)  # of a process that was killed
            total = state.total
            for path in paths:
                with suppress(FileNotFoundError):
                    size = _blocks(path.lstat().st_size)
                    path.unlink()
                    total -= size
            self._write_state(state._replace(total=max(0, total)))

    def _write(self, name: str, data: bytes) -> None:
        """Write a file atomically, under the lock."""
        fresh, target = self.path / "new", self.path / name
        fresh.unlink(missing_ok=True)  # of a process that was killed
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            try:
                fresh.rename(target)
            except FileNotFoundError:
                target.parent.mkdir(mode=0o700)
                fresh.rename(target)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise

    def _file(self, name: str) -> Path:
        return self.path / name[:2] / name


def _checksum(name: str, data: bytes) -> bytes:
    digest = hashlib.sha256(name.encode())
    digest.update(data)
    return digest.digest()


def _file_size(data: bytes) -> int:
    return _blocks(len(data) + 32)


def _blocks(size: int) -> int:
    """Return the size in whole blocks, which a file takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK
