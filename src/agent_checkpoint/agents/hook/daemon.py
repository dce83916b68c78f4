"""The hook daemon: watches directories and saves hook events. Owns its socket.

It also hosts the change service, which other processes ask for changed paths.

There is one per user, host and installed version. It exits after some minutes without requests,
when another version is installed, or on request.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from contextlib import suppress

from agent_checkpoint.agents.hook.event_saver import EventSaver, parse_request
from agent_checkpoint.agents.hook.protocol import (
    IDLE,
    LOCATION_VARIABLES,
    MAX_EVENT_BYTES,
    SECRET,
    install_signature,
    socket_name,
)
from agent_checkpoint.agents.hook.upkeep_process import UpkeepProcess
from agent_checkpoint.agents.session_lock import try_lock
from agent_checkpoint.agents.state_dir import log_failure, open_state_dir
from agent_checkpoint.workspace.changes.service import ChangeService

STOP_REQUEST = b"end\n"
_IDLE = 600.0
_POLL_SECONDS = 2.0
_READ_TIMEOUT = 10.0
_MAX_REQUESTS = 16
_MAX_MEMORY = 2 << 30
_CREDENTIALS = struct.Struct("3i")


def serve(ready: int) -> None:
    """Run the daemon.

    Args:
        ready: a pipe to close once the socket accepts connections.
    """
    directory = open_state_dir()
    if directory is None:
        return
    name = socket_name()
    if not _take_daemon_lock(directory, name):
        return
    os.umask(0o077)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)  # left by a daemon that was killed
    path = f"/proc/self/fd/{directory}/{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(64)
        os.close(ready)
        server = HookServer(listener)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: server.end())
        try:
            server.run()
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            _remove_stale_locks(directory)
    server.close()


class HookServer:
    """Serves requests, each in its own thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._saver = EventSaver(watch=True)
        self._upkeep = UpkeepProcess()
        self._changes = ChangeService()
        self._version = install_signature()
        self._home = os.stat("/proc/self/ns/mnt").st_ino
        self._locations = tuple(os.environ.get(name, "") for name in LOCATION_VARIABLES)
        self._secret = os.environ.get(SECRET, "")
        self._running = 0
        self._changed = threading.Condition()
        self._used = time.monotonic()
        self._is_ending = False
        self._end_pipe = os.pipe()

    def run(self) -> None:
        """Serve until stopped, idle or outdated."""
        self._listener.setblocking(False)
        events = select.poll()
        events.register(self._listener, select.POLLIN)
        events.register(self._end_pipe[0], select.POLLIN)  # shutdown() does not wake up a poll
        self._changes.ensure()
        while not self._is_over():
            if not events.poll(_POLL_SECONDS * 1000):
                self._changes.ensure()  # the process that served may have ended
                if self._idle() > _quiet_seconds():
                    self._upkeep.start()
                continue
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:  # the client has gone
                continue
            except OSError as error:  # for example no free descriptors
                if self._is_ending:
                    break
                log_failure(f"The hook daemon cannot accept connections: {error}")
                time.sleep(0.1)
                continue
            with self._changed:
                if self._running >= _MAX_REQUESTS:
                    connection.close()  # the client then saves in a child process
                    continue
                self._running += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def end(self) -> None:
        """Stop accepting requests."""
        self._is_ending = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # clients then save in a child process
        os.write(self._end_pipe[1], b".")

    def close(self) -> None:
        """Wait for running requests, then close the stores."""
        self._upkeep.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, timeout=60)
        self._changes.close()
        self._saver.close()

    def _is_over(self) -> bool:
        if self._is_ending:
            return True
        try:
            if install_signature() != self._version:
                return True
        except OSError:  # uninstalled
            return True
        if _memory() <= _MAX_MEMORY and (
            self._idle() <= _idle_seconds() or self._upkeep.is_pending
        ):
            return False
        with self._changed:
            return self._running == 0

    def _idle(self) -> float:
        """Return the seconds since the last request; 0 while there is one."""
        with self._changed:
            return 0.0 if self._running else time.monotonic() - self._used

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer(connection)
        except BaseException as error:
            log_failure(f"{type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._running -= 1
                self._used = time.monotonic()
                self._changed.notify_all()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_READ_TIMEOUT)
        client = self._trusted_client(connection)
        if client is None:
            return
        text = _read_request(connection)
        if not text:  # a probe for a listening daemon
            return
        if text == STOP_REQUEST:
            self.end()
            return
        request = parse_request(text)
        if request.locations != self._locations or request.secret != self._secret:
            return  # the client has other paths or another secret
        connection.sendall(b"+")
        self._upkeep.interrupt()  # it may hold the lock of the store
        try:
            if self._saver.save(request, client=client) is not None:
                self._upkeep.saved(request.store)
        except BaseException as error:
            log_failure(f"{type(error).__name__}: {error}")
        with suppress(OSError):  # the client may have timed out
            connection.sendall(b".")

    def _trusted_client(self, connection: socket.socket) -> int | None:
        """Return the client's process; None if of another user or mount namespace."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        if uid != os.geteuid() or pid <= 0:
            return None
        try:
            return pid if os.stat(f"/proc/{pid}/ns/mnt").st_ino == self._home else None
        except OSError:
            return None


def stop_all() -> int:
    """Stop all daemons of this user on this host; return how many were stopped."""
    directory = open_state_dir()
    if directory is None:
        return 0
    stopped = 0
    try:
        for name in sorted(os.listdir(directory)):
            if name.endswith(".sock"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(_POLL_SECONDS)
                    with suppress(OSError):
                        connection.connect(f"/proc/self/fd/{directory}/{name}")
                        connection.sendall(STOP_REQUEST)
                        connection.recv(1)
                        stopped += 1
    finally:
        os.close(directory)
    return stopped


def _read_request(connection: socket.socket) -> bytes:
    pieces = [connection.recv(1 << 16)]
    line, found, rest = pieces[0].partition(b"\n")
    if pieces[0] == STOP_REQUEST or not found:
        return pieces[0]
    left = sum(map(int, line.split()[:2])) - len(rest)
    if left > MAX_EVENT_BYTES + (1 << 20):
        raise ValueError("the request is too large")
    while left > 0:
        piece = connection.recv(min(left, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _take_daemon_lock(directory: int, name: str) -> bool:
    """Take the daemon lock; False if another daemon holds it and listens.

    A holder may not listen: the lock of a killed process is released with a short delay.
    """
    for _ in range(100):
        if try_lock(directory, f"{name}.lock") is not None:
            return True  # held until this process exits
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(f"/proc/self/fd/{directory}/{name}")
                return False
            except OSError:
                time.sleep(0.02)
    return False


def _remove_stale_locks(directory: int) -> None:
    """Remove locks and sockets of dead processes."""
    for name in os.listdir(directory):
        if not name.endswith((".sock.lock", ".session.lock")):
            continue
        with suppress(OSError):
            fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    os.unlink(name.removesuffix(".lock"), dir_fd=directory)
                os.unlink(name, dir_fd=directory)
            finally:
                os.close(fd)


def _idle_seconds() -> float:
    try:
        return float(os.environ.get(IDLE) or _IDLE)
    except ValueError:
        return _IDLE


def _quiet_seconds() -> float:
    """Return the seconds without requests after which the upkeep of stores begins."""
    return _idle_seconds() / 20


def _memory() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
