"""The staging directory of a restore, in the workspace. Owns its files and the journal.

It is in the workspace because a rename cannot cross file systems. While it holds a journal, a
restore has begun, and crash recovery completes it when the workspace is opened next. A directory of
this name may also come from others, for example with a git clone. Without a seal of this user for
this workspace it is neither obeyed nor removed, and it blocks nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import IntegrityError, StateError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.store.objects.object_format import BLOB
from agent_checkpoint.workspace.restore.atomic_rename import Entry, put
from agent_checkpoint.workspace.safe_open import EntryChanged, open_directory, opened_file, read_all
from agent_checkpoint.workspace.scan.entry_filter import STAGING
from agent_checkpoint.workspace.tree.tree_format import ContentHash, Get, Item, read_chunks

_JOURNAL = b"journal"
_STAGED = b"staged"
"""Holds contents while they are written. All files in it are ours, complete or not."""
_FILES = b"files"
"""The name of that directory once it is complete: it may then hold replaced files as well."""
TAKEN = b".old"
"""The suffix of a removed entry, where the file system cannot exchange two entries."""
_COPIED = b".new"
"""The suffix of an unfinished copy."""
_OWNER = b"owner"
_MAX_OWNER_BYTES = 128
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
"""Errors that are not about the file: another process can read it, or a later attempt."""
_FOREIGN = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EPERM, errno.EACCES}
)
"""Errors that occur only with entries that no restore has created."""
FSYNC_EACH_MAX = 64
"""Up to this many files are synced one by one; for more, the whole file system is."""
_BATCH = 8
"""How many contents are in memory at a time."""
_MAX_JOURNAL_BYTES = 1 << 26
_COPY_BYTES = 1 << 20


class Journal(NamedTuple):
    """A restore that has begun: its target, its safety checkpoint and its options."""

    root: str
    """The workspace. A journal found in another directory is a copy and is ignored."""
    tree: str
    safety: str
    paths: tuple[str, ...] | None
    exclude: tuple[str, ...]
    store: str
    safety_id: str = ""
    """The checkpoint that holds the tree `safety`."""
    seen: str | None = None
    """The last regular snapshot, if entries that it does not hold are to be kept."""

    @property
    def encoded_paths(self) -> tuple[bytes, ...] | None:
        """The paths to restore, as bytes."""
        return None if self.paths is None else tuple(map(os.fsencode, self.paths))

    @property
    def sealed_bytes(self) -> bytes:
        """The bytes under the seal: else anybody who can write here could name other trees."""
        return json.dumps(["restore of a workspace", self._asdict()]).encode()


class Staging:
    """The staged files of one restore. Holds its directory open."""

    def __init__(self, root: int, journal: Journal, *, is_begun: bool) -> None:
        """Create the directory.

        Args:
            root: the workspace, open.
            journal: the restore.
            is_begun: whether the directory exists already, with that journal.

        Raises:
            OSError: it cannot be created.
        """
        self._root = root
        self._count = 0
        self._fd = self.files = -1
        self.aside = aside_name(journal)
        """The name of a staged entry in a directory on another, mounted file system."""
        if not is_begun:
            os.mkdir(STAGING, 0o700, dir_fd=root)
        try:
            remove_staging(root, keep_journal=True)
            self._fd = open_directory(STAGING, root)
            with self._new(_OWNER, self._fd) as file:
                _write(file, (_claimed(journal.root) or "").encode())
            os.mkdir(_STAGED, 0o700, dir_fd=self._fd)
            self.files = open_directory(_STAGED, self._fd)
        except BaseException:
            self.close()
            if not is_begun:
                with suppress(OSError):
                    remove_staging(root)
            raise

    def put(self, files: Iterable[tuple[bytes, Item]], get: Get) -> Iterator[None]:
        """Write the contents of files, given as path and item; yield after each, in order.

        Raises:
            IntegrityError: a content is missing or damaged.
            OSError: it cannot be written.
        """
        batch: list[tuple[bytes, Item]] = []
        for file in files:
            batch.append(file)
            if len(batch) == _BATCH:
                yield from self._put(batch, get)
                batch = []
        yield from self._put(batch, get)

    def resume(self) -> None:
        """Make staged files durable, for a restore that has a journal already. Raises OSError."""
        self._sync_staged()
        # Else, after a power loss, replaced files could be in the directory of disposable ones.
        os.fsync(self._fd)

    def begin(self, journal: Journal) -> None:
        """Make staged files durable, then the journal. From here on the restore rolls forward.

        Raises:
            OSError: it cannot be written.
        """
        self._sync_staged()
        seal = _sealed(journal.sealed_bytes)
        text = json.dumps({**journal._asdict(), "seal": seal}).encode()
        with self._new(_JOURNAL + b".new", self._fd) as file:
            _write(file, text)
            os.fsync(file)
        os.rename(_JOURNAL + b".new", _JOURNAL, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)
        os.fsync(self._root)

    def copy(self, source: bytes, directory: int, *, is_link: bool) -> None:
        """Move a staged entry into a directory on another file system. Raises OSError."""
        copied = Entry(partial_name(self.aside), directory)
        try:
            if is_link:
                os.symlink(os.readlink(source, dir_fd=self.files), copied.name, dir_fd=directory)
            else:
                self._copy_file(source, copied)
            put(copied, Entry(self.aside, directory))
        except OSError:  # remove the partial copy: it may have filled the disk
            with suppress(OSError):
                copied.unlink()
            raise
        os.unlink(source, dir_fd=self.files)

    def end(self) -> None:
        """Remove the journal and the directory. Raises OSError."""
        self.close()
        remove_staging(self._root)

    def close(self) -> None:
        """Close the directory."""
        for fd in (self.files, self._fd):
            if fd >= 0:
                os.close(fd)
        self.files = self._fd = -1

    def _sync_staged(self) -> None:
        if self._count > FSYNC_EACH_MAX:
            sync_file_system(self._root)
        os.rename(_STAGED, _FILES, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _put(self, batch: list[tuple[bytes, Item]], get: Get) -> Iterator[None]:
        small = [item.ref for _, item in batch if item.id == item.ref]
        contents = dict(zip(small, get(small)))
        for path, item in batch:
            self._count += 1
            with self._new(slot_name(path), self.files) as file:
                if item.id == item.ref:
                    blob = contents[item.ref]
                    if blob.kind != BLOB or len(blob.payload) != item.size:
                        raise IntegrityError(f"The object {item.ref} does not match its entry.")
                    _write(file, blob.payload)
                else:
                    _write_chunks(file, item, get)
                os.fchmod(file, item.mode)
                if self._count <= FSYNC_EACH_MAX:
                    os.fsync(file)
            yield

    def _copy_file(self, source: bytes, copied: Entry) -> None:
        file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.files)
        with open(file, "rb") as old, self._new(copied.name, copied.fd) as new:
            while data := old.read(_COPY_BYTES):
                _write(new, data)
            stat = os.fstat(file)
            os.fchmod(new, stat.st_mode & 0o777)
            os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            os.fsync(new)

    @contextmanager
    def _new(self, name: bytes, directory: int) -> Iterator[int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            yield file
        finally:
            os.close(file)


def slot_name(path: bytes) -> bytes:
    """Return the name in staging of the new or replaced entry of a path.

    It is derived from the path, so that crash recovery can tell which path an entry belongs to.
    """
    return hashlib.sha256(path).hexdigest().encode()


def aside_name(journal: Journal) -> bytes:
    """Return the name of staged entries in directories on another, mounted file system.

    It is unique, and is derived from the journal, so that crash recovery knows it.
    """
    checkpoint_id = journal.safety_id.encode(errors="surrogatepass")
    return b".agent-checkpoint-" + hashlib.sha256(checkpoint_id).hexdigest().encode()


def partial_name(aside: bytes) -> bytes:
    """Return the name of an unfinished copy there: it is ours, complete or not."""
    return aside + _COPIED


def has_staging(root: int) -> bool:
    """Tell whether an entry has the name of the staging directory. Raises OSError."""
    try:
        os.stat(STAGING, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_journal(root: int, path: str) -> Journal | None:
    """Return the journal of a restore that this user has begun, or None.

    Args:
        root: the workspace, open.
        path: its path.

    Raises:
        WorkspaceError: it cannot be read now.
    """
    try:
        journal, seal = _read_journal(root)
        return (
            journal if journal.root == path and is_own_claim(journal.sealed_bytes, seal) else None
        )
    except (EntryChanged, ValueError, KeyError, TypeError, RecursionError):
        return None
    except (OSError, StateError) as error:
        if isinstance(error, OSError) and error.errno not in _TRANSIENT:
            return None
        raise WorkspaceError(
            "A restore of this workspace may have been interrupted: "
            f"{os.fsdecode(STAGING)}/journal cannot be read now ({error}). "
            "Opening the workspace again retries it."
        ) from error


def move_staging_aside(root: int, path: str) -> str | None:
    """Free the name of the staging directory where there is no journal of this user.

    The leftovers of a restore that had not changed any file are removed. Everything else is user
    data, and is renamed.

    Args:
        root: the workspace, open.
        path: its path.

    Returns a notice for people, or None.

    Raises:
        OSError: the leftovers cannot be removed.
        WorkspaceError: the owner cannot be determined now.
    """
    finding = "was not created by a restore of yours here, and may have come with the files"
    try:
        if _is_own(root, path):
            if _has_journal(root):
                finding = (
                    "is of an interrupted restore whose journal is damaged: some files may not be "
                    "restored, and a safety checkpoint holds the previous versions of the others"
                )
            else:
                finding = "holds entries that no restore has created"
                remove_staging(root)
                return None
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise
    with suppress(EntryChanged, OSError, ValueError, KeyError, TypeError, RecursionError):
        safety = short_repr(_read_journal(root)[0].safety_id, 120)
        finding += f". By its journal the safety checkpoint is {safety}"
    notice = f"{os.fsdecode(STAGING)} in {short_repr(path, 1000)} {finding}."
    if os.stat(STAGING, dir_fd=root, follow_symlinks=False).st_uid != os.geteuid():
        return f"{notice} It belongs to another user: it is left alone and not captured."
    aside = STAGING + b".found-" + os.urandom(4).hex().encode()
    try:
        os.rename(STAGING, aside, src_dir_fd=root, dst_dir_fd=root)
    except OSError as error:
        return f"{notice} It cannot be renamed ({error.strerror}), and is not captured."
    return f"{notice} It was renamed to {os.fsdecode(aside)}."


def _has_journal(root: int) -> bool:
    staging = open_directory(STAGING, root)
    try:
        return os.fsdecode(_JOURNAL) in os.listdir(staging)
    finally:
        os.close(staging)


def _is_own(root: int, path: str) -> bool:
    """Tell whether the directory was created by a restore of this user, or is empty.

    Raises:
        OSError: it cannot be read.
        WorkspaceError: the user's secret cannot be read now.
    """
    staging = open_directory(STAGING, root)
    try:
        names = set(os.listdir(staging))
        if not names:
            return True
        try:
            with opened_file(staging, _OWNER) as file:
                seal = read_all(file.fd, min(file.stat.st_size, _MAX_OWNER_BYTES)).decode("ascii")
        except (FileNotFoundError, EntryChanged, UnicodeDecodeError):
            return False
        # The seal is written first: a process killed there has written nothing else.
        return _is_claimed(path, seal) or (not seal and names == {os.fsdecode(_OWNER)})
    finally:
        os.close(staging)


def _owner_of(path: str) -> bytes:
    return json.dumps(["staging of a restore", path]).encode()


def _claimed(path: str) -> str | None:
    """Return the seal of the directory's owner. Raises OSError."""
    return _sealed(_owner_of(path))


def _is_claimed(path: str, seal: str) -> bool:
    try:
        return is_own_claim(_owner_of(path), seal)
    except StateError as error:
        raise WorkspaceError(
            f"The owner of {os.fsdecode(STAGING)} cannot be determined now ({error}). Try again."
        ) from error


def _sealed(content: bytes) -> str | None:
    try:
        return seal_claim(content)
    except StateError as error:
        raise OSError(errno.EIO, str(error)) from error


def _read_journal(root: int) -> tuple[Journal, object]:
    """Return the journal and its seal. Raises the errors of reading and parsing."""
    staging = open_directory(STAGING, root)
    try:
        with opened_file(staging, _JOURNAL) as file:
            record = json.loads(read_all(file.fd, min(file.stat.st_size, _MAX_JOURNAL_BYTES)))
        journal = Journal(
            str(record["root"]),
            str(record["tree"]),
            str(record["safety"]),
            None if record["paths"] is None else tuple(map(str, record["paths"])),
            tuple(map(str, record["exclude"])),
            str(record["store"]),
            str(record["safety_id"]),
            None if record["seen"] is None else str(record["seen"]),
        )
        return journal, record["seal"]
    finally:
        os.close(staging)


def remove_staging(root: int, *, keep_journal: bool = False) -> None:
    """Remove the staging directory, its journal first; or all but the journal.

    The owner file goes last, so that the leftovers of an interruption are still recognized.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        staging = open_directory(STAGING, root)
    except FileNotFoundError:
        return
    try:
        names = set(map(os.fsencode, os.listdir(staging)))
        order = [name for name in (_JOURNAL, _FILES, _STAGED) if name in names]
        for name in (*order, *sorted(names - {*order, _OWNER}), *(names & {_OWNER})):
            if name in (_FILES, _STAGED):
                _remove_files(staging, name)
            elif name != _JOURNAL or not keep_journal:
                os.unlink(name, dir_fd=staging)
    finally:
        os.close(staging)
    if not keep_journal:
        os.rmdir(STAGING, dir_fd=root)


def sync_file_system(fd: int) -> None:
    """Sync the whole file system of an open file. Raises OSError."""
    try:
        with block_forks():
            import ctypes  # slow to load, and rarely needed

        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):  # not Linux, or a Python without ctypes
        os.sync()
        return
    if syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def staged_files(root: int) -> Iterator[int | None]:
    """Open the staged files of a restore that has begun; None if there are none. Raises OSError."""
    try:
        staging = open_directory(STAGING, root)
    except FileNotFoundError:
        yield None
        return
    files = -1
    try:
        with suppress(FileNotFoundError):
            files = open_directory(_FILES, staging)
        yield files if files >= 0 else None
    finally:
        for fd in (files, staging):
            if fd >= 0:
                os.close(fd)


def _remove_files(staging: int, folder: bytes) -> None:
    files = open_directory(folder, staging)
    try:
        for name in os.listdir(files):
            os.unlink(name, dir_fd=files)
    finally:
        os.close(files)
    os.rmdir(folder, dir_fd=staging)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _write_chunks(file: int, item: Item, get: Get) -> None:
    chunks = read_chunks(item.ref, get)
    whole = ContentHash()
    size = 0
    for name in chunks.names:
        (chunk,) = get([name])  # one at a time, to bound memory
        if chunk.kind != BLOB:
            raise IntegrityError(f"The object {name} is not a chunk of a file.")
        whole.add(chunk.payload)
        size += len(chunk.payload)
        if size > item.size:
            break
        _write(file, chunk.payload)
    if whole.id() != item.id or size != item.size:
        raise IntegrityError(f"The chunks {item.ref} do not match the content id of their file.")
