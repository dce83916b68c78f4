"""Reads and hashes one file or link. Owns the result; does not store anything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.objects.object_format import BLOB, PlainObject, TerminalRef, make_object
from agent_checkpoint.workspace.safe_open import (
    DirectoryOpener,
    EntryChanged,
    OpenFile,
    read_stable,
    read_whole,
    reliable_signature,
)
from agent_checkpoint.workspace.scan.reading.chunking import CHUNKED_FROM, cut
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, SETUID, TORN, UNREADABLE, Note
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    LINK,
    MODE_BITS,
    Chunks,
    ContentHash,
    Item,
    Put,
    put_chunks,
)


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


class DirectoryRequest(NamedTuple):
    """Files and links to read in one directory."""

    path: bytes
    requests: Sequence[ReadRequest]


class EntryReader:
    """Reads files and links."""

    def __init__(self, add: Callable[[str, PlainObject], None], put: Put) -> None:
        """Set the receivers.

        Args:
            add: receives the objects with content, each with its id. They have no references.
            put: receives the chunk lists of large files.
        """
        self._add = add
        self._put = put

    def read_below(self, root: int, directories: Iterable[DirectoryRequest]) -> list[ReadResult]:
        """Read entries of directories below an open one. Failures are in the results."""
        results: list[ReadResult] = []
        with DirectoryOpener(os.dup(root)) as opener:
            for path, requests in directories:
                try:
                    directory = opener.open(path)
                except OSError:  # it was moved, removed or replaced since it was listed
                    results += [ReadResult(None, is_changing=True)] * len(requests)
                    continue
                results += [self.read(directory, each) for each in requests]
        return results

    def read(self, directory: int, request: ReadRequest) -> ReadResult:
        """Read an entry of an open directory. Failures are in the result."""
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
        ref = put_chunks(chunks, self._put)
        item = Item(name, FILE, stat.st_mode & MODE_BITS, chunks.size, chunks.id, ref)
        return ReadResult(item, signature, _note(stat, is_stable=is_stable))

    def _read_chunks(self, file: OpenFile) -> tuple[Chunks, int, Callable[[], str]]:
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
        return Chunks(size, digest.id(), tuple(names)), size, digest.id


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
