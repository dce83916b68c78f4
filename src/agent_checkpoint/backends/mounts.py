"""What kind of file system a path is on.

Owns reading the mount table; decides nothing but whether locks and shared memory can be trusted.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "vboxsf",
    ]
)
"""File systems shared between machines, where SQLite's WAL mode cannot work."""

PSEUDO = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "sysfs",
        "tracefs",
    ]
)
"""What looks like a file system and is the kernel: nothing in there is anybody's data."""

_MOUNT_TABLE = Path("/proc/self/mountinfo")


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that a path is on; None if it is on none.

    Where there is no mount table to read (outside Linux), nothing is known and None is returned.
    """
    place = Path(os.path.realpath(path))
    try:
        table = _MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    best: tuple[int, str] = (-1, "")
    for line in table.split("\n"):  # the kernel escapes no other end of a line
        if not line:
            continue
        mount, kind = _parse(line)
        # Later mounts cover earlier ones at the same place.
        if (place == mount or mount in place.parents) and len(mount.parts) >= best[0]:
            best = (len(mount.parts), kind)
    return best[1] if best[1] in NETWORK else None


def pseudo_devices() -> frozenset[int]:
    """Return the devices of mounts that hold no data; none where there is no mount table."""
    try:
        table = _MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return frozenset()
    found = set()
    for line in table.split("\n"):
        if line and _parse(line)[1] in PSEUDO:
            major, _, minor = line.split(" ")[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _parse(line: str) -> tuple[Path, str]:
    left, _, right = line.partition(" - ")
    mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split(" ")[4])
    return Path(mount), right.split(" ")[0]
