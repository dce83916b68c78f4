"""What forks can be made of here, and what they leave. Owns the probes and the records of forks.

A driver is taken for working only after it has worked, on the file system that it is meant for.
Each fork has a private directory, and a record that is written before anything else is made: what
a killed process leaves can be found and taken away. Knows no tree, no store and no workspace.
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
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.backends.disk.lock_wait import LOCK_TIMEOUT, acquire_lock
from agent_checkpoint.backends.disk.posix import make_directory
from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.fork.namespace_view import VIEW, end_view, is_in_view, view_command
from agent_checkpoint.workspace.fork.overlay_mount import (
    NAME,
    OverlayChanges,
    call,
    changes,
    remove_tree,
    unmount,
)
from agent_checkpoint.workspace.fork.tree_copy import can_reflink

_TOKEN = re.compile(r"[0-9a-f]{16}")
_TORN_AFTER = 60.0
"""Seconds after which a record that cannot be read is taken for one that was never written."""
_LONGEST_PROBE = 20.0

_PROBE = f".{NAME}-probe-"
_PROBE_COMMAND = (
    'read line < file && [ "$line" = base ] && echo more >> file && '
    "rm folder/file && rmdir folder && mkdir folder && : > new"
)
_PROBE_CHANGES = OverlayChanges({b"": {b"file", b"folder", b"new"}, b"folder": set()}, {b"folder"})


class _Tried(NamedTuple):
    view: bool
    mount: bool
    reflink: bool


_tried: dict[tuple[int, int], _Tried] = {}
"""What was found out, by device and user."""


def best_driver(place: Path) -> str:
    """Return the best driver for forks whose private directories are in an existing directory.

    "overlay": mounts that everybody sees; "reflink": copies that share blocks; else "copy". What
    was found is remembered for the file system.

    Raises:
        WorkspaceError: the directory is not there, or cannot be written to.
    """
    tried = _try(place)
    return "overlay" if tried.view and tried.mount else "reflink" if tried.reflink else "copy"


def can_view(place: Path) -> bool:
    """Tell whether processes can have private views whose upper directories are in a directory.

    Raises:
        WorkspaceError: the directory is not there, or cannot be written to.
    """
    return _try(place).view


class ForkPaths(NamedTuple):
    """The places of one fork."""

    record: Path
    private: Path
    """The directory of the fork's own, for what is neither the user's nor another fork's."""
    target: Path | None
    """Where it is mounted for all to see, if it is."""
    made_target: bool

    @property
    def upper(self) -> Path:
        """Where its changes go."""
        return self.private / "upper"

    @property
    def work(self) -> Path:
        """What the kernel needs beside them."""
        return self.private / "work"

    @property
    def files(self) -> Path:
        """Where a copy is made; it may stay there, or be moved to where it is wanted."""
        return self.private / "files"

    @property
    def mount_name(self) -> str:
        """What the mount table shall call its mount."""
        return f"{NAME}-fork-{self.record.stem}"

    @property
    def view_name(self) -> str:
        """What the mount table shall call its views."""
        return f"{VIEW}-{self.record.stem}"


def begin_fork(records: Path, beside: Path, target: Path | None = None) -> ForkPaths:
    """Write down that this process makes a fork, and make its private directory.

    Args:
        records: the directory of the records, made if it is missing.
        beside: the directory for the private one, made if it is missing.
        target: where the fork will be mounted for all to see; made if it is missing.

    Raises:
        UnsafeWorkspaceError: the target is not an empty directory.
        WorkspaceError: something cannot be written.
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
        make_directory(records)
        fd = os.open(fork.record, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)  # a power cut must not leave directories that nobody knows
        finally:
            os.close(fd)
        make_directory(private.parent)
        os.mkdir(private, 0o700)
        if target is not None:
            if made:
                os.mkdir(target, 0o700)
            if not target.is_dir() or os.listdir(target):
                raise UnsafeWorkspaceError(f"{str(target)!r} is not an empty directory.")
    except BaseException as error:
        with suppress(WorkspaceError, OSError):
            end_fork(fork)
        if isinstance(error, OSError):
            raise _failure(f"make the fork {str(private)!r}", error) from error
        raise
    return fork


def end_fork(fork: ForkPaths) -> None:
    """Take a fork away: processes in its views, its mount, private directory, target and record.

    A target that was there before, or that holds something, stays.

    Raises:
        WorkspaceError: something is in the way, or this is a process of its view. The record stays.
    """
    if is_in_view(fork.view_name):
        raise WorkspaceError(f"This process sees the fork {str(fork.private)!r}: end it outside.")
    try:
        end_view(fork.view_name)
        if fork.target is not None:
            unmount(fork.target, name=fork.mount_name)
        remove_tree(fork.private)
        if fork.target is not None and fork.made_target:
            with suppress(OSError):  # what somebody put there is theirs
                os.rmdir(fork.target)
        with suppress(FileNotFoundError):
            os.unlink(fork.record)
    except OSError as error:
        raise _failure(f"remove the fork {str(fork.private)!r}", error) from error


def clean_up(records: Path) -> list[str]:
    """Take away what forks of dead processes left: views, mounts, directories and records.

    Only what carries the token of its record is touched, so that no record, whoever wrote it, can
    do harm. Forks of a process that may be alive are left alone, as is one seen from inside.

    Returns what could not be taken away, in words.
    """
    troubles: list[str] = []
    try:
        fd = os.open(records, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return troubles
    except OSError as error:
        return [str(_failure(f"read {str(records)!r}", error))]
    try:
        holders = acquire_lock(fd, fcntl.LOCK_EX, LOCK_TIMEOUT)  # two would stumble over each other
        if holders is not None:
            return [f"{str(records)!r} is locked by {holders}: nothing was cleaned up."]
        for name in sorted(os.listdir(fd)):
            token, suffix = os.path.splitext(name)
            if suffix == ".json" and _TOKEN.fullmatch(token):
                try:
                    _clean_up(Path(os.path.realpath(records)) / name)
                except (OSError, ValueError, RecursionError, WorkspaceError) as error:
                    troubles.append(str(error))
    finally:
        os.close(fd)
    return troubles


def _try(place: Path) -> _Tried:
    try:
        key = (os.stat(place).st_dev, os.geteuid())
        if key not in _tried:
            for name in os.listdir(place):  # of who was killed while trying
                if name.startswith(_PROBE) and _age(place / name) > _LONGEST_PROBE:
                    remove_tree(place / name)
            probe = Path(tempfile.mkdtemp(prefix=_PROBE, dir=place))
            try:
                _tried[key] = _Tried(_try_view(probe), _may_mount(probe), can_reflink(probe))
            finally:
                remove_tree(probe)
        return _tried[key]
    except OSError as error:
        raise _failure(f"make forks in {str(place)!r}", error) from error


def _try_view(probe: Path) -> bool:
    """Read, write, remove and replace something in a view.

    That shows that overlays work for who may mount, too, and a killed process leaves no mount.
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
            timeout=_LONGEST_PROBE,
            check=True,
        )
        is_apart = (lower / "file").read_text() == "base\n" and (lower / "folder/file").exists()
        is_right = (upper / "file").read_text() == "base\nmore\n"
        return is_apart and is_right and changes(upper, lower) == _PROBE_CHANGES
    except (OSError, subprocess.SubprocessError, WorkspaceError):
        return False


def _may_mount(probe: Path) -> bool:
    # The kernel asks whether we may before it sees that there is nothing to unmount.
    try:
        call("umount2", os.fsencode(probe), 0)
    except (OSError, AttributeError) as error:
        return isinstance(error, OSError) and error.errno == errno.EINVAL
    return False


def _clean_up(record: Path) -> None:
    try:
        text = record.read_bytes()
    except FileNotFoundError:  # its process has ended it
        return
    try:
        found = json.loads(text)
    except ValueError:
        # Its writer was killed before it made anything else, unless it is writing now.
        if _age(record) > _TORN_AFTER:
            os.unlink(record)
        return
    try:
        private, target = Path(found["private"]), found["target"]
        made = found["made_target"] is True
        fork = ForkPaths(record, private, None if target is None else Path(target), made)
        is_ours = private.is_absolute() and private.name == f"{NAME}-fork-{record.stem}"
        is_left = is_ours and is_gone(found["owner"]) and not is_in_view(fork.view_name)
    except (KeyError, TypeError, AttributeError):  # from a later version, or crafted
        return
    if is_left:
        end_fork(fork)


def _age(path: Path) -> float:
    return time.time() - os.lstat(path).st_mtime


def this_process() -> dict[str, str]:
    """Return what tells this process from all others, also of other machines and times."""
    pid = str(os.getpid())
    boot = _text("/proc/sys/kernel/random/boot_id")
    with suppress(OSError):
        boot += " " + os.readlink("/proc/self/ns/pid")  # in a container, numbers mean others
    return {"host": socket.gethostname(), "boot": boot, "pid": pid, "started": _started(pid)}


def is_gone(owner: dict[str, str]) -> bool:
    """Tell whether a process has ended for sure: one of another machine may always be alive."""
    mine = this_process()
    if owner["host"] != mine["host"]:
        return False
    if owner["boot"].split()[:1] != mine["boot"].split()[:1]:
        return True
    if owner["boot"] != mine["boot"]:
        return False
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):  # another user's, or crafted
        return False
    return _started(owner["pid"]) != owner["started"]


def _started(pid: str) -> str:
    """Return when a process was started: a number may be used again. Empty where none can tell."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # One that is dead but not waited for holds nothing any more.
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _failure(action: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(f"Cannot {action}: {error.strerror or error}.")
