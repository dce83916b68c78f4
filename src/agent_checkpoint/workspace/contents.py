"""What is in files, on its way into a store. Owns reading, hashing and handing it over in batches.

The first batch waits for the entry and is committed with it: a step of an agent changes a few
files. More than that is read, packed and stored ahead by two threads while the scan goes on.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from agent_checkpoint.store.objects import BLOB, End, Packed, make_object
from agent_checkpoint.store.writing import Writer
from agent_checkpoint.workspace.beneath import (
    Changing,
    directory_below,
    held_still,
    is_left_in_peace,
    is_written_to,
    opened_file,
    read_whole,
    settled,
    settled_stamp,
)
from agent_checkpoint.workspace.chunking import CHUNKED_FROM, cut
from agent_checkpoint.workspace.folders import READ_AGAIN, SETUID, TORN, UNREADABLE, Note
from agent_checkpoint.workspace.tree import (
    FILE,
    LINK,
    MODE_BITS,
    Chunks,
    ContentHash,
    Item,
    put_chunks,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_BATCH_FILES = 256
_BATCH_BYTES = 4 << 20
_THREADS = 2
_WAITING = 4
_TRIES = 3
_PIECE = 1 << 20


class Found(NamedTuple):
    """What was found in the place of an entry: its item, or a note why there is none.

    With neither it is gone; if it `is_changing`, something of another type has taken its place.
    """

    item: Item | None
    stamp: bytes = READ_AGAIN
    note: Note | None = None
    is_changing: bool = False


class Wanted(NamedTuple):
    """A file or link to be read; what is found goes into `found`, under its name."""

    directory: bytes
    name: bytes
    size: int
    is_link: bool
    found: dict[bytes, Found]


class Contents:
    """Reads files below a root, in batches, and hands what is new to a writer."""

    def __init__(
        self, root: int, writer: Writer, read: Callable[[list[Wanted]], None], *, ahead: bool
    ) -> None:
        """Begin.

        Args:
            root: the root directory, open.
            writer: takes the objects.
            read: told what is about to be read; may raise.
            ahead: whether also the first batch is stored right away, since no entry may follow.
        """
        self._ahead = ahead
        self._root = root
        self._writer = writer
        self._read = read
        self._batch: list[Wanted] = []
        self._size = 0
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[None]] = deque()

    def want(self, wanted: Wanted) -> None:
        """Have a file or link read, now or later. Raises StorageError."""
        self._batch.append(wanted)
        self._size += wanted.size
        if len(self._batch) >= _BATCH_FILES or self._size >= _BATCH_BYTES:
            self._hand_over()

    def finish(self) -> None:
        """Have all of them read. Raises StorageError."""
        if self._pool is None:
            self._read(self._batch)
            _Batch(self._root, self._writer, is_ahead=self._ahead).read(self._batch)
            self._batch, self._size = [], 0
            return
        self._hand_over()
        while self._running:
            self._running.popleft().result()

    def __enter__(self) -> Contents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            for future in self._running:
                future.cancel()
            self._pool.shutdown()

    def _hand_over(self) -> None:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # slow to load, and seldom wanted

            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="agent-checkpoint-files")
        batch, self._batch, self._size = self._batch, [], 0
        self._read(batch)
        while len(self._running) >= _WAITING:
            self._running.popleft().result()
        work = _Batch(self._root, self._writer, is_ahead=True)
        self._running.append(self._pool.submit(work.read, batch))


class _Batch:
    """Some files, read and stored together."""

    def __init__(self, root: int, writer: Writer, *, is_ahead: bool) -> None:
        self._root = root
        self._writer = writer
        self._is_ahead = is_ahead
        self._objects: dict[str, Packed] = {}

    def read(self, batch: list[Wanted]) -> None:
        """Read a batch, which is ordered by directory. Raises StorageError."""
        for directory, group in groupby(batch, lambda wanted: wanted.directory):
            files = list(group)
            try:
                with directory_below(self._root, directory) as fd:
                    for wanted in files:
                        wanted.found[wanted.name] = self._look(fd, wanted)
            except OSError:  # the directory itself is gone, or something else by now
                for wanted in files:
                    wanted.found[wanted.name] = Found(None, is_changing=True)
        if self._is_ahead:
            self._writer.store_ahead(self._objects)
        else:
            self._writer.adopt(self._objects)

    def _look(self, directory: int, wanted: Wanted) -> Found:
        try:
            if wanted.is_link:
                return _read_link(directory, wanted.name)
            if wanted.size > CHUNKED_FROM:
                return self._read_large(directory, wanted.name)
            return self._read_small(directory, wanted.name)
        except FileNotFoundError:
            return Found(None)
        except Changing:
            return Found(None, is_changing=True)
        except OSError as error:
            return Found(None, note=Note(UNREADABLE, error.strerror or type(error).__name__))

    def _read_small(self, directory: int, name: bytes) -> Found:
        data, stat, stamp, is_still = read_whole(directory, name)
        if len(data) > CHUNKED_FROM:  # it grew
            return self._read_large(directory, name)
        content, packed = make_object(BLOB, data)
        self._objects[content] = packed
        item = Item(name, FILE, stat.st_mode & MODE_BITS, len(data), content, content)
        return Found(item, stamp, _note(stat, is_still=is_still))

    def _read_large(self, directory: int, name: bytes) -> Found:
        for _ in range(_TRIES):
            with opened_file(directory, name) as file:
                is_busy = is_written_to(file)
                is_whole = not is_busy or is_left_in_peace(file)
                whole, size, names = ContentHash(), 0, []
                for chunk in cut(file.fd):
                    whole.add(chunk)
                    size += len(chunk)
                    piece, packed = make_object(BLOB, chunk)
                    names.append(End(piece))
                    # Never more than a chunk in memory, however large the file is.
                    self._writer.store_ahead({piece: packed})
                    if size > file.stat.st_size:  # it may grow as fast as it is read
                        break
                stamp = READ_AGAIN if is_busy else settled_stamp(file)
                is_still = is_whole and held_still(file, size)
                if is_still and stamp == READ_AGAIN:
                    is_still = _is_same(file.fd, size, whole)
            if is_still:
                break
            stamp = READ_AGAIN
        chunks = Chunks(size, whole.id(), tuple(names))
        ref = put_chunks(chunks, self._writer.put)
        item = Item(name, FILE, file.stat.st_mode & MODE_BITS, size, chunks.id, ref)
        return Found(item, stamp, _note(file.stat, is_still=is_still))


def _read_link(directory: int, name: bytes) -> Found:
    now = time.time_ns()
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        raise Changing from error
    item = Item(name, LINK, MODE_BITS, len(target), target=target)
    return Found(item, settled(found, now))


def _is_same(fd: int, size: int, whole: ContentHash) -> bool:
    """Read a file again whose time cannot tell a change of this very moment. Raises OSError."""
    again = ContentHash()
    os.lseek(fd, 0, os.SEEK_SET)
    while size > 0 and (data := os.read(fd, min(size, _PIECE))):
        again.add(data)
        size -= len(data)
    return again.id() == whole.id()


def _note(stat: os.stat_result, *, is_still: bool) -> Note | None:
    if not is_still:
        return Note(TORN, "it changed each time while it was read")
    if stat.st_mode & 0o7000:
        return Note(SETUID, "its setuid, setgid or sticky bit is not kept")
    return None
