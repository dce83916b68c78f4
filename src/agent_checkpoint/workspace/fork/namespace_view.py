"""Private views: a fork's files at the original path, for one process and what it starts.

Owns the namespaces; knows no fork. Root needs a mount namespace only. Anyone else gets a user
namespace with it, in which they are who they were, without any new right. A view ends with its
last process, however that ends: nothing is left mounted.

As a program it starts a command in a view:

    python -m agent_checkpoint.workspace.fork.namespace_view \
        LOWER UPPER WORK AT NAME PARENT -- COMMAND…

where PARENT is the process to end with, or 0. It ends with 125 if there can be no view.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.errors import UnsafeWorkspaceError, WorkspaceError
from agent_checkpoint.workspace.fork.overlay_mount import (
    NAME,
    call,
    is_called,
    mount_overlay,
    mounts,
)

VIEW = f"{NAME}-view"
"""How the names of views begin in the mount table: whoever sees one was started in it."""
NO_VIEW = 125
"""How the program ends if there can be no view; 126 and 127 are about the command, as ever."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_LONGEST_END = 5.0
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION_3 = 0x20080522

# Isolated, and by its place: a file of the workspace could else take the place of a module of ours,
# and another installed version that of this one.
_START = """
import importlib.util, sys
name = "agent_checkpoint"
found = importlib.util.spec_from_file_location(name, sys.argv.pop(1))
sys.modules[name] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules[name])
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def enter_private_view(lower: Path, upper: Path, work: Path, at: Path, *, name: str = VIEW) -> None:
    """Let this process, and what it starts from now on, see an overlay at a directory.

    Called in a process of its own, before that has threads. Files and directories that are open
    already stay those outside the view, but for the current directory.

    Args:
        lower: what is seen, as a rule the directory `at` itself.
        upper: where changes go; see `mount_overlay`.
        work: see `mount_overlay`.
        at: where it is seen.
        name: what the mount table shall call it; it begins with VIEW.

    Raises:
        UnsafeWorkspaceError: one of the directories is in another one.
        WorkspaceError: this process has threads, or the kernel refuses. The process should end.
    """
    if not sys.platform.startswith("linux"):
        raise WorkspaceError("Private views exist on Linux only.")
    if len(os.listdir("/proc/self/task")) > 1:
        raise WorkspaceError("A process that has threads cannot enter a view.")
    with _refusals():
        here = _current_directory()
        has_gained = _unshare()
        # What is mounted outside may appear here, but nothing goes the other way.
        call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    mount_overlay(lower, upper, work, at, name=name)
    with _refusals():
        if has_gained:
            _drop_capabilities()
        # By its path, which may now lead into the view: else what is named relative to it would be
        # written outside.
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
    """Return the command that runs a command in a view, for `subprocess` or any other starter.

    Args:
        lower: as in `enter_private_view`, like the next three.
        upper: see above.
        work: see above.
        at: see above.
        command: the program and its arguments; it is looked for in the view.
        name: what the mount table shall call it; it begins with VIEW.
        ends_with: the process that starts it, if the command shall be killed when the *thread*
            that started it ends.
    """
    places = [os.path.abspath(path) for path in (lower, upper, work, at)]
    return [*own_program(__name__), *places, name, str(ends_with), "--", *command]


def own_program(module: str) -> list[str]:
    """Return the command that runs the `main` of a module of this very package, and its arguments.

    It loads nothing from where it is run.
    """
    package = Path(__file__).resolve().parents[2] / "__init__.py"
    return [sys.executable, "-I", "-c", _START, str(package), module]


def is_in_view(name: str, process: str = "self") -> bool:
    """Tell whether a process is in a view of that name."""
    return any(is_called(mount, name) for mount in mounts(process))


def end_view(name: str) -> None:
    """Kill the processes in the views of a name, and wait for their end.

    Raises:
        UnsafeWorkspaceError: it is not the name of a view: everybody may see such a mount.
        WorkspaceError: one does not end.
    """
    if not name.startswith(VIEW):
        raise UnsafeWorkspaceError(f"{name!r} is not the name of a view.")
    end = time.monotonic() + _LONGEST_END
    while pids := _processes_in(name):  # until none is left: they may start others meanwhile
        if time.monotonic() > end:
            raise WorkspaceError(f"Process {pids[0]} is in a view and does not end.")
        for pid in pids:
            with suppress(ProcessLookupError):
                _kill(name, pid)
        time.sleep(0.01)


def main() -> int:
    """Enter the view that the arguments tell, and become the command. Returns the exit status."""
    *places, name, parent, dashes = sys.argv[1:8] if len(sys.argv) > 8 else [""] * 7
    command = sys.argv[8:]
    if dashes != "--" or not parent.isdigit():
        return _say("usage: view LOWER UPPER WORK AT NAME PARENT -- COMMAND…", NO_VIEW)
    lower, upper, work, at = map(Path, places)
    try:
        enter_private_view(lower, upper, work, at, name=name)
        if int(parent):
            end_with(int(parent))
    except (WorkspaceError, OSError) as error:
        return _say(str(error), NO_VIEW)
    # Python ignores these two, and what it starts would too.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - what it is for
    except OSError as error:
        status = 127 if isinstance(error, FileNotFoundError) else 126
        return _say(f"cannot run {command[0]}: {error.strerror}", status)


def _unshare() -> bool:
    """Enter a new mount namespace; tell whether it gave rights that were not there before."""
    try:
        call("unshare", _CLONE_NEWNS)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
    else:
        return False
    user, group = os.geteuid(), os.getegid()
    call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    # The same numbers inside as outside: programs see who they are and whose the files are.
    # The kernel wants the first before a group may be mapped by who is not root.
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
    except FileNotFoundError:  # it was removed
        return ""


def _drop_capabilities() -> None:
    # The maker of a user namespace is all-powerful in it, and could open what its own files' modes
    # forbid: a program would work in the fork that fails outside.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", bytes(header), bytes(24))


def _processes_in(name: str) -> list[str]:
    if not sys.platform.startswith("linux"):
        return []
    found = []
    here = os.readlink("/proc/self/ns/mnt")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # Most processes see what we see, and to ask that first is fast.
        with suppress(PermissionError):
            if _mount_namespace(pid) == here:
                continue
        if is_in_view(name, pid):
            found.append(pid)
    return found


def _mount_namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def _kill(name: str, pid: str) -> None:
    # By a descriptor, and with another look: a number may be another process by now.
    fd = os.pidfd_open(int(pid))
    try:
        if is_in_view(name, pid):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def end_with(parent: int) -> None:
    """Have this process killed when the *thread* that started it ends, where the kernel can.

    Said before a view is entered, it is forgotten there.
    """
    if not sys.platform.startswith("linux"):
        return
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"Cannot have a private view: {error.strerror or error}.") from error


def _say(text: str, status: int) -> int:
    sys.stderr.write(f"agent-checkpoint view: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
