"""What a workspace is on. Owns which file systems tell this kernel of every change.

An event is raised where the change is made: on another machine, or in a process that only shows
files, nobody here hears of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.backends.disk.mounts import Mount, mount_table

LOCAL = frozenset(
    b"bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs fuseblk hfsplus iso9660 jfs nilfs2 ntfs ntfs3"
    b" overlay ramfs reiserfs rootfs squashfs tmpfs ubifs udf vfat xfs zfs".split()
)
"""Where every change comes by way of this kernel. Not on a network, in FUSE, /proc, shared folders
of a virtual machine; nor on what is not known, for a change that is not told would be lost."""

_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)


class Root(NamedTuple):
    """A directory whose changes are all told, and by what that is known again."""

    path: bytes
    found: os.stat_result
    mounts: frozenset[Mount]


def look_at_root(fd: int) -> Root:
    """Return what there is to know of an open root.

    Raises:
        OSError: it may change unseen, there or below, or that cannot be told.
    """
    path = os.readlink(b"/proc/self/fd/%d" % fd)
    # By its number: of several mounts at one place, one hides the others.
    number = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{fd}").read_bytes())
    own = number and number[1]
    mounts = mounts_around(path)
    if not any(mount.id == own for mount in mounts):
        raise OSError(f"it is not known what kind of file system {_shown(path)} is on")
    for mount in mounts:
        is_seen = mount.id == own or mount.place.startswith(_with_slash(path))
        if is_seen and mount.kind not in LOCAL:
            raise OSError(f"{_shown(mount.place)} is {_shown(mount.kind)}, which may change unseen")
    return Root(path, os.fstat(fd), mounts)


def mounts_around(path: bytes) -> frozenset[Mount]:
    """Return what is mounted at a path, above it and below it. Raises OSError."""
    inside = _with_slash(path)
    found = []
    for mount in mount_table():
        around = _with_slash(mount.place)
        if around.startswith(inside) or inside.startswith(around):
            found.append(mount)
    return frozenset(found)


def _with_slash(path: bytes) -> bytes:
    return path if path.endswith(b"/") else path + b"/"


def _shown(path: bytes) -> str:
    return repr(os.fsdecode(path))
