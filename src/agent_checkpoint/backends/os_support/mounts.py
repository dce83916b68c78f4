"""Reads the mount table; determines the file system type of a path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.named_tuple import NamedTuple

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
"""File systems shared between machines, on which the WAL mode of SQLite does not work."""

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
"""Kernel pseudo file systems, which contain no user data."""

TABLE = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """An entry of the mount table."""

    line: bytes
    id: bytes
    device: bytes
    place: bytes
    kind: bytes
    source: bytes


def mount_table(table: Path | None = None) -> Iterator[Mount]:
    """Iterate over the mounts in order: a later mount hides an earlier one at the same path.

    Args:
        table: the mount table of another process; this process by default.

    Raises:
        OSError: there is no mount table, as outside Linux.
    """
    text = (TABLE if table is None else table).read_bytes()
    for line in text.split(b"\n"):  # other line separators are not escaped by the kernel
        left, _, right = line.partition(b" - ")
        fields, kinds = left.split(b" "), right.split(b" ")
        if len(fields) > 4 and len(kinds) > 1:
            place, source = _unescaped(fields[4]), _unescaped(kinds[1])
            yield Mount(line, fields[0], fields[2], place, kinds[0], source)


class MountTable:
    """The open mount table, which tells whether it has changed.

    Also mounts that were there for a moment only count: they may have hidden files.
    """

    def __init__(self) -> None:
        """Open the table; the caller closes `fd`. Raises OSError."""
        with block_forks():
            import select  # not needed by most who read the table

        self.fd = os.open(TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLPRI)

    def have_changed(self) -> bool:
        """Return whether a mount was added or removed since the table was opened or last asked."""
        return bool(self._poll.poll(0))


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system of a path; None if it is local or unknown.

    Without a mount table (outside Linux) it is unknown.
    """
    place = os.path.join(os.path.realpath(os.fsencode(path)), b"")
    longest, kind = -1, b""
    try:
        for mount in mount_table():
            at = os.path.join(mount.place, b"")
            if place.startswith(at) and len(at) >= longest:
                longest, kind = len(at), mount.kind
    except OSError:
        return None
    name = os.fsdecode(kind)
    return name if name in NETWORK else None


def pseudo_devices() -> frozenset[int]:
    """Return the devices of pseudo file systems; empty without a mount table."""
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
    return _ESCAPE.sub(lambda octal: bytes([int(octal[1], 8)]), text) if b"\\" in text else text
