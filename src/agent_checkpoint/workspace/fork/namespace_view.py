"""Private overlay mounts: a fork at the original path, for one process and its children.

Owns the mount and user namespaces; does not depend on forks. Root needs only a mount namespace.
Other users also get a user namespace, with the same user id and no additional rights. A mount
namespace with its overlay mount is called a view here. The kernel removes the mount when the last
process of the namespace exits or is killed.

Run as a program, it runs a command in a view:

    python -m agent_checkpoint.workspace.fork.namespace_view ARGUMENTS -- COMMAND…

ARGUMENTS are LOWER UPPER WORK AT NAME PARENT, where PARENT is the process with which the command
and all it has started are killed, or 0. The exit status is 125 if the mount fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.own_program import own_program
from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.fork.overlay_mount import (
    NAME,
    call,
    mount_overlay,
    mounts,
    wrap_errors,
)
from agent_checkpoint.workspace.fork.supervised_command import run_instead, run_supervised

VIEW = f"{NAME}-view"
"""The prefix of view names in the mount table. Only processes in a view see its mount."""
NO_VIEW = 125
"""The exit status if the mount fails.

As in a shell, 126 and 127 mean that the command failed to run.
"""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_KILL_SECONDS = 5.0
_ACTION = "create a private mount namespace"
_CAPABILITY_VERSION_3 = 0x20080522

# Isolated mode, and the package by its path. Otherwise a file of the workspace could shadow one of
# our modules, or another installed version could be loaded.


def enter_private_view(lower: Path, upper: Path, work: Path, at: Path, *, name: str = VIEW) -> None:
    """Mount an overlay that only this process and its future children see.

    The process must be single-threaded. Files and directories that are already open remain those
    outside the view, except the current directory.

    Args:
        lower: the lower directory, usually `at` itself.
        upper: the upper directory; see `mount_overlay`.
        work: see `mount_overlay`.
        at: the mount point.
        name: the source name in the mount table; begins with VIEW.

    Raises:
        UnsafeWorkspaceError: one of the directories contains another.
        WorkspaceError: this process has threads, or the mount fails. The process should exit.
    """
    if not sys.platform.startswith("linux"):
        raise WorkspaceError("Private mount namespaces are available on Linux only.")
    if len(os.listdir("/proc/self/task")) > 1:
        raise WorkspaceError(
            "A process with several threads cannot enter a private mount namespace."
        )
    with wrap_errors(_ACTION):
        here = _current_directory()
        has_gained = _unshare()
        # Mounts outside propagate into the namespace, but not the other way.
        call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    mount_overlay(lower, upper, work, at, name=name)
    with wrap_errors(_ACTION):
        if has_gained:
            _drop_capabilities()
        # Re-enter by path, which may now lead into the view. Otherwise relative paths would lead
        # outside
        # it.
        try:
            os.chdir(here or at)
        except OSError:
            os.chdir(at)


def view_command(
    lower: Path,
    upper: Path,
    work: Path,
    at: Path,
    command: Sequence[str],
    *,
    name: str = VIEW,
    ends_with: int = 0,
) -> list[str]:
    """Return the command line that runs a command in a view.

    Args:
        lower: as in `enter_private_view`, like the next three.
        upper: see above.
        work: see above.
        at: see above.
        command: the program and its arguments; the program is looked up in the view.
        name: the source name in the mount table; begins with VIEW.
        ends_with: the pid of the starting process, if the command and all it has started are to be
            killed when the *thread* that started it ends.
    """
    places = [os.path.abspath(path) for path in (lower, upper, work, at)]
    return [*own_program(__name__), *places, name, str(ends_with), "--", *command]


def is_in_view(name: str, process: str = "self") -> bool:
    """Return whether a process is in the view `name`."""
    # The kernel escapes spaces in names, so this is nothing but a whole name.
    entry = b" - overlay %b " % os.fsencode(name)
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as table:
            return entry in table.read()
    except OSError:
        return False


def is_in_any_view() -> bool:
    """Return whether this process is in a view."""
    prefix = os.fsencode(VIEW)
    return any(mount.kind == b"overlay" and mount.source.startswith(prefix) for mount in mounts())


def end_view(name: str) -> None:
    """Kill the processes in the view `name` and wait until they have exited.

    Raises:
        UnsafeWorkspaceError: `name` does not begin with VIEW, so all processes may see that mount.
        WorkspaceError: a process did not exit in time.
    """
    if not name.startswith(VIEW):
        raise UnsafeWorkspaceError(f"{name!r} is not the name of a private overlay mount.")
    end = time.monotonic() + _KILL_SECONDS
    while pids := _processes_in(name):  # repeated: they may start further processes
        if time.monotonic() > end:
            raise WorkspaceError(
                f"Process {pids[0]} in the mount namespace of a fork did not "
                f"exit within {_KILL_SECONDS:g} s of being killed."
            )
        for pid in pids:
            with suppress(ProcessLookupError):
                _kill(name, pid)
        time.sleep(0.01)


def main() -> int:
    """Enter the view given by the arguments, then run the command. Returns the exit status."""
    *places, name, parent, dashes = sys.argv[1:8] if len(sys.argv) > 8 else [""] * 7
    command = sys.argv[8:]
    if dashes != "--" or not parent.isdigit():
        return _fail("usage: view LOWER UPPER WORK AT NAME PARENT -- COMMAND…", NO_VIEW)
    lower, upper, work, at = map(Path, places)
    try:
        enter_private_view(lower, upper, work, at, name=name)
    except (WorkspaceError, OSError) as error:
        return _fail(str(error), NO_VIEW)
    return run_supervised(int(parent), command) if int(parent) else run_instead(command)


def _unshare() -> bool:
    """Enter a new mount namespace; return whether this gave the process capabilities."""
    try:
        call("unshare", _CLONE_NEWNS)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    else:
        return False
    user, group = os.geteuid(), os.getegid()
    call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    # The same ids inside as outside, for file ownership. The kernel requires `setgroups` first
    # before an unprivileged process may map a group.
    for file, text in (
        ("setgroups", b"deny"),
        ("uid_map", b"%d %d 1" % (user, user)),
        ("gid_map", b"%d %d 1" % (group, group)),
    ):
        Path("/proc/self", file).write_bytes(text)
    return user != 0


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was removed
        return ""


def _drop_capabilities() -> None:
    # The creator of a user namespace has all capabilities in it and bypasses file modes. A program
    # that fails outside the fork could then succeed in it.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", bytes(header), bytes(24))


def _processes_in(name: str) -> list[str]:
    if not sys.platform.startswith("linux"):
        return []
    here = os.readlink("/proc/self/ns/mnt")
    # Most processes share our mount namespace, and this check is fast.
    pids = filter(str.isdigit, os.listdir("/proc"))
    return [pid for pid in pids if not _is_in(here, pid) and is_in_view(name, pid)]


def _is_in(namespace: str, pid: str) -> bool:
    """Return whether a process is known to be in a mount namespace."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == namespace
    except OSError:  # it has ended, or belongs to another user
        return False


def _kill(name: str, pid: str) -> None:
    # By pidfd, and checked again: the process id may have been reused.
    fd = os.pidfd_open(int(pid))
    try:
        if is_in_view(name, pid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"agent-checkpoint view: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
