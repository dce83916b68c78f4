"""The directory in a workspace where a restore is prepared. Owns its files and the journal.

It lies in the workspace because a rename must not leave the file system. As long as it has a
journal, a restore has begun and has to be finished, by whoever opens the workspace next. Anyone may
bring along something of that name: what is not sealed by this user for this directory is not ours,
is neither obeyed nor removed, and blocks nothing.
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
from agent_checkpoint.workspace.safe_open import Changing, open_directory, opened_file, read_all
from agent_checkpoint.workspace.tree.tree_format import ContentHash, Get, Item, read_chunks

STAGING = b".agent-checkpoint-restore"
_JOURNAL = b"journal"
_STAGED = b"staged"
"""Where contents are written. What is in it is ours, whole or not."""
_FILES = b"files"
"""What it is called when everything is in it: from then on, what was replaced may be there, too."""
TAKEN = b".old"
"""Ends the name of what was taken away, where it could not be exchanged."""
_COPIED = b".new"
"""Ends the name of a copy that is being written."""
_OWNER = b"owner"
_LONGEST_OWNER = 128
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
"""Errors that say nothing of a file: another process, or later, it can be read."""
_FOREIGN = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EPERM, errno.EACCES}
)
"""Errors that only entries raise that no restore has made."""
FEW = 64
"""So many files are synced one by one; for more, the whole file system is."""
_BATCH = 8
"""So many contents are in memory at a time."""
_LARGEST_JOURNAL = 1 << 26
_PIECE = 1 << 20


class Journal(NamedTuple):
    """A restore that has begun: what it makes of what, and how it was asked for."""

    root: str
    """The directory that it is for: elsewhere, it is only a copy."""
    tree: str
    safety: str
    paths: tuple[str, ...] | None
    exclude: tuple[str, ...]
    store: str
    safety_id: str = ""
    """The checkpoint that holds what `safety` names."""
    seen: str | None = None
    """The last ordinary snapshot, if what that does not hold is to be kept."""

    @property
    def encoded_paths(self) -> tuple[bytes, ...] | None:
        """The paths to restore, as bytes."""
        return None if self.paths is None else tuple(map(os.fsencode, self.paths))

    @property
    def said(self) -> bytes:
        """What is sealed: whoever can write a file here, or has it cloned, could name others."""
        return json.dumps(["restore of a workspace", self._asdict()]).encode()


class Staging:
    """What a restore is about to put in place. Holds open the root and its own directory."""

    def __init__(self, root: int, journal: Journal, *, is_begun: bool) -> None:
        """Make the directory anew.

        Args:
            root: the workspace, open.
            journal: what is to be done.
            is_begun: whether the directory is there already, with that journal.

        Raises:
            OSError: it cannot be made.
        """
        self._root = root
        self._count = 0
        self._fd = self.files = -1
        self.aside = aside_name(journal)
        """The same as a name in `files`, in a directory that another file system is mounted on."""
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
        """Write the contents of files, each given with its path; yield after each, in order.

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

    def go_on(self) -> None:
        """Make durable what is staged, for a restore that has a journal. Raises OSError."""
        self._settle()
        # Else, after a power loss, what was replaced could be where everything is ours.
        os.fsync(self._fd)

    def begin(self, journal: Journal) -> None:
        """Make durable what is staged, then the journal: from now on there is no way back.

        Raises:
            OSError: it cannot be written.
        """
        self._settle()
        seal = _sealed(journal.said)
        text = json.dumps({**journal._asdict(), "seal": seal}).encode()
        with self._new(_JOURNAL + b".new", self._fd) as file:
            _write(file, text)
            os.fsync(file)
        os.rename(_JOURNAL + b".new", _JOURNAL, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)
        os.fsync(self._root)

    def copy(self, source: bytes, directory: int, *, is_link: bool) -> None:
        """Move what is staged into a directory of another file system, aside. Raises OSError."""
        copied = Entry(partial_name(self.aside), directory)
        try:
            if is_link:
                os.symlink(os.readlink(source, dir_fd=self.files), copied.name, dir_fd=directory)
            else:
                self._copy_file(source, copied)
            put(copied, Entry(self.aside, directory))
        except OSError:  # a part of a file may have filled the disk
            with suppress(OSError):
                copied.unlink()
            raise
        os.unlink(source, dir_fd=self.files)

    def end(self) -> None:
        """Remove the journal and the directory. Raises OSError."""
        self.close()
        remove_staging(self._root)

    def close(self) -> None:
        """Let go of the directory."""
        for fd in (self.files, self._fd):
            if fd >= 0:
                os.close(fd)
        self.files = self._fd = -1

    def _settle(self) -> None:
        if self._count > FEW:
            sync_file_system(self._root)
        os.rename(_STAGED, _FILES, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _put(self, batch: list[tuple[bytes, Item]], get: Get) -> Iterator[None]:
        small = [item.ref for _, item in batch if item.id == item.ref]
        contents = dict(zip(small, get(small)))
        for path, item in batch:
            self._count += 1
            with self._new(slot_name(path), self.files) as file:
                if item.id == item.ref:
                    found = contents[item.ref]
                    if found.kind != BLOB or len(found.payload) != item.size:
                        raise IntegrityError(f"The object {item.ref} is not the file it should be.")
                    _write(file, found.payload)
                else:
                    _write_chunks(file, item, get)
                os.fchmod(file, item.mode)
                if self._count <= FEW:
                    os.fsync(file)
            yield

    def _copy_file(self, source: bytes, copied: Entry) -> None:
        file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.files)
        with open(file, "rb") as old, self._new(copied.name, copied.fd) as new:
            while data := old.read(_PIECE):
                _write(new, data)
            found = os.fstat(file)
            os.fchmod(new, found.st_mode & 0o777)
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
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
    """Return the name in staging of what is for a path, or was there.

    It follows from the path, so that whoever finds it after a crash can tell what it is.
    """
    return hashlib.sha256(path).hexdigest().encode()


def aside_name(journal: Journal) -> bytes:
    """Return the name of what is staged where another file system is mounted.

    Nobody else has an entry of that name, and whoever finds the journal after a crash knows it.
    """
    told = journal.safety_id.encode(errors="surrogatepass")
    return b".agent-checkpoint-" + hashlib.sha256(told).hexdigest().encode()


def partial_name(aside: bytes) -> bytes:
    """Return the name of what is being copied there: it is ours, whole or not."""
    return aside + _COPIED


def has_staging(root: int) -> bool:
    """Tell whether something has the name of the directory, whoever made it. Raises OSError."""
    try:
        os.stat(STAGING, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_journal(root: int, path: str) -> Journal | None:
    """Return the journal of a restore that this user has begun, or None.

    Args:
        root: the directory, open.
        path: where it is.

    Raises:
        WorkspaceError: it cannot be read just now.
    """
    try:
        journal, seal = _read_journal(root)
        return journal if journal.root == path and is_own_claim(journal.said, seal) else None
    except (Changing, ValueError, KeyError, TypeError, RecursionError):
        return None
    except (OSError, StateError) as error:
        if isinstance(error, OSError) and error.errno not in _PASSING:
            return None
        raise WorkspaceError(
            f"A restore may have been interrupted here, and {os.fsdecode(STAGING)}/journal cannot "
            f"be read now ({error}). The next who opens the workspace goes on."
        ) from error


def move_staging_aside(root: int, path: str) -> str | None:
    """Make room where there is no journal of this user; return what has to be said of that.

    What a restore of this user has left before it touched anything is removed. Everything else is
    somebody's data: it gets another name.

    Args:
        root: the directory, open.
        path: where it is.

    Raises:
        OSError: what a restore has left cannot be removed.
        WorkspaceError: it cannot be told now who made it.
    """
    why = "is not of a restore that you began in this directory, and may have come with the files"
    try:
        if _is_own(root, path):
            if _has_journal(root):
                why = (
                    "is of a restore that was interrupted here, and its journal is damaged: some "
                    "files may be as they were before it, and a safety checkpoint holds the others"
                )
            else:
                why = "holds more than a restore has put there"
                remove_staging(root)
                return None
    except OSError as error:
        if error.errno not in _FOREIGN:
            raise
    with suppress(Changing, OSError, ValueError, KeyError, TypeError, RecursionError):
        safety = short_repr(_read_journal(root)[0].safety_id, 120)
        why += f". By its journal {safety} holds what was here before"
    says = f"{os.fsdecode(STAGING)} in {short_repr(path, 1000)} {why}."
    if os.stat(STAGING, dir_fd=root, follow_symlinks=False).st_uid != os.geteuid():
        return f"{says} It belongs to another user, is left alone and not captured."
    aside = STAGING + b".found-" + os.urandom(4).hex().encode()
    try:
        os.rename(STAGING, aside, src_dir_fd=root, dst_dir_fd=root)
    except OSError as error:
        return f"{says} It cannot be renamed ({error.strerror}), and is not captured."
    return f"{says} It is {os.fsdecode(aside)} now."


def _has_journal(root: int) -> bool:
    staging = open_directory(STAGING, root)
    try:
        return os.fsdecode(_JOURNAL) in os.listdir(staging)
    finally:
        os.close(staging)


def _is_own(root: int, path: str) -> bool:
    """Tell whether the directory is one that a restore of this user has made, or is empty.

    Raises:
        OSError: it cannot be read.
        WorkspaceError: the secret cannot be read just now.
    """
    staging = open_directory(STAGING, root)
    try:
        names = set(os.listdir(staging))
        if not names:
            return True
        try:
            with opened_file(staging, _OWNER) as file:
                seal = read_all(file.fd, min(file.stat.st_size, _LONGEST_OWNER)).decode("ascii")
        except (FileNotFoundError, Changing, UnicodeDecodeError):
            return False
        # Whoever was killed as the seal was written has written nothing else.
        return _is_claimed(path, seal) or (not seal and names == {os.fsdecode(_OWNER)})
    finally:
        os.close(staging)


def _owner_of(path: str) -> bytes:
    return json.dumps(["staging of a restore", path]).encode()


def _claimed(path: str) -> str | None:
    """Return the seal by which the directory is known. Raises OSError."""
    return _sealed(_owner_of(path))


def _is_claimed(path: str, seal: str) -> bool:
    try:
        return is_own_claim(_owner_of(path), seal)
    except StateError as error:
        raise WorkspaceError(
            f"It cannot be told now whether {os.fsdecode(STAGING)} is yours ({error}). Try again."
        ) from error


def _sealed(said: bytes) -> str | None:
    try:
        return seal_claim(said)
    except StateError as error:
        raise OSError(errno.EIO, str(error)) from error


def _read_journal(root: int) -> tuple[Journal, object]:
    """Return what a journal says, and its seal. Raises what reading and parsing raise."""
    staging = open_directory(STAGING, root)
    try:
        with opened_file(staging, _JOURNAL) as file:
            record = json.loads(read_all(file.fd, min(file.stat.st_size, _LARGEST_JOURNAL)))
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
    """Remove what a restore has left, its journal first unless that is to stay.

    The name of the owner goes last: what is left if this is interrupted is still known.

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
    """Have everything written on the file system of an open file. Raises OSError."""
    try:
        with block_forks():
            import ctypes  # slow to load, and seldom wanted

        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, OSError, AttributeError):  # not Linux, or a Python without ctypes
        os.sync()
        return
    if syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def staged_files(root: int) -> Iterator[int | None]:
    """Give the directory in which a restore that began has left files, or None. Raises OSError."""
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
        (found,) = get([name])  # never more than one in memory
        if found.kind != BLOB:
            raise IntegrityError(f"The object {name} is no piece of a file.")
        whole.add(found.payload)
        size += len(found.payload)
        if size > item.size:
            break
        _write(file, found.payload)
    if whole.id() != item.id or size != item.size:
        raise IntegrityError(f"The chunks {item.ref} do not make up the file they are of.")
