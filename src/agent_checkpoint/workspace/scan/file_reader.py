"""Reads, hashes and batches the contents of files for a store.

The first batch is committed together with the checkpoint; it is usually the only one, because a
step of an agent changes few files. A background thread stores further batches while the scan
continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.store.objects.object_format import BLOB, PlainObject, TerminalRef, make_object
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.safe_open import (
    EntryChanged,
    OpenFile,
    read_stable,
    read_whole,
    reliable_signature,
)
from agent_checkpoint.workspace.scan.chunking import CHUNKED_FROM, cut
from agent_checkpoint.workspace.scan.snapshot_limit import SnapshotLimit
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
    from agent_checkpoint.workspace.scan.background_writer import BackgroundWriter

_STRIDE = 256
_BATCH_FILES = 1024
_BATCH_BYTES = 8 << 20


class ReadResult(NamedTuple):
    """The result of reading an entry: its item, or a note with the reason why there is none.

    If both are None, the entry was removed or, if `is_changing`, replaced by an entry of another
    type.
    """

    item: Item | None
    signature: bytes = READ_AGAIN
    note: Note | None = None
    is_changing: bool = False


class ReadRequest(NamedTuple):
    """A file or link to read."""

    name: bytes
    size: int
    is_link: bool


class FileReader:
    """Reads files below a root and passes their objects to a writer in batches."""

    def __init__(self, writer: Writer, limit: SnapshotLimit, *, ahead: bool) -> None:
        """Start with an empty batch.

        Args:
            writer: receives the objects.
            limit: counts the bytes about to be read; may raise WorkspaceError.
            ahead: whether to store the first batch immediately, because a checkpoint may not
                follow.
        """
        self._ahead = ahead
        self._writer = writer
        self._limit = limit
        self._objects: dict[str, PlainObject] = {}
        self._size = 0
        self._background: BackgroundWriter | None = None
        self.count = 0
        """The number of files read."""

    def read(
        self,
        fd: int,
        directory: bytes,
        requests: Sequence[ReadRequest],
        results: dict[bytes, ReadResult],
    ) -> None:
        """Read files and links of an open directory.

        Args:
            fd: the directory.
            directory: its path.
            requests: the files and links.
            results: receives the results by name.

        Raises:
            WorkspaceError: the limit of bytes is exceeded.
            StorageError: the store failed.
        """
        for start in range(0, len(requests), _STRIDE):
            some = requests[start : start + _STRIDE]
            self._limit.count(directory, len(some), sum([each.size for each in some]))
            self.count += len(some)
            for each in some:
                results[each.name] = self._read_one(fd, each)
            if len(self._objects) >= _BATCH_FILES:
                self._hand_over()

    def finish(self) -> None:
        """Store all batches, except a first batch that is committed with the checkpoint.

        Raises StorageError.
        """
        self._limit.report()
        if self._background is None and not self._ahead:
            self._writer.adopt(self._objects)
            self._objects, self._size = {}, 0
            return
        if self._objects:
            self._hand_over()
        if self._background is not None:
            self._background.finish()
            self._background = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *error: object) -> None:
        if self._background is not None:
            self._background.drop()

    def _add(self, name: str, packed: PlainObject) -> None:
        self._objects[name] = packed
        self._size += packed.size
        if self._size >= _BATCH_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._background is None:
            with block_forks():
                from agent_checkpoint.workspace.scan.background_writer import (
                    BackgroundWriter,  # slow to load, seldom needed
                )

            self._background = BackgroundWriter(self._writer)
        objects, self._objects, self._size = self._objects, {}, 0
        self._background.store(objects)

    def _read_one(self, directory: int, request: ReadRequest) -> ReadResult:
        try:
            if request.is_link:
                return _read_link(directory, request.name)
            if request.size > CHUNKED_FROM:
                return self._read_large(directory, request.name)
            return self._read_small(directory, request.name)
        except FileNotFoundError:
            return ReadResult(None)
        except EntryChanged:
            return ReadResult(None, is_changing=True)
        except OSError as error:
            return ReadResult(None, note=Note(UNREADABLE, error.strerror or type(error).__name__))

    def _read_small(self, directory: int, name: bytes) -> ReadResult:
        data, stat, signature, is_stable = read_whole(directory, name)
        if len(data) > CHUNKED_FROM:  # it grew
            return self._read_large(directory, name)
        content, packed = make_object(BLOB, data)
        self._add(content, packed)
        item = Item(name, FILE, stat.st_mode & MODE_BITS, len(data), content, content)
        return ReadResult(item, signature, _note(stat, is_stable=is_stable))

    def _read_large(self, directory: int, name: bytes) -> ReadResult:
        chunks, stat, signature, is_stable = read_stable(directory, name, self._read_chunks)
        ref = put_chunks(chunks, self._writer.put)
        item = Item(name, FILE, stat.st_mode & MODE_BITS, chunks.size, chunks.id, ref)
        return ReadResult(item, signature, _note(stat, is_stable=is_stable))

    def _read_chunks(self, file: OpenFile) -> tuple[Chunks, int, str]:
        digest, size, names = ContentHash(), 0, []
        for chunk in cut(file.fd):
            digest.add(chunk)
            size += len(chunk)
            piece, packed = make_object(BLOB, chunk)
            names.append(TerminalRef(piece))
            # Only a few chunks are in memory at a time, however large the file is.
            self._add(piece, packed)
            if size > file.stat.st_size:  # it may grow faster than it is read
                break
        return Chunks(size, digest.id(), tuple(names)), size, digest.id()


def _read_link(directory: int, name: bytes) -> ReadResult:
    now = time.time_ns()
    stat = os.stat(name, dir_fd=directory, follow_symlinks=False)
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        raise EntryChanged from error
    item = Item(name, LINK, MODE_BITS, len(target), target=target)
    return ReadResult(item, reliable_signature(stat, now))


def _note(stat: os.stat_result, *, is_stable: bool) -> Note | None:
    if not is_stable:
        return Note(TORN, "it changed each time while it was read")
    if stat.st_mode & 0o7000:
        return Note(SETUID, "its setuid, setgid or sticky bit is not kept")
    return None
