"""The mount points of the stores that the hook saves to.

Keeps the hook from creating a new store in place of one whose disk is not mounted.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from contextlib import suppress

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.backends.base import Backend

_SUFFIX = ".mount"
_MAX_BYTES = 4096


def unmounted(backend: Backend) -> str | None:
    """Return that a store is missing because its disk is not mounted; None if it is there, or new.

    A store that was deleted from a mounted disk counts as new.
    """
    path, marker = backend.properties.path, backend.properties.marker
    if path is None or (marker is not None and marker.exists()):
        return None
    mount = _read(_name(path))
    if mount is None or os.path.ismount(mount):
        return None
    again = f"agent-checkpoint --store {shlex.quote(str(path))} save"
    return (
        f"Nothing is saved: the store {path} was on {os.fsdecode(mount)}, which is not mounted. "
        f"Mount it, or create a new store: `{again}`."
    )


def remember_mount(backend: Backend) -> None:
    """Note the mount point of a store, unless it is on the root file system."""
    path = backend.properties.path
    if path is None:
        return
    name, mount = _name(path), _mount_point(os.fsencode(path))
    directory = open_state_dir() if mount != (_read(name) or b"/") else None
    if directory is None:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # a full disk, for example; the save itself reports that
            fd = os.open(name, flags, 0o600, dir_fd=directory)
            try:
                os.write(fd, mount)
            finally:
                os.close(fd)
    finally:
        os.close(directory)


def _read(name: str) -> bytes | None:
    directory = open_state_dir()
    if directory is None:
        return None
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            return os.read(fd, _MAX_BYTES) or None
        finally:
            os.close(fd)
    except OSError:
        return None
    finally:
        os.close(directory)


def _name(path: os.PathLike[str]) -> str:
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}{_SUFFIX}"


def _mount_point(path: bytes) -> bytes:
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
