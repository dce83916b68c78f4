"""What backends on a POSIX file system share.

Owns durable writes, the store lock, the mapping of OS errors and the distrust of what a store that
came from elsewhere may hold; knows no layout and no format.
"""

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
# Neither follows a link out of the store nor waits for the other end of a pipe.
_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GATE_WAIT = 2.0  # seconds
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{24}")

FileIdentity = tuple[int, int]
"""Which file it is, whatever its name: the device and the inode."""


def file_identity(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Return which file is at a path, None if there is none.

    Raises:
        OSError: the file system refuses to tell.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def store_url(scheme: str, path: Path, *, shared: bool = False) -> str:
    """Return the store URL of a directory."""
    with block_forks():
        from urllib.parse import quote  # slow to load, and seldom wanted

    return f"{scheme}://{quote(str(path))}{'?shared=1' if shared else ''}"


def check_path(path: object) -> Path:
    """Return the path that was given, with ~ expanded, if it can be one.

    Raises:
        InvalidInputError: it is empty, not text, or text that cannot be a path.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInputError(f"A path is text or a Path, not {type(text).__name__}.")
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
    except RuntimeError as error:  # ~name of nobody
        raise InvalidInputError(f"{short_repr(text)} is not a path: {error}") from None


def check_lock_timeout(seconds: object) -> float:
    """Return a time to wait for a lock, if it is one. Raises InvalidInputError."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):  # type: ignore[operator]
        raise InvalidInputError(f"lock_timeout counts seconds, not {short_repr(seconds)}.")
    return float(seconds)  # type: ignore[arg-type]


@contextmanager
def wrap_os_errors(action: str) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError that says what could not be done.

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
    """Tell whether the error says that there is no room left."""
    return error.errno in _FULL


def free_bytes(path: Path) -> int:
    """Return how many bytes can still be written at a path, which need not exist yet.

    Raises:
        OSError: the file system refuses to tell.
    """
    return disk_space(path)[0]


def disk_space(path: Path) -> tuple[int, int]:
    """Return how many bytes the file system of a path has free, and how many in all.

    Raises:
        OSError: the file system refuses to tell.
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
    """Hold the lock: shared by savers, exclusive for what deletes. Released also by a crash.

    The kernel lets a new saver share the lock while a deleter waits for it, so that many savers
    would keep the deleter out for ever. It therefore closes a gate, which is a lock on a second
    file beside the first, and savers wait a while before it.

    Raises:
        StorageError: another process holds it for longer than `seconds`; the message names it.
        OSError: the file system refuses, or a lock file is a link or not a file.
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
    """Hold a lock alone, and give which file it is. Released also by a crash.

    Raises:
        StorageError: another process holds it for longer than `seconds`; the message names it.
        OSError: the file system refuses, or the lock file is a link or not a file.
    """
    with _flock(lock_file, fcntl.LOCK_EX, seconds) as identity:
        yield identity


@contextmanager
def queued_lock(lock_file: Path, seconds: float) -> Iterator[FileIdentity]:
    """Hold a lock alone, as `held` does, after those who have waited for it before.

    There is no queue at a lock that is asked for again and again: whoever has just let go of it
    would take it again at once. So only the holder of the gate asks for it, which lets go of the
    gate as soon as it has the lock.

    Raises:
        StorageError: others hold either for longer than `seconds`; the message names them.
        OSError: the file system refuses, or a lock file is a link or not a file.
    """
    with ExitStack() as stack:
        with _gate_closed(lock_file.with_name(".gate"), seconds):
            lock = _flock(lock_file, fcntl.LOCK_EX, seconds, is_first_waiter=True)
            identity = stack.enter_context(lock)
        yield identity


def check_lock_file(lock_file: Path, identity: FileIdentity) -> None:
    """Make sure that the file whose lock is held is still the lock file.

    Raises:
        StorageError: it is not, so that somebody else may hold the lock of another file.
        OSError: the file system refuses to tell.
    """
    if file_identity(lock_file) != identity:
        raise StorageError(
            f"The lock file {lock_file} was removed or replaced while it was locked, so nothing "
            "was written. Try again.",
            retryable=True,
        )


@contextmanager
def shared_lock(lock_file: Path, seconds: float) -> Iterator[None]:
    """Hold a lock shared, for who only reads: needs no space, no inode and no right to write.

    Without a lock file nobody has written here yet.

    Raises:
        StorageError: a writer holds it for too long; the message names it.
        OSError: the file system refuses; or a writer came while there was nothing to lock.
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
            if not is_disk_full(error):  # without an inode for a gate it may only take longer
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
    # Each use opens the file anew, because a lock belongs to the open file: that makes it work
    # between threads as well as between processes.
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
            # Else the file was replaced while this one waited, and others lock the new one.
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
    """Write a durable file of a new random name into the directory, for the caller to link.

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
    """Let who uses a shared store use what was just made in one of its folders; else do nothing.

    A folder that only this user may write is no shared one: what is in it stays private. The folder
    must be one of the store: all users may write `/tmp`, and what is in there is still private. A
    file with other names was not made here: others may have linked one of this user's to the name.

    Raises:
        OSError: the file system refuses.
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
    """Make one private directory below the root of a store; it is for all who share the store.

    Raises:
        FileExistsError: something is there.
        OSError: the file system refuses.
    """
    path.mkdir(mode=0o700)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        share_like_folder(fd, path.parent)
    finally:
        os.close(fd)


def link_new(directory: Path, data: bytes, target: Path) -> None:
    """Write a durable file by way of the directory; a target that exists is left as it is.

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
    """Remove what dead writers left in the directory for new files.

    Writers hold the lock while they have files there, so the caller must hold it alone.

    Raises:
        OSError: the file system failed.
    """
    for item in list(scan_directory(directory)):
        if _TEMPORARY_NAME.fullmatch(item.name) is None:
            continue
        if item.is_dir(follow_symlinks=False):
            with suppress(OSError):  # one that holds more than its name is not from a writer
                remove_stream_folder(Path(item.path))
        else:
            os.unlink(item.path)


def remove_stream_folder(folder: Path) -> None:
    """Remove a directory that holds at most its `name`.

    Raises:
        OSError: the file system refuses, or the directory holds more.
    """
    (folder / "name").unlink(missing_ok=True)
    folder.rmdir()


@contextmanager
def open_single_link(path: Path, flags: int) -> Iterator[int]:
    """Open a file to write that has this name only: a link may lead to any file of this user's.

    Raises:
        OSError: the file system refuses; or it is a link, has other names, or is not a file.
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
    """Open a file as `open(…, opener=)` does; a new one is private whatever the umask is."""
    return os.open(path, flags, 0o600)


def make_directory(path: Path) -> None:
    """Make a private directory and its parents, durably; one that exists is left as it is.

    Raises:
        OSError: the file system refuses.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    sync_directory(path.parent)


def sync_parents(path: Path) -> None:
    """Make it durable that a path exists: whoever made a directory of it may have died too early.

    Raises:
        OSError: the file system failed.
    """
    for parent in path.parents:
        with suppress(PermissionError):  # then it is not one that we made
            sync_directory(parent)


def make_store_directory(path: Path) -> None:
    """Make a directory of the store, below its root, as make_directory does.

    Raises:
        OSError: the file system refuses, or a link is in its place.
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
    """Iterate over a directory; one that is missing is an empty one.

    Raises:
        OSError: the file system failed.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as items:
        yield from items


def is_regular(path: Path) -> bool:
    """Tell whether a regular file is there, and not a link to one.

    Raises:
        OSError: the file system refuses to tell.
    """
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_regular(path: Path, most: int = -1) -> bytes | None:
    """Return the first `most` bytes of a file, or None if it is a link, a pipe or a device.

    Raises:
        FileNotFoundError: nothing is there.
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
