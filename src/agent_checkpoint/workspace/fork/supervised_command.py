"""Runs a command that ends with the process that started it, and with it all it has started.

The kernel tells this process when its parent has ended, however it ended; and makes it the parent
of what the command leaves behind, so that nothing escapes it. Elsewhere than on Linux the command
only replaces this process. Run as a program:

    python -m agent_checkpoint.workspace.fork.supervised_command PARENT -- COMMAND…
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.own_program import own_program
from agent_checkpoint.workspace.fork.overlay_mount import call

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_SECONDS = 5.0
_KILLED = 128
"""Added to the number of a signal, as a shell does."""


def supervised(command: Sequence[str]) -> list[str]:
    """Return the command line of a command that ends with the *thread* that starts it."""
    return [*own_program(__name__), str(os.getpid()), "--", *command]


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal when the *thread* that started it ends, where the kernel can.

    Call this after entering a view, which clears the setting.
    """
    if not sys.platform.startswith("linux"):
        return
    call("prctl", _PR_SET_PDEATHSIG, by.value, 0, 0, 0)
    if os.getppid() != parent:  # the parent has already ended
        os.kill(os.getpid(), by)


def run_supervised(parent: int, command: Sequence[str]) -> int:
    """Run a command, and end what is left of it; return its exit status.

    Args:
        parent: the pid of the process that started this one.
        command: the program and its arguments.
    """
    if not sys.platform.startswith("linux"):
        return run_instead(command)
    awaited = {signal.SIGTERM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    end_with(parent, signal.SIGTERM)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os._exit(run_instead(command))
    status: int | None = None
    while status is None:
        if signal.sigwait(awaited) == signal.SIGTERM:
            status = signal.SIGTERM.value
        for pid, ended in _ended():
            status = ended if pid == child else status
    _end_children()
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _KILLED + os.WTERMSIG(status)


def run_instead(command: Sequence[str]) -> int:
    """Replace this process by a command; return the exit status if that fails."""
    # Python ignores these two signals, and child processes would inherit that.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - the purpose of this program
    except OSError as error:
        text = f"agent-checkpoint: cannot run {command[0]}: {error.strerror}\n"
        os.write(sys.stderr.fileno(), text.encode(errors="replace"))
        return 127 if isinstance(error, FileNotFoundError) else 126


def _ended() -> Iterator[tuple[int, int]]:
    """Iterate over the children that have ended: pid and status."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _end_children() -> None:
    """Kill the children; their children become ours, and are killed next."""
    end = time.monotonic() + _KILL_SECONDS
    while (pids := list(_children())) and time.monotonic() < end:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
        list(_ended())


def _children() -> Iterator[int]:
    """Iterate over the pids of the children, which are not used again before they are awaited."""
    own = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[1] == own:
                    yield int(entry.name)


def main() -> int:
    """Run the command given by the arguments. Returns the exit status."""
    parent, dashes = sys.argv[1:3] if len(sys.argv) > 3 else ("", "")
    if dashes != "--" or not parent.isdigit():
        sys.stderr.write("usage: supervised_command PARENT -- COMMAND…\n")
        return 2
    return run_supervised(int(parent), sys.argv[3:])
