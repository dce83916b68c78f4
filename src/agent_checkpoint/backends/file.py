"""The file backend: one readable file per entry.

    <path>/session_1/17.json     entry 17 of the stream key/session_1; see `file_sequence`
    <path>/objects/ab/ab12…      an object
    <path>/.tmp/…                temporary files; linked into place when durable
    <path>/.lock, .gate          locks: shared by writers, exclusive for deletions

A store may be untrusted: below its root, links are not followed and only regular files are read.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from agent_checkpoint.backends.base import (
    NO_OBJECTS,
    Backend,
    ObjectScan,
    check_compression,
    check_newest,
)
from agent_checkpoint.backends.file_names import directory_name, is_shortened, stream_name
from agent_checkpoint.backends.file_sequence import (
    entry_file,
    entry_numbers,
    newest_and_next,
    record_number,
)
from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT
from agent_checkpoint.backends.os_support.posix import (
    check_lock_file,
    check_lock_timeout,
    check_path,
    is_regular,
    link_new,
    make_store_directory,
    make_store_folder,
    make_store_root,
    read_regular,
    refuse_link,
    remove_stream_folder,
    scan_directory,
    store_lock,
    store_url,
    sweep_temporary_files,
    sync_directory,
    wrap_os_errors,
    write_new,
    wrong_backend,
)
from agent_checkpoint.backends.os_support.space_limits import SpaceLimits, is_small_record
from agent_checkpoint.backends.os_support.store_identity import Pin
from agent_checkpoint.errors import InvalidInputError, MissingObjectsError, StorageError
from agent_checkpoint.file_trust import check_own, check_writers
from agent_checkpoint.options import Compression
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    check_stream,
    is_object_id,
    is_stream,
    short_repr,
)

_SMALL_FILE = 2048
_MAX_LISTINGS = 100
_CLOCK_TICK_NS = 2 * 10**9


class FileBackend(Backend):
    """Objects and streams as files in a private directory; acknowledged writes are durable."""

    path: Path
    readable: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        min_free: int | None = None,
        max_bytes: int | None = None,
        compression: Compression | None = None,
        shared: bool = False,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> None:
        """Use the directory `path`, which the first write creates, within the `SpaceLimits`.

        Args:
            path: the directory of the store.
            min_free: see `SpaceLimits`.
            max_bytes: see `SpaceLimits`.
            compression: see `Backend.compression`.
            shared: accept a directory that other users own or can write.
            lock_timeout: seconds to wait for a lock; see `SQLiteBackend`.

        Raises:
            InvalidInputError: the path is not a directory, other users own or can write it, or an
                option is invalid.
            StorageError: the file system failed.
        """
        given = check_path(path)
        with wrap_os_errors(f"check {given}"):
            self.path = given.absolute()
            if self.path.exists() and not self.path.is_dir():
                raise InvalidInputError(f"{self.path} is not a directory: choose another path.")
            self.shared = shared
            if not shared:
                check_own(self.path)
        if (self.path / "store.db").exists():
            raise wrong_backend(self.path, "an SQLite", "sqlite", shared=shared)
        self.url = store_url("file", self.path, shared=shared)
        self.compression = check_compression(compression)
        self._limits = SpaceLimits(self.path, min_free=min_free, max_bytes=max_bytes)
        self._lock_file = self.path / ".lock"
        self._lock_timeout = check_lock_timeout(lock_timeout)
        self._tmp = self.path / ".tmp"
        self._objects = self.path / "objects"
        self._pin = Pin(self._objects)  # created with the store, and never removed

    def __repr__(self) -> str:
        return f"FileBackend({str(self.path)!r})"

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Write the objects. Raises InvalidInputError and StorageError."""
        self._limits.check(objects)
        with self._writing("write objects to") as check_lock:
            self._write_objects(objects)
            check_lock()

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects. Raises StorageError."""
        found: dict[str, bytes] = {}
        self._pin.exists()
        with wrap_os_errors(f"read objects of {self.path}"):
            for name in ids:
                with suppress(FileNotFoundError):
                    is_inside = self._is_inside_store(name)
                    data = read_regular(self._object_file(name)) if is_inside else None
                    if data is not None:
                        found[name] = data
        return found

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored. Raises StorageError."""
        self._pin.exists()
        with wrap_os_errors(f"check objects in {self.path}"):
            return {
                name
                for name in ids
                if not (self._is_inside_store(name) and is_regular(self._object_file(name)))
            }

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over all objects. Raises StorageError."""
        self._pin.exists()
        with wrap_os_errors(f"list the objects of {self.path}"):
            for folder in scan_directory(self._objects):
                if self._objects.is_symlink() or not folder.is_dir(follow_symlinks=False):
                    continue
                for item in scan_directory(Path(folder.path)):
                    if not is_object_id(item.name) or not item.is_file(follow_symlinks=False):
                        continue
                    with suppress(FileNotFoundError):
                        stat = item.stat(follow_symlinks=False)
                        yield ObjectInfo(item.name, stat.st_size, stat.st_mtime)

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects under the exclusive lock. Raises StorageError."""
        if not self._pin.exists():
            return
        with self._writing("delete objects of", exclusive=True) as check_lock:
            doomed = [name for name in ids if is_object_id(name)]
            check_lock()
            sweep_temporary_files(self._tmp)
            for name in doomed:
                refuse_link(self._object_file(name).parent)
                check_lock()  # each time: without the lock a concurrent save may require the object
                self._object_file(name).unlink(missing_ok=True)

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Find objects whose stored bytes begin with `first`.

        Scans only the object directories modified since `position`. Raises StorageError.
        """
        known = position if isinstance(position, dict) else {}
        result = ObjectScan([], 0, {})
        self._pin.exists()
        with wrap_os_errors(f"scan the objects of {self.path}"):
            if self._objects.is_symlink():
                return result
            for folder in scan_directory(self._objects):
                if not folder.is_dir(follow_symlinks=False):
                    continue
                changed = folder.stat(follow_symlinks=False).st_mtime_ns
                # It may change again within the same clock tick: then it is scanned again.
                result.position[folder.name] = min(changed, time.time_ns() - _CLOCK_TICK_NS)
                before = known.get(folder.name)
                if before != changed:
                    # If the clock was set back, the mtime does not show which files are newer.
                    is_later = isinstance(before, int) and before < changed
                    since = int(before or 0) - _CLOCK_TICK_NS if is_later else 0
                    result = _scan_folder(Path(folder.path), first, since, result)
        return result

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace objects by rename, under the exclusive lock. Raises StorageError."""
        self._limits.check(objects)
        with self._writing("replace objects of", exclusive=True) as check_lock:
            check_lock()
            for name, data in objects.items():
                target = self._object_file(name)
                refuse_link(target.parent)
                if is_regular(target):
                    os.replace(write_new(self._tmp, data), target)
                    sync_directory(target.parent)

    # -- streams ---------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Write a durable temporary file, and commit by linking it under the next number.

        Raises ConflictError, MissingObjectsError and StorageError.
        """
        folder = self._folder(stream)
        if not is_small_record(stream, entry, objects):
            self._limits.check(objects, entry)
        seq = 0
        try:
            with self._writing(f"append to {short_repr(stream)} in") as check_lock:
                missing = self.missing_objects(requires)
                if missing:
                    raise MissingObjectsError(missing)
                # The writer of a reused object may not have synced its directory yet.
                for parent in {self._object_file(name).parent for name in requires}:
                    sync_directory(parent)
                self._write_objects(objects)
                self._make_stream(stream, folder)
                self._check_own(folder)
                written = write_new(self._tmp, entry)
                try:
                    # The link fails across stores; this check covers the objects written before.
                    check_lock()
                    seq = self._link_next(stream, folder, written, after)
                    sync_directory(folder)
                finally:
                    written.unlink(missing_ok=True)
                return seq
        except StorageError as error:
            error.outcome_unknown = seq > 0  # it is visible, but may not be durable
            raise

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the selected entries. Raises StorageError."""
        if not is_stream(stream):
            return []
        folder = self._folder(stream)
        known: dict[int, bytes] = {}
        self._pin.exists()
        with wrap_os_errors(f"read {short_repr(stream)} in {self.path}"):
            self._check_own(folder)
            # An entry may be removed after the listing, which lacks entries appended since: list
            # again, or the stream could seem empty.
            for _ in range(_MAX_LISTINGS):
                found: list[Entry] = []
                vanished = False
                for seq in sorted(entry_numbers(folder), reverse=newest_first):
                    if limit is not None and len(found) >= limit:
                        break
                    if (before is None or seq < before) and (after is None or seq > after):
                        data = known.get(seq)
                        with suppress(FileNotFoundError):
                            data = data or read_regular(entry_file(folder, seq))
                        vanished = vanished or data is None
                        if data is not None:
                            known[seq] = data
                            found.append(Entry(seq, data))
                if not vanished:
                    return found
            if not found:
                raise OSError(errno.EAGAIN, "entries are removed faster than they can be read")
        return found

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries under the exclusive lock. Raises StorageError."""
        if not is_stream(stream):
            return
        folder = self._folder(stream)
        action = f"remove entries of {short_repr(stream)} in"
        with wrap_os_errors(f"{action} {self.path}"):
            self._pin.exists()
            refuse_link(folder)
            if not folder.is_dir():
                return
        with self._writing(action, exclusive=True) as check_lock:
            check_lock()
            sweep_temporary_files(self._tmp)
            present = entry_numbers(folder)
            doomed = present & set(seqs)
            if not doomed:
                return
            # Oldest first: if interrupted, the head is unchanged.
            *older, newest = sorted(doomed)
            for seq in older:
                entry_file(folder, seq).unlink()
            if newest == max(present):
                if older:
                    sync_directory(folder)
                record_number(folder, self._tmp, newest)
            entry_file(folder, newest).unlink(missing_ok=True)
            sync_directory(folder)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the names of streams with entries. Raises StorageError."""
        self._pin.exists()
        with wrap_os_errors(f"list the streams of {self.path}"):
            self._check_own()
            for item in scan_directory(self.path):
                if not item.is_dir(follow_symlinks=False):
                    continue
                folder = Path(item.path)
                name = self._stream_of(folder)
                if name is not None and name.startswith(prefix) and entry_numbers(folder):
                    yield name

    def is_replaced(self) -> bool:
        """Return whether the store was removed, moved or replaced. Raises StorageError."""
        return self._pin.is_replaced()

    def close(self) -> None:
        """Do nothing. No file stays open between calls."""

    # -- the layout ------------------------------------------------------------------------------

    def _check_own(self, *folders: Path) -> None:
        if not self.shared:
            check_writers(self.path, *folders)

    @contextmanager
    def _writing(self, action: str, *, exclusive: bool = False) -> Iterator[Callable[[], None]]:
        """Create the directories, and hold the lock.

        Yields:
            A function that checks that the store was not replaced and is still locked; it raises
            StorageError.

        Raises:
            StorageError: the file system failed; the message contains the action.
        """

        def check_lock() -> None:
            self._pin.exists()
            check_lock_file(self._lock_file, lock)

        with wrap_os_errors(f"{action} {self.path}"):
            self._check_own(self._objects)
            self._pin.exists()
            make_store_root(self._tmp, self._objects)
            self._pin.exists()
            held = store_lock(self._lock_file, exclusive=exclusive, seconds=self._lock_timeout)
            with held as lock:
                yield check_lock

    def _folder(self, stream: str) -> Path:
        return self.path / directory_name(check_stream(stream))

    def _object_file(self, object_id: str) -> Path:
        return self._objects / check_object_id(object_id)[:2] / object_id

    def _is_inside_store(self, object_id: str) -> bool:
        if not is_object_id(object_id) or self._objects.is_symlink():
            return False
        return not self._object_file(object_id).parent.is_symlink()

    def _stream_of(self, folder: Path) -> str | None:
        if not is_shortened(folder.name):
            return stream_name(folder.name)
        try:
            name = (read_regular(folder / "name", _SMALL_FILE) or b"").decode()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return name if is_stream(name) and directory_name(name) == folder.name else None

    def _make_stream(self, stream: str, folder: Path) -> None:
        if not is_shortened(folder.name):
            make_store_directory(folder)
            return
        refuse_link(folder)
        if folder.is_dir():
            return
        # The directory appears complete, with its `name` file, by one rename. The rename fails if
        # there is one; an empty directory would replace that of a concurrent writer.
        fresh = self._tmp / os.urandom(12).hex()
        make_store_folder(fresh)
        os.replace(write_new(self._tmp, stream.encode()), fresh / "name")
        sync_directory(fresh)
        try:
            fresh.rename(folder)
        except OSError:
            remove_stream_folder(fresh)
            if not folder.is_dir():
                raise
        sync_directory(self.path)

    def _write_objects(self, objects: Mapping[str, bytes]) -> None:
        # Each name is durable before the next one appears: later objects refer to earlier ones.
        # The sync comes after the content of the next file is synced, which makes it cheap.
        last: Path | None = None
        for name, data in objects.items():
            target = self._object_file(name)
            make_store_directory(target.parent)
            link_new(self._tmp, data, target, after=last)
            last = target.parent
        if last is not None:
            sync_directory(last)

    def _link_next(self, stream: str, folder: Path, written: Path, after: int | None) -> int:
        while True:
            newest, free = newest_and_next(folder)
            check_newest(stream, newest, after)
            try:
                os.link(written, entry_file(folder, free))
            except FileExistsError:
                continue
            return free


def _scan_folder(folder: Path, first: bytes, since: int, result: ObjectScan) -> ObjectScan:
    """Scan the objects of a directory that were linked since a time in nanoseconds."""
    ids, total, position = result
    for item in scan_directory(folder):
        with suppress(FileNotFoundError):
            is_new = item.stat(follow_symlinks=False).st_ctime_ns >= since
            if is_new and is_object_id(item.name):
                total += 1
                if read_regular(Path(item.path), len(first)) == first:
                    ids.append(item.name)
    return ObjectScan(ids, total, position)
