"""Starts the processes of trials, and ends them. Owns which of two ways is taken.

The process that explores starts a server that forks trials (`trial_server.py`). A worker asks it,
if its own child processes would inherit the same. Otherwise, and where there is no server, the
worker starts an interpreter.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.os_support.own_program import own_program
from agent_checkpoint.backends.os_support.posix import open_private
from agent_checkpoint.session.explore.trial_process import OUTPUT
from agent_checkpoint.session.explore.trial_server import MAX_MESSAGE, is_own_user

_SERVER = "agent_checkpoint.session.explore.trial_server"
_TRIAL = "agent_checkpoint.session.explore.trial_process"
_ANSWER_SECONDS = 30.0
"""How long a worker waits for the server, which may be starting, before it starts the trial."""
_END_SECONDS = 10.0
"""How long a worker waits for the server to end a trial. The server may have been stopped."""
_INHERITED = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed",
    "Mems_allowed",
)
"""Lines of /proc/self/status."""
_LINKS = ("root", *(f"ns/{name}" for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")))
"""Links of /proc/self."""


class TrialServer:
    """The server of one exploration, killed with the thread that starts it."""

    def __init__(self) -> None:
        """Start it. Raises OSError; never waits for it."""
        self.name = f"agent-checkpoint-trials-{secrets.token_hex(16)}"
        # A copy of the socket in a forked process would keep workers waiting for a dead server.
        with block_forks(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            # An abstract name: nothing is left of it, whoever is killed.
            listener.bind(f"\0{self.name}")
            listener.listen(socket.SOMAXCONN)
            self._process = subprocess.Popen(
                [*own_program(_SERVER), str(listener.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the process that explores
            )

    @property
    def address(self) -> dict[str, str]:
        """What a worker needs, as JSON."""
        return {"name": self.name, "inherited": _inherited()}

    def close(self) -> None:
        """Kill the server, and the trials that still run."""
        self._process.kill()
        self._process.wait()


class TrialProcess:
    """A trial that a worker has started as a process of its own."""

    def __init__(self, private: Path, cwd: str) -> None:
        """Start it. Raises OSError."""
        with (private / OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                [*own_program(_TRIAL), str(private), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                start_new_session=True,
            )

    def wait(self, seconds: float) -> int | None:
        """Return the exit status as `subprocess` does; None if it still runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> int:
        """Kill it with its process group; return the exit status."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


class ForkedTrial:
    """A trial that a server has forked for a worker."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        self._status: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Return the exit status as `subprocess` does; None if it still runs."""
        self._connection.settimeout(seconds)
        try:
            return self._end()
        except TimeoutError:
            return None

    def end(self) -> int:
        """Have it killed with its process group; return the exit status."""
        with self._connection:
            self._connection.settimeout(_END_SECONDS)
            with suppress(OSError):  # the server has ended
                self._connection.shutdown(socket.SHUT_WR)
            try:
                return self._end()
            except TimeoutError:  # only the server frees the process id
                self._kill()
                return -signal.SIGKILL

    def _end(self) -> int:
        """Wait for the end; return the exit status. Raises TimeoutError."""
        if self._status is None:
            found = _receive(self._connection)
            self._status = -signal.SIGKILL if found is None else int(found["status"])
            if found is None:  # the server has ended, and the trial with it
                self._kill()
        return self._status

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)


def start_trial(
    address: dict[str, str] | None, private: Path, cwd: str
) -> TrialProcess | ForkedTrial:
    """Start the trial in a directory.

    Args:
        address: of the server of the exploration, if there is one.
        private: the directory with the job.
        cwd: the working directory.

    Raises:
        OSError: a file cannot be written, or no process can be started.
    """
    os.close(open_private(str(private / OUTPUT), os.O_WRONLY | os.O_CREAT))
    if address is not None and address["inherited"] == _inherited():
        forked = _fork(address["name"], private, cwd)
        if forked is not None:
            return forked
    return TrialProcess(private, cwd)


def _fork(name: str, private: Path, cwd: str) -> ForkedTrial | None:
    """Have a server fork a trial; None if it does not."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(f"\0{name}")
        if is_own_user(connection):
            connection.send(json.dumps({"private": str(private), "cwd": cwd}).encode())
            started = _receive(connection)
            if started is not None:
                return ForkedTrial(connection, started["pid"])
    except OSError:
        pass
    except BaseException:  # interrupted: the server kills what it has started
        connection.close()
        raise
    connection.close()
    return None


def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """Return the next message; None at the end. Raises TimeoutError."""
    try:
        message = connection.recv(MAX_MESSAGE)
    except socket.timeout as error:  # another class before Python 3.10
        raise TimeoutError from error
    except ConnectionError:
        message = b""
    return dict(json.loads(message)) if message else None


def _inherited() -> str:
    """Return a digest of what child processes inherit: variables, limits, rights, namespaces."""
    status, *files = map(_own_file, ("status", "limits", "cgroup", "oom_score_adj"))
    found = [
        own_program(""),
        sorted(map(repr, os.environb.items())),
        [line for line in status.splitlines() if line.startswith(_INHERITED)],
        files,
        os.getpriority(os.PRIO_PROCESS, 0),
        [os.readlink(f"/proc/self/{name}") for name in _LINKS],  # noqa: PTH115 - not paths
    ]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _own_file(name: str) -> str:
    with open(f"/proc/self/{name}") as file:  # noqa: PTH123 - for speed
        return file.read()
