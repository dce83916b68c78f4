"""The change service: tells other processes of this user what changed. Owns its socket and thread.

A daemon hosts it: the hook daemon, or `watch`. It keeps a change journal for each directory that
somebody asked for. One process at a time serves, by a lock.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import threading
from contextlib import suppress
from time import monotonic

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.workspace.changes import served
from agent_checkpoint.workspace.changes.changed_paths import WatchError
from agent_checkpoint.workspace.changes.journal import ChangeJournal
from agent_checkpoint.workspace.changes.served import (
    MAX_REQUEST,
    decode_request,
    encode_answer,
    open_service_dir,
    peer_user,
    root_identity,
    socket_name,
)
from agent_checkpoint.workspace.safe_open import open_root

_MOST_ROOTS = 8
_KEPT_SECONDS = 600.0
"""A journal is dropped if nobody has asked for it that long."""
_UPDATE_SECONDS = 1.0
"""How often events are read while nobody asks: the queue of the kernel must not overflow."""
_RESTART_SECONDS = 10.0
"""How long after its start a journal may be started again, if it has become incomplete."""
_REQUEST_TIMEOUT = 1.0


class ChangeService:
    """Answers questions about changed paths in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ended: tuple[int, int] | None = None
        """A pipe that ends the thread."""

    def ensure(self) -> None:
        """Start to serve, unless this or another process does. Failures are not reported.

        Without the service, other processes compare every file.
        """
        if self._thread is not None:
            return
        with suppress(OSError, CheckpointError):
            server = _Server()
            served.serving_process = os.getpid()
            self._ended = os.pipe()
            self._thread = threading.Thread(
                target=server.run, args=(self._ended[0],), name="changes", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop serving. May be called twice."""
        if self._thread is not None and self._ended is not None:
            os.close(self._ended[1])
            self._thread.join()
            served.serving_process = 0
            os.close(self._ended[0])
            self._thread = self._ended = None


class _Root:
    """A directory that somebody asked for."""

    def __init__(self) -> None:
        self.started = self.asked = monotonic()
        self.journal: ChangeJournal | None = None
        """None until all is watched, or if that failed."""


class _Server:
    """The socket and the journals."""

    def __init__(self) -> None:
        """Take the lock and open the socket.

        Raises:
            OSError: another process serves, or the socket cannot be created.
            CheckpointError: there is no data directory.
        """
        make_directory(data_home() / "index")
        directory = open_service_dir()
        if directory is None:
            raise OSError("other users can access the data directory")
        self._directory = directory
        self._name = socket_name()
        self._roots: dict[bytes, _Root] = {}
        """The directories, by their identity."""
        self._starting: threading.Thread | None = None
        self._lock = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(f"{self._name}.lock", flags, 0o600, dir_fd=directory)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=directory)  # left by a process that was killed
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except BaseException:
            self._release()
            raise
        try:
            path = f"/proc/self/fd/{directory}/{self._name}"
            # The directory is private; the mode is for those who look at the socket alone.
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(64)
        except BaseException:
            self._listener.close()
            self._release()
            raise

    def run(self, ended: int) -> None:
        """Serve until the pipe is closed."""
        events = select.poll()
        events.register(self._listener, select.POLLIN)
        events.register(ended, select.POLLIN)
        next_update = 0.0
        try:
            while not any(fd == ended for fd, _ in events.poll(_UPDATE_SECONDS * 1000)):
                self._serve_waiting()
                if monotonic() > next_update:
                    self._update_all()
                    next_update = monotonic() + _UPDATE_SECONDS
        finally:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
            self._listener.close()
            if self._starting is not None:
                self._starting.join()
            for root in self._roots.values():
                _close(root)
            self._release()

    def _release(self) -> None:
        for fd in (self._lock, self._directory):
            if fd >= 0:
                os.close(fd)

    def _serve_waiting(self) -> None:
        """Answer one client, if one waits. What goes wrong with a client concerns only that one."""
        self._listener.settimeout(0)
        with suppress(OSError, ValueError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT)
                if peer_user(connection) == os.geteuid():
                    connection.sendall(self._answer(_read(connection)))

    def _answer(self, request: bytes) -> bytes:
        """Return the answer to a request; empty if the directory is not watched (yet)."""
        identity, token = decode_request(request)
        root = self._roots.get(identity)
        if root is None:
            root = self._roots[identity] = _Root()
            root.started -= _RESTART_SECONDS
        root.asked = monotonic()
        if root.journal is None:
            self._start(identity, root)
        elif root.journal.update():
            return encode_answer(root.journal.since(token))
        else:
            _close(root)
        return b""

    def _start(self, identity: bytes, root: _Root) -> None:
        """Start a journal in a thread, one at a time: clients do not wait for it."""
        if not self._is_starting() and monotonic() >= root.started + _RESTART_SECONDS:
            root.started = monotonic()
            self._starting = threading.Thread(target=_watch, args=(identity, root), daemon=True)
            self._starting.start()

    def _is_starting(self) -> bool:
        return self._starting is not None and self._starting.is_alive()

    def _update_all(self) -> None:
        """Read the events of all journals; drop those that are incomplete or not used."""
        now = monotonic()
        for identity, root in sorted(self._roots.items(), key=lambda item: item[1].asked):
            is_unused = now - root.asked > _KEPT_SECONDS or len(self._roots) > _MOST_ROOTS
            if is_unused and not self._is_starting():
                _close(self._roots.pop(identity))
            elif root.journal is not None and not root.journal.update():
                _close(root)


def _watch(identity: bytes, root: _Root) -> None:
    """Start the journal of a directory, if its identity is the same for this process."""
    with suppress(OSError, WatchError, IndexError):  # the client then compares every file
        fd = open_root(os.fsdecode(identity.split(b" ", 5)[5]))
        try:
            if root_identity(fd) == identity:
                root.journal = ChangeJournal(fd)
        finally:
            os.close(fd)


def _close(root: _Root) -> None:
    if root.journal is not None:
        root.journal.close()
        root.journal = None


def _read(connection: socket.socket) -> bytes:
    """Return a request. Raises OSError, ValueError."""
    data = b""
    while piece := connection.recv(MAX_REQUEST):
        data += piece
        if len(data) > MAX_REQUEST:
            raise ValueError("the request is too large")
    return data
