"""The staging directory of a restore, in the workspace. Owns its files.

It is in the workspace because a rename cannot cross file systems. If it contains a journal, a
restore was interrupted: when the workspace is next opened, crash recovery completes it, or discards
it if it was not yet decided. An untrusted project, for example a git clone, may contain a directory
of this name. A directory without an HMAC of this user for this workspace is ignored and not
removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import IntegrityError, StateError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.seal import is_own_claim
from agent_checkpoint.store.objects.object_format import BLOB, Object
from agent_checkpoint.workspace.restore.atomic_rename import Entry, put
from agent_checkpoint.workspace.restore.journal import Journal, read_journal, seal
from agent_checkpoint.workspace.safe_open import (
    EntryChanged,
    directory_below,
    exists,
    new_file,
    open_directory,
    opened_file,
    read_all,
    write_all,
)
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.tree_format import ContentHash, Get, Item
from agent_checkpoint.workspace.tree.tree_reader import pieces

_JOURNAL = "journal"
_STAGED = b"staged"
"""Contains contents while they are written. All its files were written by the restore."""
_FILES = b"files"
"""The name of that directory once it is complete. It may then also contain replaced files."""
TAKEN = b".old"
"""The suffix of a removed entry on file systems that cannot exchange two entries."""
_COPIED = b".new"
"""The suffix of an unfinished copy."""
_OWNER = b"owner"
_MAX_OWNER_BYTES = 128
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
"""Errors not caused by the file: another process or a later attempt may be able to read it."""
_FOREIGN = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EPERM, errno.EACCES}
)
"""Errors that occur only if the directory contains entries not created by a restore."""
FSYNC_EACH_MAX = 64
"""Up to this many files are synced individually; for more, the file system is synced."""
_BATCH_FILES, _BATCH_BYTES = 500, 8 << 20
"""How many small contents, of how many bytes, are read and in memory at a time."""
_COPY_BYTES = 1 << 20


class Staging:
    """The staged files of one restore. Keeps their directory open."""

    def __init__(self, root: int, journal: Journal, *, is_begun: bool) -> None:
        """Create the staging directory.

        Args:
            root: the descriptor of the workspace.
            journal: the restore.
            is_begun: the directory already exists, with this journal (crash recovery).

        Raises:
            OSError: the directory cannot be created.
        """
        self._root = root
        self._journal = journal
        self._is_begun = is_begun
        self._count = 0
        self._fd = self.files = -1
        self.aside = aside_name(journal)
        """The name of a staged entry in a directory on another mounted file system."""
        if not is_begun:
            os.mkdir(STAGING, 0o700, dir_fd=root)
        try:
            remove_staging(root, keep_journal=True)
            self._fd = open_directory(STAGING, root)
            with new_file(_OWNER, self._fd) as file:
                write_all(file, (seal(_owner_of(journal.root)) or "").encode())
            os.mkdir(_STAGED, 0o700, dir_fd=self._fd)
            self.files = open_directory(_STAGED, self._fd)
        except BaseException:
            self.cancel()
            raise

    def put(self, files: Sequence[tuple[bytes, Item]], get: Get) -> Iterator[None]:
        """Write the contents of files, given as path and item; yield after each, in order.

        Raises:
            IntegrityError: a stored file content is missing or damaged.
            OSError: a staged file cannot be written.
        """
        start = size = 0
        for end, (_, item) in enumerate(files, 1):
            size += item.size if item.id == item.ref else 0
            if size >= _BATCH_BYTES or end - start == _BATCH_FILES or end == len(files):
                yield from self._put(files[start:end], get)
                start, size = end, 0

    def begin(self) -> None:
        """Make staged files durable, then the journal. Then the restore is rolled forward.

        Raises:
            OSError: the journal cannot be written.
        """
        if self._count > FSYNC_EACH_MAX:
            sync_file_system(self._root)
        os.rename(_STAGED, _FILES, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        if self._is_begun:
            # Otherwise, after a power loss, replaced files could be in the directory of disposable
            # files.
            os.fsync(self._fd)
        else:
            self._journal.write(self._fd, _JOURNAL)
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

    def cancel(self) -> None:
        """Remove the directory before the restore has changed anything, unless it has a journal."""
        self.close()
        if not self._is_begun:
            with suppress(OSError):  # else crash recovery removes it
                remove_staging(self._root)

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

    def _put(self, batch: Sequence[tuple[bytes, Item]], get: Get) -> Iterator[None]:
        small = [item.ref for _, item in batch if item.id == item.ref]
        contents = iter(get(small))
        for path, item in batch:
            self._count += 1
            with new_file(slot_name(path), self.files) as file:
                write_file(file, item, contents, get)
                if self._count <= FSYNC_EACH_MAX:
                    os.fsync(file)
            yield

    def _copy_file(self, source: bytes, copied: Entry) -> None:
        file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.files)
        with open(file, "rb") as old, new_file(copied.name, copied.fd) as new:
            while data := old.read(_COPY_BYTES):
                write_all(new, data)
            stat = os.fstat(file)
            os.fchmod(new, stat.st_mode & 0o777)
            os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            os.fsync(new)


def slot_name(path: bytes) -> bytes:
    """Return the staging name of the new or replaced entry of a path.

    It is derived from the path, so that crash recovery can match entries to paths.
    """
    return hashlib.sha256(path).hexdigest().encode()


def aside_name(journal: Journal) -> bytes:
    """Return the name of staged entries in directories on another mounted file system.

    It is unique, and derived from the journal, so that crash recovery can compute it.
    """
    checkpoint_id = journal.safety_id.encode(errors="surrogatepass")
    return b".agent-checkpoint-" + hashlib.sha256(checkpoint_id).hexdigest().encode()


def partial_name(aside: bytes) -> bytes:
    """Return the name of an unfinished copy in such a directory."""
    return aside + _COPIED


def has_staging(root: int) -> bool:
    """Return whether an entry with the name of the staging directory exists. Raises OSError."""
    return exists(STAGING, root)


def own_journal(root: int, path: str) -> Journal | None:
    """Return the journal of an interrupted restore of this user, or None.

    Args:
        root: the descriptor of the workspace.
        path: its path.

    Raises:
        WorkspaceError: the journal cannot be read now.
    """
    try:
        journal, is_own = _read(root)
        return journal if is_own and journal.root == path else None
    except (EntryChanged, ValueError, KeyError, TypeError, RecursionError):
        return None
    except (OSError, StateError) as error:
        if isinstance(error, OSError) and error.errno not in _TRANSIENT:
            return None
        raise WorkspaceError(
            "A restore of this workspace may have been interrupted: "
            f"{os.fsdecode(STAGING)}/journal cannot be read ({error}). Opening the workspace "
            "again retries it."
        ) from error


def _read(root: int) -> tuple[Journal, bool]:
    """Return the journal, and whether it is this user's. Raises as `read_journal` does."""
    with directory_below(root, STAGING) as staging:
        return read_journal(staging, _JOURNAL)


def move_staging_aside(root: int, path: str) -> str | None:
    """Remove or rename a staging directory without a journal of this user.

    The leftovers of a restore that had not changed any file are removed. Anything else is user data
    and is renamed.

    Args:
        root: the descriptor of the workspace.
        path: its path.

    Returns a message for the user, or None.

    Raises:
        OSError: the leftovers cannot be removed.
        WorkspaceError: the owner cannot be determined now.
    """
    finding = "was not created by a restore of this user in this workspace"
    try:
        names = _own_names(root, path)
        if names is not None and _JOURNAL in names:
            finding = (
                "belongs to an interrupted restore whose journal is damaged. Some files may "
                "not have been restored; a safety checkpoint holds the previous versions of "
                "the others"
            )
        elif names is not None:
            finding = "contains entries that were not created by a restore"
            remove_staging(root)
            return None
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise
    with suppress(EntryChanged, OSError, ValueError, KeyError, TypeError, RecursionError):
        safety = short_repr(_read(root)[0].safety_id, 120)
        finding += f". According to its journal, the safety checkpoint is {safety}"
    notice = f"{os.fsdecode(STAGING)} in {short_repr(path, 1000)} {finding}."
    if os.stat(STAGING, dir_fd=root, follow_symlinks=False).st_uid != os.geteuid():
        return f"{notice} It belongs to another user; it is ignored and not captured."
    aside = STAGING + b".found-" + os.urandom(4).hex().encode()
    try:
        os.rename(STAGING, aside, src_dir_fd=root, dst_dir_fd=root)
    except OSError as error:
        return f"{notice} It cannot be renamed ({error.strerror}), and is not captured."
    return f"{notice} It was renamed to {os.fsdecode(aside)}."


def _own_names(root: int, path: str) -> set[str] | None:
    """Return the names in the directory; None if no restore of this user created it.

    An empty directory counts as created by one.

    Raises:
        OSError: it cannot be read.
        WorkspaceError: the user's secret cannot be read now.
    """
    with directory_below(root, STAGING) as staging:
        names = set(os.listdir(staging))
        if not names:
            return names
        try:
            with opened_file(staging, _OWNER) as file:
                signature = read_all(file.fd, min(file.stat.st_size, _MAX_OWNER_BYTES)).decode(
                    "ascii"
                )
        except (FileNotFoundError, EntryChanged, UnicodeDecodeError):
            return None
    try:
        is_own = is_own_claim(_owner_of(path), signature)
    except StateError as error:
        raise WorkspaceError(
            f"The owner of {os.fsdecode(STAGING)} cannot be determined ({error}). Retry."
        ) from error
    # The HMAC is written first: a process killed before that has written nothing else.
    return names if is_own or (not signature and names == {os.fsdecode(_OWNER)}) else None


def _owner_of(path: str) -> bytes:
    return json.dumps(["staging of a restore", path]).encode()


def remove_staging(root: int, *, keep_journal: bool = False) -> None:
    """Remove the staging directory, the journal first; with `keep_journal`, all but the journal.

    The owner file is removed last, so that the leftovers of an interruption are recognized.

    Raises:
        OSError: an entry cannot be removed.
    """
    if not has_staging(root):
        return
    with directory_below(root, STAGING) as staging:
        names = set(map(os.fsencode, os.listdir(staging)))
        journal = os.fsencode(_JOURNAL)
        order = [name for name in (journal, _FILES, _STAGED) if name in names]
        for name in (*order, *sorted(names - {*order, _OWNER}), *(names & {_OWNER})):
            if name in (_FILES, _STAGED):
                _remove_files(staging, name)
            elif name != journal or not keep_journal:
                os.unlink(name, dir_fd=staging)
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
    """Open the directory of staged files; None if it does not exist. Raises OSError."""
    with ExitStack() as opened:
        files = None
        with suppress(FileNotFoundError):
            files = opened.enter_context(directory_below(root, STAGING + b"/" + _FILES))
        yield files


def _remove_files(staging: int, folder: bytes) -> None:
    with directory_below(staging, folder) as files:
        for name in os.listdir(files):
            os.unlink(name, dir_fd=files)
    os.rmdir(folder, dir_fd=staging)


def write_file(file: int, item: Item, contents: Iterator[Object], get: Get) -> None:
    """Write the content of a file, and set its mode.

    Args:
        file: the new file.
        item: its entry.
        contents: the objects of files that are stored in one; the next is of this file if it is.
        get: reads the chunks of other files.

    Raises:
        IntegrityError: the stored content is damaged.
        OSError: the file cannot be written.
    """
    if item.id == item.ref:
        blob = next(contents)
        if blob.kind != BLOB or len(blob.payload) != item.size:
            raise IntegrityError(f"The object {item.ref} does not match its directory entry.")
        write_all(file, blob.payload)
    else:
        _write_chunks(file, item, get)
    os.fchmod(file, item.mode)


def _write_chunks(file: int, item: Item, get: Get) -> None:
    """Write the content of a file that is stored in chunks. Raises IntegrityError, OSError."""
    whole = ContentHash()
    for piece in pieces(get, item):
        whole.add(piece)
        write_all(file, piece)
    if whole.id() != item.id or os.fstat(file).st_size != item.size:
        raise IntegrityError(f"The chunks {item.ref} do not match the content id of their file.")
