"""The lock of a session, held by one process at a time. The kernel releases it on exit."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.backends.os_support.lock_wait import describe_holders, lock_holders
from agent_checkpoint.errors import ConflictError
from agent_checkpoint.records import short_repr

LOCK_TIMEOUT = 60.0
_POLL_SECONDS = 0.02


@contextmanager
def hold_session_lock(key: str, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the lock of a session, so that no process saves during a rewind.

    Args:
        key: the key of the session.
        timeout: seconds to wait for another process.

    Raises:
        ConflictError: another process still holds the lock after the timeout.
    """
    directory = open_state_dir()
    if directory is None:  # without a state directory, save without a lock
        yield
        return
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.session.lock"
    try:
        try:
            lock = _wait_for(directory, name, key, timeout)
        except OSError:  # not writable: save without a lock
            yield
            return
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            os.close(lock)
    finally:
        os.close(directory)


def try_lock(directory: int, name: str) -> int | None:
    """Return a descriptor that holds the lock until closed; None if another process has it."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)  # the previous holder has just unlinked the file


def _wait_for(directory: int, name: str, key: str, timeout: float) -> int:
    until = time.monotonic() + timeout
    while True:
        lock = try_lock(directory, name)
        if lock is not None:
            return lock
        if time.monotonic() > until:
            files = []
            with suppress(FileNotFoundError):
                files.append(os.stat(name, dir_fd=directory))
            raise ConflictError(
                f"The session {short_repr(key)} has been locked by "
                f"{describe_holders(lock_holders(*files))} for more than {timeout:g} s. "
                "Nothing was changed. Wait for that process, then retry."
            )
        time.sleep(_POLL_SECONDS)
