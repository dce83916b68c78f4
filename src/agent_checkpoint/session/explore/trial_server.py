"""The process that forks trials: has this package loaded, and nothing of the user's.

It starts no thread, opens no store and loads no user code, so that a trial begins as in an
interpreter of its own, without the time to start one. It is killed with the process that explores.
Owns the messages on its socket, which workers connect to, once for each trial:

    worker      {"private": …, "cwd": …}    the directory of the trial, and where it runs
    server      {"pid": …}                  the trial has been started
    worker      (end of the stream)         kill it, with its process group
    server      {"status": …}               it has ended, with its process group
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from agent_checkpoint.session.explore.trial_process import OUTPUT, preload, run_trial
from agent_checkpoint.workspace.fork.supervised_command import end_with

MAX_MESSAGE = 1 << 16
_REQUEST_SECONDS = 1.0
_PAUSE_SECONDS = 0.1


def main() -> int:
    """Serve until killed. `argv` has the descriptor of the socket, and the parent process."""
    end_with(int(sys.argv[2]))
    os.close(os.pidfd_open(os.getpid()))  # a kernel without it ends this here, not after a fork
    preload()
    # Objects that no collection visits stay on memory pages that all trials share.
    gc.collect()
    gc.freeze()
    _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    return 0


def is_own_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a socket belongs to this user."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.geteuid())


class _Trial:
    """A trial that runs."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.exit = os.pidfd_open(pid)
        self.is_wanted = True


class _Server:
    """Forks trials and reports their ends, in one thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._trials: list[_Trial] = []

    def serve(self) -> None:
        """Serve forever."""
        while True:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            for trial in self._trials:
                poll.register(trial.exit, select.POLLIN)
                if trial.is_wanted:
                    poll.register(trial.connection, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            for trial in list(self._trials):
                if trial.exit in ready:
                    self._report(trial)
                elif trial.connection.fileno() in ready:  # the worker gave up, or has ended
                    trial.is_wanted = False
                    _kill(trial.pid)
            if self._listener.fileno() in ready:
                self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # too many are open: one of them ends
            time.sleep(_PAUSE_SECONDS)
            return
        try:
            if is_own_user(connection):
                connection.settimeout(_REQUEST_SECONDS)
                request = json.loads(connection.recv(MAX_MESSAGE))
                if not _has_left(connection):
                    self._start(connection, request)
                    return
        except (OSError, ValueError):  # the worker has ended, or there is no room for a process
            pass
        connection.close()

    def _start(self, connection: socket.socket, request: dict[str, Any]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._close(connection)
                _become_trial(request["private"], request["cwd"], server)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        try:
            self._trials.append(_Trial(connection, pid))
        except OSError:  # no descriptor is left: the worker starts it instead
            _kill(pid)
            os.waitpid(pid, 0)
            raise
        with suppress(OSError):  # found out when the connection is polled
            connection.send(json.dumps({"pid": pid}).encode())

    def _report(self, trial: _Trial) -> None:
        _kill(trial.pid)  # what it left in its group; the id cannot be reused yet
        _, status = os.waitpid(trial.pid, 0)
        self._trials.remove(trial)
        os.close(trial.exit)
        with suppress(OSError), trial.connection:
            message = {"status": os.waitstatus_to_exitcode(status)}
            trial.connection.send(json.dumps(message).encode())

    def _close(self, connection: socket.socket) -> None:
        """Close everything in a child: its copies would keep the ends of others unnoticed."""
        connection.close()
        self._listener.close()
        for trial in self._trials:
            trial.connection.close()
            os.close(trial.exit)


def _has_left(connection: socket.socket) -> bool:
    """Return whether a worker gave up while this process was stopped: it runs the trial itself."""
    poll = select.poll()
    poll.register(connection, 0)  # the end of a connection is always reported
    return bool(poll.poll(0))


def _kill(pid: int) -> None:
    for kill in (os.kill, os.killpg):  # it may not have its group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become_trial(private: str, cwd: str, server: int) -> NoReturn:
    os.setsid()
    output = os.open(f"{private}/{OUTPUT}", os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(cwd)
    sys.argv[1:] = [private, str(server)]
    run_trial(Path(private), server)
