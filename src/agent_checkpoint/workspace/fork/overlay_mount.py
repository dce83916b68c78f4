"""Overlay mounts: mounts and unmounts them, reads their changes, removes their directories.

Writes through a mount go to the upper directory, and a removed name leaves a whiteout there, so the
upper directory is the complete difference. To keep it complete, directories are not redirected
(`redirect_dir=nofollow`: `mv` copies them instead), and files are copied up with their content
(`metacopy=off`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.mounts import Mount, mount_table
from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.safe_open import DIRECTORY, DirectoryOpener, open_root

NAME = "agent-checkpoint"
"""The source name of our mounts in the mount table, or its prefix. No other mount is unmounted."""

_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_OPTIONS = "redirect_dir=nofollow,metacopy=off,index=off,xino=auto"
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")

_libc = ctypes.CDLL(None, use_errno=True)


def mount_overlay(lower: Path, upper: Path, work: Path, target: Path, *, name: str = NAME) -> None:
    """Mount an overlay of the lower directory at the target.

    The lower directory must not change while it is mounted, and mounts below it are not visible.
    The upper one is created if missing, with the owner and mode of the lower one. It must belong to
    only one mount at a time; the kernel does not check this.

    Args:
        lower: the lower directory.
        upper: the upper directory. It may come from an earlier mount of the same lower directory.
        work: a directory on the same file system as the upper one; created if missing.
        target: an existing directory; may be the lower directory.
        name: the source name in the mount table; begins with NAME.

    Raises:
        UnsafeWorkspaceError: one of the directories contains another.
        WorkspaceError: the system call failed.
    """
    if not sys.platform.startswith("linux"):
        raise WorkspaceError("Overlay mounts are available on Linux only.")
    _check_disjoint(lower, upper, work)
    with wrap_errors(f"mount an overlay at {str(target)!r}"):
        _create_like(lower, upper)
        # New for each mount: the kernel refuses a work directory of an earlier volatile mount.
        fresh = work / os.urandom(4).hex()
        for place in (work, fresh):
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
        with ExitStack() as opened:
            places = []
            for path in (lower, upper, fresh, target):
                fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, fd)
                # Not the path itself: commas, colons and backslashes need escapes that differ
                # between kernels, and all options must fit into one memory page.
                places.append(f"/proc/self/fd/{fd}")
            _mount(places, name, _xattr_option(upper))


def unmount(target: Path, *, name: str = NAME) -> bool:
    """Unmount our mount at a directory; return False if a process still uses it.

    Does nothing if the mount there is not ours.

    Raises:
        WorkspaceError: the system call failed.
    """
    is_free = True
    place = os.path.realpath(os.fsencode(target))
    with wrap_errors(f"unmount {str(target)!r}"):
        while is_mounted(target, name=name):
            try:
                call("umount2", place, _UMOUNT_NOFOLLOW)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                # A process has a file or its current directory there. A lazy unmount detaches the
                # mount now, so that a forgotten shell does not keep a fork alive.
                is_free = False
                call("umount2", place, _MNT_DETACH | _UMOUNT_NOFOLLOW)
    return is_free


def is_mounted(target: Path, *, name: str = NAME) -> bool:
    """Return whether the mount at a directory has a source name; NAME matches all our mounts."""
    place = os.path.realpath(os.fsencode(target))
    found = None
    for mount in mounts():
        if mount.place == place:
            found = mount  # later mounts hide earlier ones
    if found is None or (name == NAME and found.source.startswith(os.fsencode(NAME + "-"))):
        return found is not None and found.kind == b"overlay"
    return is_called(found, name)


def mounts_below(directory: Path) -> list[Path]:
    """Return the mount points in a directory, which an overlay of it would not show."""
    prefix = os.path.join(os.path.realpath(os.fsencode(directory)), b"")
    return [Path(os.fsdecode(mount.place)) for mount in mounts() if mount.place.startswith(prefix)]


def is_called(mount: Mount, name: str) -> bool:
    """Return whether a mount is an overlay with a source name."""
    return mount.kind == b"overlay" and mount.source == os.fsencode(name)


def mounts(process: str = "self") -> Iterator[Mount]:
    """Iterate over the mount table of a process, in order; empty without /proc."""
    with suppress(OSError):
        yield from mount_table(Path(f"/proc/{process}/mountinfo"))


def changes(upper: Path, lower: Path | None = None) -> ChangedPaths:
    """Read the changes from an upper directory, mounted or not.

    `replaced` contains the opaque directories and, if the lower directory is given, those that it
    lacks. `names` has all their entries.

    Raises:
        WorkspaceError: the upper directory cannot be read, so a full scan is needed.
    """
    found = ChangedPaths({}, set())
    with wrap_errors(f"read {str(upper)!r}"), ExitStack() as opened:
        above = opened.enter_context(DirectoryOpener(open_root(upper)))
        below = None
        if lower is not None:
            below = opened.enter_context(DirectoryOpener(open_root(lower)))
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            waiting += _read_changes(path, above.open(path), below, found)
    return found


def remove_tree(path: Path) -> None:
    """Remove a directory tree, including read-only directories, without following links.

    Raises:
        OSError: an entry cannot be removed, for example a mount point.
    """
    try:
        root = os.open(path, DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.chmod(root, 0o700)
        names = os.listdir(root)
        while names:
            names += _remove(root, names.pop())
    finally:
        os.close(root)
    os.rmdir(path)


def _read_changes(
    path: bytes, fd: int, below: DirectoryOpener | None, found: ChangedPaths
) -> list[bytes]:
    prefix = path + b"/" if path else b""
    if path and (_is_opaque(fd) or _is_new(path, below, found.replaced)):
        found.replaced.add(path)
    names = found.names[path] = set()
    directories = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            names.add(name)
            if entry.is_dir(follow_symlinks=False):
                directories.append(prefix + name)
    return directories


def _is_opaque(fd: int) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(fd, name) == b"y":
                return True
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                raise
    return False


def _is_new(path: bytes, below: DirectoryOpener | None, whole: set[bytes]) -> bool:
    if path.rpartition(b"/")[0] in whole:
        return True
    if below is None:
        return False
    try:
        below.open(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True  # a link
    return False


def call(function: str, *arguments: bytes | int | None) -> None:
    """Call a function of the C library that returns 0 on success. Raises OSError."""
    # ctypes passes an int with 32 bits; some of these functions take 64.
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    if getattr(_libc, function)(*passed) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mount(places: list[str], name: str, xattr_option: str) -> None:
    lower, upper, work, target = places
    options = f"lowerdir={lower},upperdir={upper},workdir={work},{_OPTIONS}{xattr_option}"
    # Try `volatile` first, which omits syncs. Without it, the first change of each file would wait
    # for the disk. After a power loss a fork is discarded and not mounted again.
    for more in (",volatile", ""):
        try:
            data, flags = (options + more).encode(), _MS_NOSUID | _MS_NODEV
            call("mount", name.encode(), target.encode(), b"overlay", flags, data)
            return
        except OSError as error:
            if error.errno != errno.EINVAL or not more:  # Linux before 5.10 does not support it
                raise


def _xattr_option(upper: Path) -> str:
    # In a user namespace only `user.` attributes may be set.
    for kind, option in (("trusted", ""), ("user", ",userxattr")):
        with suppress(PermissionError):
            os.setxattr(upper, f"{kind}.{NAME}", b"")
            os.removexattr(upper, f"{kind}.{NAME}")
            return option
    raise OSError(errno.EPERM, "extended attributes cannot be set")


def _create_like(lower: Path, upper: Path) -> None:
    # The root of the mount has the owner and mode of the upper directory.
    found = os.stat(lower)
    with suppress(FileExistsError):
        os.mkdir(upper, 0o700)
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(OSError):  # only root may, except in a user namespace
                os.chown(upper, found.st_uid, found.st_gid)
        os.chmod(upper, found.st_mode & 0o777)


def _check_disjoint(*directories: Path) -> None:
    places = [os.path.join(os.path.realpath(path), "") for path in directories]
    for number, place in enumerate(places):
        for other in places[:number]:
            if place.startswith(other) or other.startswith(place):
                raise UnsafeWorkspaceError(
                    f"{place!r} and {other!r} cannot be directories of one overlay: one contains "
                    "the other."
                )


@contextmanager
def wrap_errors(action: str) -> Iterator[None]:
    """Convert an OSError in the block into a WorkspaceError with the failed action."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"Cannot {action}: {error.strerror or error}.") from error


def _remove(root: int, name: str) -> list[str]:
    """Remove an entry; the subdirectories of a directory are first moved up to the root.

    So paths do not get too long, and at most two directories are open at a time.
    """
    try:
        _unlock(root, name)
        fd = os.open(name, DIRECTORY, dir_fd=root)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=root)
        return []
    moved = []
    try:
        with os.scandir(fd) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                _unlock(fd, entry.name)  # moving it also needs access
                moved.append(os.urandom(8).hex())
                os.rename(entry.name, moved[-1], src_dir_fd=fd, dst_dir_fd=root)
            else:
                os.unlink(entry.name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=root)
    return moved


def _unlock(parent: int, name: str) -> None:
    """Make a directory accessible. The kernel creates some directories with mode 0."""
    if not sys.platform.startswith("linux"):
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
