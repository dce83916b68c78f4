"""What is in files, on its way into a store. Owns reading, hashing and handing it over in batches.

The first batch waits for the entry and is committed with it: a step of an agent changes a few
files. More than that is stored ahead, by a thread, while the scan goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.store.objects.object_format import BLOB, PlainObject, TerminalRef, make_object
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.safe_open import (
    Changing,
    held_still,
    is_left_in_peace,
    is_written_to,
    opened_file,
    read_whole,
    settled,
    settled_stamp,
)
from agent_checkpoint.workspace.scan.chunking import CHUNKED_FROM, cut
from agent_checkpoint.workspace.scan.snapshot_limit import Meter
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, SETUID, TORN, UNREADABLE, Note
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    LINK,
    MODE_BITS,
    Chunks,
    ContentHash,
    Item,
    put_chunks,
)

if TYPE_CHECKING:
    from agent_checkpoint.workspace.scan.object_writer import Storing

_SOME = 256
_BATCH_FILES = 1024
_BATCH_BYTES = 8 << 20
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
    """A file or link to be read."""

    name: bytes
    size: int
    is_link: bool


class Contents:
    """Reads files below a root, and hands what is new to a writer in batches."""

    def __init__(self, writer: Writer, meter: Meter, *, ahead: bool) -> None:
        """Begin.

        Args:
            writer: takes the objects.
            meter: told what is about to be read; may raise.
            ahead: whether also the first batch is stored right away, since no entry may follow.
        """
        self._ahead = ahead and writer.backend is not None
        self._writer = writer
        self._meter = meter
        self._objects: dict[str, PlainObject] = {}
        self._size = 0
        self._storing: Storing | None = None
        self.count = 0
        """How many files were read."""

    def read(
        self, fd: int, directory: bytes, wanted: Sequence[Wanted], found: dict[bytes, Found]
    ) -> None:
        """Read files and links of an open directory.

        Args:
            fd: the directory.
            directory: its path.
            wanted: what to read.
            found: gets what is found, by name.

        Raises:
            WorkspaceError: there are more bytes than the limit allows.
            StorageError: the store failed.
        """
        for start in range(0, len(wanted), _SOME):
            some = wanted[start : start + _SOME]
            self._meter.read(directory, len(some), sum([each.size for each in some]))
            self.count += len(some)
            for each in some:
                found[each.name] = self._look(fd, each)
            if len(self._objects) >= _BATCH_FILES:
                self._hand_over()

    def finish(self) -> None:
        """Have all of it stored, but for a first batch that waits for the entry.

        Raises StorageError.
        """
        self._meter.tell()
        if self._storing is None and not self._ahead:
            self._writer.adopt(self._objects)
            self._objects, self._size = {}, 0
            return
        if self._objects:
            self._hand_over()
        if self._storing is not None:
            self._storing.finish()
            self._storing = None

    def __enter__(self) -> Contents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._storing is not None:
            self._storing.drop()

    def _add(self, name: str, packed: PlainObject) -> None:
        self._objects[name] = packed
        self._size += packed.size
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._writer.backend is None:
            return
        if self._storing is None:
            with block_forks():
                from agent_checkpoint.workspace.scan.object_writer import (
                    Storing,  # slow to load, seldom wanted
                )

            self._storing = Storing(self._writer)
        objects, self._objects, self._size = self._objects, {}, 0
        self._storing.store(objects)

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
        self._add(content, packed)
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
                    names.append(TerminalRef(piece))
                    # Never more than a few chunks in memory, however large the file is.
                    self._add(piece, packed)
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
