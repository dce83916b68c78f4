"""What is mounted where, and what kind of file system a path is on.

Owns reading the mount table; decides nothing but whether locks and shared memory can be trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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

TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of the mount table."""

    line: bytes
    id: bytes
    device: bytes
    place: bytes
    kind: bytes
    source: bytes


def mount_table(table: Path | None = None) -> Iterator[Mount]:
    """Iterate over what is mounted, in order: later mounts cover earlier ones at the same place.

    Args:
        table: that of another process; else this one's.

    Raises:
        OSError: there is none to read, as outside Linux.
    """
    text = (TABLE if table is None else table).read_bytes()
    for line in text.split(b"\n"):  # the kernel escapes no other end of a line
        left, _, right = line.partition(b" - ")
        fields, kinds = left.split(b" "), right.split(b" ")
        if len(fields) > 4 and len(kinds) > 1:
            place, source = _unescaped(fields[4]), _unescaped(kinds[1])
            yield Mount(line, fields[0], fields[2], place, kinds[0], source)


def open_table() -> int:
    """Return the mount table, open: `poll` tells by POLLPRI that it has changed. Raises OSError."""
    return os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that a path is on; None if it is on none.

    Where there is no mount table to read (outside Linux), nothing is known and None is returned.
    """
    place = Path(os.path.realpath(path))
    best: tuple[int, str] = (-1, "")
    try:
        for mount in mount_table():
            at = Path(os.fsdecode(mount.place))
            if (place == at or at in place.parents) and len(at.parts) >= best[0]:
                best = (len(at.parts), os.fsdecode(mount.kind))
    except OSError:
        return None
    return best[1] if best[1] in NETWORK else None


def pseudo_devices() -> frozenset[int]:
    """Return the devices of mounts that hold no data; none where there is no mount table."""
    found = set()
    try:
        for mount in mount_table():
            if os.fsdecode(mount.kind) in PSEUDO:
                major, _, minor = mount.device.partition(b":")
                found.add(os.makedev(int(major), int(minor)))
    except OSError:
        return frozenset()
    return frozenset(found)


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), text)
