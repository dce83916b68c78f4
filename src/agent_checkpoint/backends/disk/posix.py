"""POSIX helpers of the backends: durable writes, store locks, OS errors, safe file access."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.disk.fork_safety import block_forks, open_lock_file
from agent_checkpoint.backends.disk.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.file_ownership import other_writer
from agent_checkpoint.records import short_repr

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TRANSIENT = {errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ESTALE}
_ADVICE = {
    errno.ENOSPC: "Free some space; what was saved before is intact.",
    errno.EDQUOT: "Free some of your quota; what was saved before is intact.",
    errno.EACCES: "Check who owns the store.",
    errno.EROFS: "Reading works. To save, restore or delete, copy the store to a directory that "
    "you can write, and use the copy.",
}
# Do not follow a link out of the store, or block on a pipe.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GATE_WAIT = 2.0  # seconds
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{24}")

FileIdentity = tuple[int, int]
"""The device and inode of a file."""


def file_identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Return the identity of the file at a path, None if there is none.

    Raises:
        OSError: the file system failed.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def store_url(scheme: str, path: Path, *, shared: bool = False) -> str:
    """Return the store URL of a directory."""
    with block_forks():
        from urllib.parse import quote  # slow to import, and rarely needed

    return f"{scheme}://{quote(str(path))}{'?shared=1' if shared else ''}"


def check_path(path: object) -> Path:
    """Return a valid path, with ~ expanded.

    Raises:
        InvalidInputError: it is empty, not a string or Path, or not a valid path.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInputError(f"A path must be a string or a Path, not {type(text).__name__}.")
    if not text:
        raise InvalidInputError('The path is empty; "." is the current directory.')
    if "\0" in text:
        raise InvalidInputError(f"{short_repr(text)} is not a path: it has a NUL.")
    try:
        text.encode()
        return Path(text).expanduser()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"{short_repr(text)} is not a path: it has lone surrogates."
        ) from None
    except RuntimeError as error:  # ~name of an unknown user
        raise InvalidInputError(f"{short_repr(text)} is not a path: {error}") from None


def check_lock_timeout(seconds: object) -> float:
    """Return a valid lock timeout. Raises InvalidInputError."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):  # type: ignore[operator]
        raise InvalidInputError(
            f"lock_timeout must be a number of seconds, not {short_repr(seconds)}."
        )
    return float(seconds)  # type: ignore[arg-type]


@contextmanager
def wrap_os_errors(action: str) -> Iterator[None]:
    """Convert an OSError in the block into a StorageError that names the failed action.

    Raises:
        StorageError: instead of the OSError, which is its cause.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        advice = _ADVICE.get(error.errno or 0, "")
        raise StorageError(
            f"Cannot {action}: {reason}. {advice}".strip(),
            retryable=error.errno in _TRANSIENT,
            no_room=is_disk_full(error),
        ) from error


def is_disk_full(error: OSError) -> bool:
    """Return whether the error means that the disk or the quota is full."""
    return error.errno in _FULL


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system of a path, which need not exist.

    Raises:
        OSError: the file system failed.
    """
    return disk_space(path)[0]


def disk_space(path: Path) -> tuple[int, int]:
    """Return the free and the total bytes of the file system of a path.

    Raises:
        OSError: the file system failed.
    """
    while True:
        try:
            found = os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            if path == path.parent:
                raise
            path = path.parent
        else:
            return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


@contextmanager
def store_lock(
    lock_file: Path, *, exclusive: bool, seconds: float = LOCK_TIMEOUT
) -> Iterator[FileIdentity]:
    """Hold the store lock: shared for saves, exclusive for deletions. A crash releases it.

    The kernel grants shared locks while an exclusive request waits, so many savers could starve a
    deleter. The deleter therefore closes a gate, a lock on a second file, at which savers wait.

    Raises:
        StorageError: another process holds it longer than `seconds`; the message names it.
        OSError: the file system failed, or a lock file is not a regular file.
    """
    gate = lock_file.with_name(".gate")
    if exclusive:
        with _gate_closed(gate, seconds), exclusive_lock(lock_file, seconds) as identity:
            yield identity
    else:
        _wait_at_gate(gate)
        with _flock(lock_file, fcntl.LOCK_SH, seconds) as identity:
            yield identity


@contextmanager
def exclusive_lock(lock_file: Path, seconds: float = LOCK_TIMEOUT) -> Iterator[FileIdentity]:
    """Hold an exclusive lock and yield the identity of its file. A crash releases it.

    Raises:
        StorageError: another process holds it longer than `seconds`; the message names it.
        OSError: the file system failed, or the lock file is not a regular file.
    """
    with _flock(lock_file, fcntl.LOCK_EX, seconds) as identity:
        yield identity


@contextmanager
def queued_lock(lock_file: Path, seconds: float) -> Iterator[FileIdentity]:
    """Hold an exclusive lock, in about the order of arrival.

    A polled lock has no queue: a process that has just released it could take it again at once. So
    only the holder of the gate polls the lock, and releases the gate when it has the lock.

    Raises:
        StorageError: others hold either lock longer than `seconds`; the message names them.
        OSError: the file system failed, or a lock file is not a regular file.
    """
    with ExitStack() as stack:
        with _gate_closed(lock_file.with_name(".gate"), seconds):
            lock = _flock(lock_file, fcntl.LOCK_EX, seconds, is_first_waiter=True)
            identity = stack.enter_context(lock)
        yield identity


def check_lock_file(lock_file: Path, identity: FileIdentity) -> None:
    """Check that the locked file is still the lock file at the path.

    Raises:
        StorageError: it was replaced, so that another process may hold the new lock.
        OSError: the file system failed.
    """
    if file_identity(lock_file) != identity:
        raise StorageError(
            f"The lock file {lock_file} was removed or replaced while it was locked, so nothing "
            "was written. Try again.",
            retryable=True,
        )


@contextmanager
def shared_lock(lock_file: Path, seconds: float) -> Iterator[None]:
    """Hold a shared lock for reading; needs no space, no inode and no write permission.

    Without a lock file the store was never written.

    Raises:
        StorageError: a writer holds it too long; the message names it.
        OSError: the file system failed, or a writer created the lock file meanwhile.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_flock(lock_file, fcntl.LOCK_SH, seconds, flags=os.O_RDONLY))
        except FileNotFoundError:
            yield
            if lock_file.exists():
                raise OSError(errno.EAGAIN, "it was written to while it was read") from None
        else:
            yield


@contextmanager
def _gate_closed(gate: Path, seconds: float) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(gate, seconds))
        except OSError as error:
            if not is_disk_full(error):  # without an inode for the gate the wait may only be longer
                raise
        yield


@contextmanager
def _flock(
    path: Path,
    how: int,
    seconds: float,
    *,
    flags: int = os.O_RDWR | os.O_CREAT,
    is_first_waiter: bool = False,
) -> Iterator[FileIdentity]:
    # Each use opens the file again: a lock belongs to the open file description, so this also
    # works between threads.
    while True:
        with open_lock_file(lambda: _open_lock(path, flags)) as fd:
            holders = acquire_lock(fd, how, seconds, is_first_waiter=is_first_waiter)
            if holders is not None:
                raise StorageError(
                    f"Nothing was done: {path} is locked by {holders}, for longer than "
                    f"{seconds:g} s. Let that end or go on, then try again.",
                    retryable=True,
                )
            found = os.fstat(fd)
            identity = found.st_dev, found.st_ino
            # Otherwise the file was replaced during the wait, and others lock the new one.
            if file_identity(path) == identity:
                yield identity
                return


def _open_lock(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | _SAFE_FLAGS, 0o600)
    except OSError:
        refuse_link(path)
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a regular file; remove it")
        if flags and not found.st_mode & 0o077:
            share_like_folder(fd, path.parent)
    except OSError:
        os.close(fd)
        raise
    return fd


def _wait_at_gate(gate: Path) -> None:
    # Only for a while: a deleter that waits for a stopped process must not stop all savers too.
    with (
        suppress(FileNotFoundError),  # there is no gate before the first deletion
        open_lock_file(lambda: _open_lock(gate, os.O_RDWR)) as fd,
    ):
        acquire_lock(fd, fcntl.LOCK_SH, _GATE_WAIT, extend_if_running=False)


def write_new(directory: Path, data: bytes) -> Path:
    """Write a durable temporary file into the directory, for the caller to link.

    Raises:
        OSError: the file system failed; no file is left.
    """
    path = directory / os.urandom(12).hex()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            share_like_folder(fd, directory)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return path


def share_like_folder(fd: int, folder: Path) -> None:
    """Give a new file or folder of a shared store the permissions of its folder.

    Does nothing in a folder that only this user can write. The folder must belong to the store: all
    users can write `/tmp`, but files there stay private. A file with several names is not changed:
    others may have linked a private file of this user there.

    Raises:
        OSError: the file system failed.
    """
    above, found = folder.stat(), os.fstat(fd)
    if other_writer(folder, above) is None or found.st_uid != os.geteuid():
        return
    if not stat.S_ISDIR(found.st_mode) and found.st_nlink != 1:
        return
    bits = sum(
        7 * bit
        for bit, writes in ((0o010, stat.S_IWGRP), (0o001, stat.S_IWOTH))
        if above.st_mode & writes
    )
    if not stat.S_ISDIR(found.st_mode):
        bits &= 0o066
    if os.geteuid() == 0 and found.st_uid != above.st_uid:
        os.fchown(fd, above.st_uid, above.st_gid)
    if bits:
        os.fchmod(fd, stat.S_IMODE(found.st_mode) | bits)


def make_store_folder(path: Path) -> None:
    """Create one directory below the root of a store, shared like its parent.

    Raises:
        FileExistsError: the path exists.
        OSError: the file system failed.
    """
    path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        share_like_folder(fd, path.parent)
    finally:
        os.close(fd)


def link_new(directory: Path, data: bytes, target: Path) -> None:
    """Write a durable file through a temporary directory; an existing target is not changed.

    Raises:
        OSError: the file system failed, or the target exists and is not a file.
    """
    if is_regular(target):
        return
    written = write_new(directory, data)
    try:
        os.link(written, target)
    except FileExistsError:
        if not is_regular(target):
            raise OSError(f"{target} is not a regular file; remove it") from None
    finally:
        written.unlink()


def sweep_temporary_files(directory: Path) -> None:
    """Remove the files of dead writers from the temporary directory.

    Writers hold the lock while they have files there, so the caller must hold it exclusively.

    Raises:
        OSError: the file system failed.
    """
    for item in list(scan_directory(directory)):
        if _TEMPORARY_NAME.fullmatch(item.name) is None:
            continue
        if item.is_dir(follow_symlinks=False):
            with suppress(OSError):  # a directory with more than a `name` file is not from a writer
                remove_stream_folder(Path(item.path))
        else:
            os.unlink(item.path)


def remove_stream_folder(folder: Path) -> None:
    """Remove a directory that holds at most a `name` file.

    Raises:
        OSError: the file system failed, or the directory holds more.
    """
    (folder / "name").unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def open_single_link(path: Path, flags: int) -> Iterator[int]:
    """Open a file for writing if it has a single name: a link may lead to any file of this user.

    Raises:
        OSError: the file system failed; or it is a link, has several names, or is not regular.
    """
    fd = os.open(path, flags | _SAFE_FLAGS, 0o600)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(f"{path} is a link or not a regular file; remove it")
        yield fd
    finally:
        os.close(fd)


def open_private(path: str, flags: int) -> int:
    """Open a file, as an `opener=` of `open()`; a new file is private regardless of the umask."""
    return os.open(path, flags, 0o600)


def make_directory(path: Path) -> None:
    """Create a private directory and its parents, durably; an existing one is not changed.

    Raises:
        OSError: the file system failed.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    sync_directory(path.parent)


def sync_parents(path: Path) -> None:
    """Sync all parents of a path: a process that created one may have died before its sync.

    Raises:
        OSError: the file system failed.
    """
    for parent in path.parents:
        with suppress(PermissionError):  # then it was not created by us
            sync_directory(parent)


def make_store_directory(path: Path) -> None:
    """Create a directory of the store, below its root, like `make_directory`.

    Raises:
        OSError: the file system failed, or the path is a link.
    """
    refuse_link(path)
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        make_store_folder(path)
    sync_directory(path.parent)


def refuse_link(path: Path) -> None:
    """Do nothing unless the path is a symbolic link: what we write or delete must be in the store.

    Raises:
        OSError: it is a link, or the file system refuses to tell.
    """
    if path.is_symlink():
        raise OSError(f"{path} is a symbolic link, which may lead out of the store; remove it")


def scan_directory(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Iterate over a directory; a missing one is empty.

    Raises:
        OSError: the file system failed.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as items:
        yield from items


def is_regular(path: Path) -> bool:
    """Return whether the path is a regular file, not a link.

    Raises:
        OSError: the file system failed.
    """
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_regular(path: Path, most: int = -1) -> bytes | None:
    """Return the first `most` bytes of a file, or None if it is a link, a pipe or a device.

    Raises:
        FileNotFoundError: the path does not exist.
        OSError: the file system failed.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    with open(os.open(path, os.O_RDONLY | _SAFE_FLAGS), "rb") as file:
        return file.read(most)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable.

    Raises:
        OSError: the file system failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
