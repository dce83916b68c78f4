"""The file systems of a workspace. Owns which raise all events, and what identifies a mount.

An event is raised only in the kernel that makes the change. Changes on another machine (network
file systems) or in a server process (FUSE) raise none here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from agent_checkpoint.backends.os_support.mounts import Mount, mount_table
from agent_checkpoint.named_tuple import NamedTuple

LOCAL = frozenset(
    b"bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs fuseblk hfsplus iso9660 jfs nilfs2 ntfs ntfs3"
    b" overlay ramfs reiserfs rootfs squashfs tmpfs ubifs udf vfat xfs zfs".split()
)
"""File systems that only this kernel changes. Not network file systems, FUSE, /proc or shared
folders of virtual machines. Unknown ones count as unsafe: a change without an event would be lost.
"""

_WITH_INSTANCE = (b"ext4", b"xfs")
"""File systems with a directory in /sys/fs for as long as they are mounted."""

_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


class WatchedRoot(NamedTuple):
    """A root directory that can be watched, with the values that identify it."""

    path: bytes
    stat: os.stat_result
    mounts: frozenset[Mount]


def inspect_root(fd: int) -> WatchedRoot:
    """Return the values that identify an open root directory.

    Raises:
        OSError: the root or a mount below it may change without events, or its file system is
            unknown.
    """
    path, mounts = _place(fd)
    for mount in _visible(fd, path, mounts):
        if mount.kind not in LOCAL:
            raise OSError(
                f"{_shown(mount.place)} is {_shown(mount.kind)}, which may change without events"
            )
        # Events of a mounted file go to the directory from which it was mounted.
        if os.path.exists(mount.place) and not os.path.isdir(mount.place):
            raise OSError(
                f"{_shown(mount.place)} is a mounted file, which may change without events"
            )
    return WatchedRoot(path, os.fstat(fd), mounts)


def mounts_identity(fd: int) -> bytes | None:
    """Return a value that is another one after a reboot or when a mount below a root was replaced.

    None if the root, or a mount below it, is not one of those for which this can be told and whose
    directories have new times after each change of their names.
    """
    try:
        found = [Path("/proc/sys/kernel/random/boot_id").read_bytes()]
        for mount in sorted(_visible(fd, *_place(fd)), key=lambda mount: mount.place):
            if mount.kind in _WITH_INSTANCE:
                device = os.path.basename(os.readlink(b"/sys/dev/block/" + mount.device))
                # Made at each mount. The id of a mount and the number of its device are reused.
                made = os.stat(b"/sys/fs/%b/%b" % (mount.kind, device)).st_ino
            elif mount.kind == b"tmpfs":
                made = 0  # gone when it is not mounted
            else:
                return None
            found += [mount.place, mount.kind, mount.device, b"%d" % made]
    except OSError:
        return None
    return hashlib.sha256(b"\0".join(found)).digest()[:8]


def _place(fd: int) -> tuple[bytes, frozenset[Mount]]:
    """Return the path of an open root and the mounts around it. Raises OSError."""
    path = os.readlink(b"/proc/self/fd/%d" % fd)
    return path, mounts_around(path)


def _visible(fd: int, path: bytes, mounts: Collection[Mount]) -> list[Mount]:
    """Return the mount of an open root and those below it. Raises OSError if it is unknown."""
    own = mount_id(fd)
    if not any(mount.id == own for mount in mounts):
        raise OSError(f"the file system of {_shown(path)} is unknown")
    below = _with_slash(path)
    return [mount for mount in mounts if mount.id == own or mount.place.startswith(below)]


def mount_id(fd: int) -> bytes | None:
    """Return the id of the mount through which a file was opened. Raises OSError.

    The path does not tell: of several mounts at one path, one hides the others.
    """
    found = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{fd}").read_bytes())
    return found and found[1]


def mounts_around(path: bytes) -> frozenset[Mount]:
    """Return the mounts at a path, above it and below it. Raises OSError."""
    inside = _with_slash(path)
    mounts = []
    for mount in mount_table():
        around = _with_slash(mount.place)
        if around.startswith(inside) or inside.startswith(around):
            mounts.append(mount)
    return frozenset(mounts)


def _with_slash(path: bytes) -> bytes:
    return path if path.endswith(b"/") else path + b"/"


def _shown(path: bytes) -> str:
    return repr(os.fsdecode(path))
