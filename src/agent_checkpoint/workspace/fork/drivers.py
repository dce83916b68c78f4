"""Fork drivers: probes for the available drivers, and the records of forks for cleanup.

A driver is available only if a probe on the target file system succeeds. Each fork has a
private directory and a record, which is written first, so that the directories and mounts of a
killed process can be found and removed. Does not depend on trees, stores or workspaces.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from agent_checkpoint.backends.os_support.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.fork.namespace_view import VIEW, end_view, is_in_view, view_command
from agent_checkpoint.workspace.fork.overlay_mount import (
    NAME,
    call,
    changes,
    remove_tree,
    unmount,
    wrap_errors,
)
from agent_checkpoint.workspace.fork.reflink import can_reflink
from agent_checkpoint.workspace.safe_open import open_root

_TOKEN = re.compile(r"[0-9a-f]{16}")
_TORN_AFTER = 60.0
"""Seconds after which the writer of an unreadable record is assumed to be dead."""
_PROBE_SECONDS = 20.0

_PROBE = f".{NAME}-probe-"
_PROBE_COMMAND = (
    'read line < file && [ "$line" = base ] && echo more >> file && '
    "rm folder/file && rmdir folder && mkdir folder && : > new"
)
_PROBE_CHANGES = ChangedPaths({b"": {b"file", b"folder", b"new"}, b"folder": set()}, {b"folder"})


class _DriverSupport(NamedTuple):
    view: bool
    mount: bool
    reflink: bool


_support: dict[tuple[int, int], _DriverSupport] = {}
"""Probe results by device and user."""


def best_driver(place: Path) -> str:
    """Return the best driver for forks whose private directories are in a directory.

    `overlay`: mounts visible to all processes; `reflink`: copies that share blocks; else `copy`.
    The result is cached per file system.

    Raises:
        WorkspaceError: the directory does not exist, or is not writable.
    """
    support = _probe_drivers(place)
    return "overlay" if support.view and support.mount else "reflink" if support.reflink else "copy"


def can_view(place: Path) -> bool:
    """Return whether private overlay mounts work with upper directories in a directory.

    Raises:
        WorkspaceError: the directory does not exist, or is not writable.
    """
    return _probe_drivers(place).view


class ForkPaths(NamedTuple):
    """The record, private directory and mount point of one fork."""

    record: Path
    private: Path
    """The private directory, which contains the upper and work directories or the copy."""
    target: Path | None
    """Its mount point, if it is visible to all processes."""
    made_target: bool

    @property
    def upper(self) -> Path:
        """The upper directory, which contains the changes of the fork."""
        return self.private / "upper"

    @property
    def work(self) -> Path:
        """The work directory of the overlay."""
        return self.private / "work"

    @property
    def files(self) -> Path:
        """The directory of a copy, before the copy is renamed to its target."""
        return self.private / "files"

    @property
    def mount_name(self) -> str:
        """The source name of its mount in the mount table."""
        return f"{NAME}-fork-{self.record.stem}"

    @property
    def view_name(self) -> str:
        """The source name of its private mounts in the mount table."""
        return f"{VIEW}-{self.record.stem}"


def begin_fork(records: Path, beside: Path, target: Path | None = None) -> ForkPaths:
    """Write the record of a fork owned by this process, and create its private directory.

    Args:
        records: the directory of the records; created if missing.
        beside: the parent of the private directory; created if missing.
        target: the mount point, if it is visible to all processes; created if missing.

    Raises:
        UnsafeWorkspaceError: the target exists and is not an empty directory.
        WorkspaceError: a file or directory cannot be written.
    """
    token = secrets.token_hex(8)
    private = Path(os.path.realpath(beside)) / f"{NAME}-fork-{token}"
    target = target if target is None else Path(os.path.realpath(target))
    made = target is not None and not os.path.lexists(target)
    fork = ForkPaths(Path(os.path.realpath(records)) / f"{token}.json", private, target, made)
    text = json.dumps(
        {
            "owner": this_process(),
            "private": str(private),
            "target": None if target is None else str(target),
            "made_target": made,
        }
    )
    try:
        with wrap_errors(f"create the fork {str(private)!r}"):
            make_directory(records)
            fd = os.open(fork.record, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, text.encode())
                os.fsync(fd)  # a power loss must not leave directories without a record
            finally:
                os.close(fd)
            make_directory(private.parent)
            os.mkdir(private, 0o700)
            if target is not None:
                if made:
                    os.mkdir(target, 0o700)
                if not target.is_dir() or os.listdir(target):
                    raise UnsafeWorkspaceError(f"{str(target)!r} is not an empty directory.")
    except BaseException:
        with suppress(WorkspaceError, OSError):
            end_fork(fork)
        raise
    return fork


def end_fork(fork: ForkPaths, *, is_view_ended: bool = False) -> None:
    """Remove a fork: processes in its namespace, mount, private directory, target and record.

    A target that existed before the fork, or is not empty, is kept.

    Args:
        fork: its paths.
        is_view_ended: no process is in its namespace, so that none is looked for. A mount namespace
            that has lost its last process is gone.

    Raises:
        WorkspaceError: a part cannot be removed, or this process is in the fork. The record is
            kept.
    """
    if not is_view_ended and is_in_view(fork.view_name):
        raise WorkspaceError(
            f"This process runs in the fork {str(fork.private)!r}. Close the fork in another "
            "process."
        )
    with wrap_errors(f"remove the fork {str(fork.private)!r}"):
        if not is_view_ended:
            end_view(fork.view_name)
        if fork.target is not None:
            unmount(fork.target, name=fork.mount_name)
        remove_tree(fork.private)
        if fork.target is not None and fork.made_target:
            with suppress(OSError):  # not empty: keep user data
                os.rmdir(fork.target)
        with suppress(FileNotFoundError):
            os.unlink(fork.record)


def clean_up(records: Path) -> list[str]:
    """Remove the processes, mounts, directories and records of forks whose owner is dead.

    Only paths that contain the token of their record are removed, so a forged record cannot remove
    other files. Skips forks whose owner may be alive, and the fork that this process is in.

    Returns one message for each fork that could not be removed.
    """
    problems: list[str] = []
    try:
        fd = open_root(records)
    except FileNotFoundError:
        return problems
    except OSError as error:
        return [f"Cannot read {str(records)!r}: {error.strerror or error}."]
    try:
        holders = acquire_lock(fd, fcntl.LOCK_EX, LOCK_TIMEOUT)  # one cleanup at a time
        if holders is not None:
            return [f"{str(records)!r} is locked by {holders}; no forks were cleaned up."]
        for name in sorted(os.listdir(fd)):
            token, suffix = os.path.splitext(name)
            if suffix == ".json" and _TOKEN.fullmatch(token):
                try:
                    _clean_up(Path(os.path.realpath(records)) / name)
                except (OSError, ValueError, RecursionError, WorkspaceError) as error:
                    problems.append(str(error))
    finally:
        os.close(fd)
    return problems


def remove_old_probes(place: Path) -> None:
    """Remove the directories left by processes that were killed during a probe. Raises OSError."""
    for name in os.listdir(place):
        if name.startswith(_PROBE) and _age(place / name) > _PROBE_SECONDS:
            remove_tree(place / name)


def _probe_drivers(place: Path) -> _DriverSupport:
    with wrap_errors(f"create forks in {str(place)!r}"):
        key = (os.stat(place).st_dev, os.geteuid())
        if key not in _support:
            remove_old_probes(place)
            probe = Path(tempfile.mkdtemp(prefix=_PROBE, dir=place))
            try:
                _support[key] = _DriverSupport(
                    _probe_view(probe), _may_mount(probe), can_reflink(probe)
                )
            finally:
                remove_tree(probe)
        return _support[key]


def _probe_view(probe: Path) -> bool:
    """Read, write, remove and replace files in a private mount namespace.

    The result also applies to overlays mounted for all processes. A private mount is used because
    it disappears if this process is killed.
    """
    lower, upper = probe / "lower", probe / "upper"
    os.makedirs(lower / "folder")
    (lower / "file").write_text("base\n")
    (lower / "folder" / "file").touch()
    command = view_command(lower, upper, probe / "work", lower, ["/bin/sh", "-c", _PROBE_COMMAND])
    try:
        subprocess.run(
            command,
            cwd=lower,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        is_isolated = (lower / "file").read_text() == "base\n" and (lower / "folder/file").exists()
        is_right = (upper / "file").read_text() == "base\nmore\n"
        return is_isolated and is_right and changes(upper, lower) == _PROBE_CHANGES
    except (OSError, subprocess.SubprocessError, WorkspaceError):
        return False


def _may_mount(probe: Path) -> bool:
    # The kernel checks permission before it notices that there is nothing to unmount.
    try:
        call("umount2", os.fsencode(probe), 0)
    except (OSError, AttributeError) as error:
        return isinstance(error, OSError) and error.errno == errno.EINVAL
    return False


def _clean_up(record: Path) -> None:
    try:
        text = record.read_bytes()
    except FileNotFoundError:  # the owner has removed it
        return
    try:
        found = json.loads(text)
    except ValueError:
        # The writer was killed before it created anything else, or is still writing.
        if _age(record) > _TORN_AFTER:
            os.unlink(record)
        return
    try:
        private, target = Path(found["private"]), found["target"]
        made = found["made_target"] is True
        fork = ForkPaths(record, private, None if target is None else Path(target), made)
        is_ours = private.is_absolute() and private.name == f"{NAME}-fork-{record.stem}"
        is_left = is_ours and is_gone(found["owner"]) and not is_in_view(fork.view_name)
    except (KeyError, TypeError, AttributeError):  # written by a later version, or forged
        return
    if is_left:
        end_fork(fork)


def _age(path: Path) -> float:
    return time.time() - os.lstat(path).st_mtime


def this_process() -> dict[str, str]:
    """Return an identity of this process that is unique across machines and reboots."""
    host, boot = _this_machine(os.getpid())
    pid = str(os.getpid())
    return {"host": host, "boot": boot, "pid": pid, "started": _started(pid)}


@lru_cache(maxsize=1)
def _this_machine(pid: int) -> tuple[str, str]:
    """Return the host, and the boot with the namespace of process ids. Workers ask often."""
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        boot += " " + os.readlink("/proc/self/ns/pid")  # process ids are per container
    return socket.gethostname(), boot


def is_gone(owner: dict[str, str]) -> bool:
    """Return whether a process has ended; False if unknown, as for a process on another machine."""
    host, boot = _this_machine(os.getpid())
    if owner["host"] != host:
        return False
    if owner["boot"].split()[:1] != boot.split()[:1]:
        return True
    if owner["boot"] != boot:
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):  # the process of another user, or a forged record
        return False
    return _started(owner["pid"]) != owner["started"]


def _started(pid: str) -> str:
    """Return the start time of a process, since process ids are reused; empty if unknown."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # A zombie no longer holds resources.
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
