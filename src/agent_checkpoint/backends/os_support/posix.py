"""POSIX functions for backends: durable writes, store locks, OS errors, safe file access."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.backends.os_support.os_fork import KeptLockFiles, LockFileUse
from agent_checkpoint.errors import Hint, InvalidInputError, StorageError
from agent_checkpoint.file_trust import other_writer
from agent_checkpoint.records import short_repr

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TRANSIENT = {errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ESTALE}
_ADVICE = {
    errno.ENOSPC: "Free some space. Existing checkpoints are intact.",
    errno.EDQUOT: "Free some of your disk quota. Existing checkpoints are intact.",
    errno.EACCES: "Check the owner and the permissions of the store.",
    errno.EROFS: "Reading works. To save, restore or delete, copy the store to a writable "
    "directory, and use the copy.",
}
# Do not follow a link out of the store, or block on a pipe.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GATE_WAIT = 2.0  # seconds
_NOT_IN_URL = r"[^A-Za-z0-9/._~-]+"
_TEMPORARY_NAME = r"[0-9a-f]{24}"

FileIdentity = tuple[int, int]
"""The device and inode of a file."""


def file_identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Return the identity of the file at a path; None if the path does not exist.

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
    return f"{scheme}://{url_quoted(str(path))}{'?shared=1' if shared else ''}"


def url_quoted(text: str) -> str:
    """Return a path or an option as it is written in a URL.

    As urllib.parse.quote, which is slow to import: from Python 3.13 on nothing else needs it.
    """

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))

    return re.sub(_NOT_IN_URL, escaped, text)


def wrong_backend(path: Path, what: str, name: str, *, shared: bool) -> InvalidInputError:
    """Return the error for a store of another backend, which is in `path`."""
    url = store_url(name, path, shared=shared)
    hint = Hint(f'Pass backend="{name}", or {url}.', "store", url=url)
    return InvalidInputError(f"{path} is {what} store.", hint=hint)


def check_path(path: object) -> Path:
    """Validate a path, and return it with ~ expanded.

    Raises:
        InvalidInputError: the path is empty, not a string or Path, or not valid.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInputError(f"A path must be a string or a Path, not {type(text).__name__}.")
    if not text:
        raise InvalidInputError('The path is empty; "." is the current directory.')
    if "\0" in text:
        raise InvalidInputError(f"{short_repr(text)} is not a valid path: it contains a NUL.")
    try:
        text.encode()
        return Path(text).expanduser()
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"{short_repr(text)} is not a valid path: it is not valid UTF-8."
        ) from None
    except RuntimeError as error:  # ~name of an unknown user
        raise InvalidInputError(f"{short_repr(text)} is not a valid path: {error}") from None


def check_lock_timeout(seconds: object) -> float:
    """Validate a lock timeout, and return it as a float. Raises InvalidInputError."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):  # type: ignore[operator]
        raise InvalidInputError(
            f"lock_timeout must be a number of seconds, not {short_repr(seconds)}."
        )
    return float(seconds)  # type: ignore[arg-type]


class wrap_os_errors:  # a class: a generator costs more than most blocks
    """Convert an OSError in the block into a StorageError with the failed action in its message.

    Raises:
        StorageError: instead of the OSError, which is its cause.
    """

    __slots__ = ("_action",)

    def __init__(self, *action: object) -> None:
        """Set the words of the action, which are joined only for a message."""
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, OSError):
            return
        reason = error.strerror or str(error) or type(error).__name__
        advice = _ADVICE.get(error.errno or 0, "")
        raise StorageError(
            f"Cannot {' '.join(map(str, self._action))}: {reason}. {advice}".strip(),
            retryable=error.errno in _TRANSIENT,
            no_room=is_disk_full(error),
        ) from error


def is_disk_full(error: OSError) -> bool:
    """Return whether the error means that the disk or the quota is full."""
    return error.errno in _FULL


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system of a path. The path need not exist.

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

    The kernel grants shared locks while an exclusive request waits, so many saves could starve a
    deletion. A deletion therefore first locks a second file, the gate, at which saves wait.

    Raises:
        StorageError: another process holds the lock longer than `seconds`; the message contains
            the process.
        OSError: the file system failed, or a lock file is not a regular file.
    """
    gate = _gate_of(lock_file)
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
        StorageError: another process holds the lock longer than `seconds`; the message contains
            the process.
        OSError: the file system failed, or the lock file is not a regular file.
    """
    with _flock(lock_file, fcntl.LOCK_EX, seconds) as identity:
        yield identity


class QueuedLock:
    """An exclusive lock, granted approximately in order of arrival. Its files stay open.

    A polled lock has no queue: a process that has just released it could take it again at once.
    Therefore only the holder of the gate polls the lock, and releases the gate when it has the
    lock.
    """

    def __init__(self, lock_file: Path) -> None:
        self._path = lock_file
        self._gate_path = _gate_of(lock_file)
        self._kept = KeptLockFiles()
        self._kept_gate = KeptLockFiles()

    @contextmanager
    def hold(self, seconds: float) -> Iterator[FileIdentity]:
        """Hold the lock and yield the identity of its file. A crash releases it.

        Raises:
            StorageError: other processes hold either lock longer than `seconds`; the message lists
                them.
            OSError: the file system failed, or a lock file is not a regular file.
        """
        # One generator, not one for each step: it runs at every save.
        gate, lock = LockFileUse(self._kept_gate), LockFileUse(self._kept)
        try:
            try:
                _lock(gate, self._gate_path, fcntl.LOCK_EX, seconds)
            except OSError as error:
                if not is_disk_full(error):  # without a gate the wait may only be longer
                    raise
            identity = _lock(lock, self._path, fcntl.LOCK_EX, seconds, is_first_waiter=True)
            gate.end(is_good=True)
            yield identity
            lock.end(is_good=True)
        finally:
            gate.end()
            lock.end()

    def close(self) -> None:
        """Close the files that are not in use; the next use opens them again."""
        self._kept.close()
        self._kept_gate.close()


def check_lock_file(lock_file: Path, identity: FileIdentity) -> None:
    """Check that the locked file is still the lock file at the path.

    Raises:
        StorageError: it was replaced, so that another process may hold the new lock.
        OSError: the file system failed.
    """
    if file_identity(lock_file) != identity:
        raise StorageError(
            f"The lock file {lock_file} was removed or replaced while it was locked. Nothing was "
            "written. Try again.",
            retryable=True,
        )


@contextmanager
def shared_lock(lock_file: Path, seconds: float) -> Iterator[None]:
    """Hold a shared lock for reading; needs no space, no inode and no write permission.

    If there is no lock file, the store was never written, and no lock is taken.

    Raises:
        StorageError: a writer holds the lock too long; the message contains the process.
        OSError: the file system failed, or a writer created the lock file during the block.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_flock(lock_file, fcntl.LOCK_SH, seconds, flags=os.O_RDONLY))
        except FileNotFoundError:
            yield
            if lock_file.exists():
                raise OSError(errno.EAGAIN, "the store was written during the read") from None
        else:
            yield


@lru_cache(maxsize=64)
def _gate_of(lock_file: Path) -> Path:
    return lock_file.with_name(".gate")


@lru_cache(maxsize=64)
def _folder_of(path: Path) -> Path:
    return path.parent


@contextmanager
def _gate_closed(gate: Path, seconds: float) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(_flock(gate, fcntl.LOCK_EX, seconds))
        except OSError as error:
            if not is_disk_full(error):  # without an inode for the gate the wait may only be longer
                raise
        yield


@contextmanager
def _flock(
    path: Path, how: int, seconds: float, *, flags: int = os.O_RDWR | os.O_CREAT
) -> Iterator[FileIdentity]:
    use = LockFileUse()
    try:
        yield _lock(use, path, how, seconds, flags=flags)
    finally:
        use.end()


def _lock(
    use: LockFileUse,
    path: Path,
    how: int,
    seconds: float,
    *,
    flags: int = os.O_RDWR | os.O_CREAT,
    is_first_waiter: bool = False,
) -> FileIdentity:
    """Lock the file at a path until the use ends; return its identity.

    Raises the same errors as `store_lock`.
    """
    # Each use has its own descriptor: a lock belongs to the open file description, so this also
    # works between threads.
    while True:
        file = use.begin(lambda: _open_lock(path, flags))
        holders = acquire_lock(file.fd, how, seconds, is_first_waiter=is_first_waiter)
        if holders is not None:
            raise StorageError(
                f"Cannot lock {path}: it has been locked by {holders} for longer than "
                f"{seconds:g} s. Nothing was changed. Retry when that process has finished; "
                "resume it if it is stopped.",
                retryable=True,
            )
        if file_identity(path) == file.identity:
            return file.identity
        # The file was replaced, and others lock the new one.
        use.end()
        if use.kept is not None:
            use.kept.close()


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
            share_like_folder(fd, _folder_of(path))
    except OSError:
        os.close(fd)
        raise
    return fd


def _wait_at_gate(gate: Path) -> None:
    # Only for a while: a deleter that waits for a stopped process must not stop all savers too.
    use = LockFileUse()
    try:
        with suppress(FileNotFoundError):  # there is no gate before the first deletion
            file = use.begin(lambda: _open_lock(gate, os.O_RDWR))
            acquire_lock(file.fd, fcntl.LOCK_SH, _GATE_WAIT, extend_if_running=False)
    finally:
        use.end()


def write_new(directory: Path, data: bytes) -> Path:
    """Write a durable temporary file to the directory; return its path, for the caller to link.

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
    """Give a new file or directory in a shared store the group and other access of its parent.

    Does nothing if only this user can write to the parent. Call it only for directories of the
    store, never for a world-writable directory such as `/tmp`. Files with more than one hard link
    are not changed: another user may have linked a private file of this user into the store.

    Raises:
        OSError: a stat, chmod or chown call failed.
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
    """Create one directory below the root of a store, with access as in `share_like_folder`.

    Raises:
        FileExistsError: the path exists.
        OSError: the file system failed.
    """
    make_folder(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        share_like_folder(fd, path.parent)
    finally:
        os.close(fd)


def link_new(directory: Path, data: bytes, target: Path, *, after: Path | None = None) -> None:
    """Write a durable file through the temporary directory; an existing target is not changed.

    The name of the file is durable only when the caller has synced its directory.

    Args:
        directory: the temporary directory.
        data: the content.
        target: the name to create.
        after: a directory whose names are made durable before the new name appears.

    Raises:
        OSError: the file system failed, or the target exists and is not a file.
    """
    written = None if is_regular(target) else write_new(directory, data)
    try:
        if after is not None:
            sync_directory(after)
        if written is not None:
            os.link(written, target)
    except FileExistsError:
        if not is_regular(target):
            raise OSError(f"{target} is not a regular file; remove it") from None
    finally:
        if written is not None:
            written.unlink()


def sweep_temporary_files(directory: Path) -> None:
    """Remove the files of dead writers from the temporary directory.

    Writers hold the lock while they have files there, so the caller must hold it exclusively.

    Raises:
        OSError: the file system failed.
    """
    for item in list(scan_directory(directory)):
        if re.fullmatch(_TEMPORARY_NAME, item.name) is None:
            continue
        if item.is_dir(follow_symlinks=False):
            with suppress(OSError):  # a directory with more than a `name` file is not from a writer
                remove_stream_folder(Path(item.path))
        else:
            os.unlink(item.path)


def remove_stream_folder(folder: Path) -> None:
    """Remove a directory that contains at most a `name` file.

    Raises:
        OSError: the file system failed, or the directory contains other files.
    """
    (folder / "name").unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def open_single_link(path: Path, flags: int) -> Iterator[int]:
    """Open a regular file with one hard link, for writing; a link could lead to any other file.

    Raises:
        OSError: the file system failed, or the file is a link, has several hard links, or is not
            regular.
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


def make_folder(path: Path) -> None:
    """Create one private directory. Raises OSError."""
    path.mkdir(mode=0o700)


def make_directory(path: Path, make: Callable[[Path], None] = make_folder) -> None:
    """Create a directory and its parents durably; existing directories are not changed.

    Args:
        path: the directory.
        make: creates it. Its parents are private.

    Raises:
        OSError: the file system failed.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        make(path)
    sync_directory(path.parent)


def sync_parents(path: Path) -> None:
    """Sync all parents of a path. The process that created one may have died before its sync.

    Raises:
        OSError: the file system failed.
    """
    for parent in path.parents:
        with suppress(PermissionError):  # such a directory was not created by this user
            sync_directory(parent)


def make_store_directory(path: Path) -> None:
    """Create a directory of the store, below its root, like `make_directory`.

    Raises:
        OSError: the file system failed, or the path is a link.
    """
    refuse_link(path)
    make_directory(path, make_store_folder)


def make_store_root(tmp: Path, objects: Path) -> None:
    """Create the two directories in the root of each store, like `make_store_directory`.

    Raises:
        StorageError: the store does not exist, and the user cannot write there.
        OSError: the file system failed, or a path is a link.
    """
    try:
        make_store_directory(tmp)
        make_store_directory(objects)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or objects.exists():
            raise
        hint = Hint("Make it writable, or choose another directory.", "new_store")
        raise StorageError(
            f"Cannot create the store {tmp.parent}: {error.strerror}.", hint=hint
        ) from error


def refuse_link(path: Path) -> None:
    """Check that a path is not a symbolic link, so that writes and deletions stay in the store.

    Raises:
        OSError: the path is a link, or the file system failed.
    """
    if path.is_symlink():
        raise OSError(f"{path} is a symbolic link, which may lead out of the store; remove it")


def scan_directory(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Iterate over a directory; a missing directory is treated as empty.

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
    """Return the first `most` bytes of a file; None if it is not a regular file.

    Raises:
        FileNotFoundError: the path does not exist.
        OSError: the file system failed.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    with open(os.open(path, os.O_RDONLY | _SAFE_FLAGS), "rb") as file:
        return file.read(most)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that changes to its entries are durable.

    Raises:
        OSError: the file system failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
