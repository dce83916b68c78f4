"""One process at a time for a session. Owns the lock, which the kernel drops with the process."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent_checkpoint.agents.hook.client import open_state
from agent_checkpoint.backends.disk.lock_wait import describe_holders, lock_holders
from agent_checkpoint.errors import ConflictError
from agent_checkpoint.records import short_repr

PATIENCE = 60.0
_BREATH = 0.02


@contextmanager
def alone(key: str, patience: float = PATIENCE) -> Iterator[None]:
    """Have a session for this process: nobody saves in the middle of a rewind.

    Args:
        key: of the session.
        patience: for how many seconds to wait for another one.

    Raises:
        ConflictError: another process has it for longer than that.
    """
    directory = open_state()
    if directory is None:  # no place for a lock is no reason to save nothing
        yield
        return
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.session.lock"
    try:
        try:
            lock = _wait_for(directory, name, key, patience)
        except OSError:  # nor is one that cannot be written
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


def take_lock(directory: int, name: str) -> int | None:
    """Return the lock of a name, which is held until it is closed; None if another has it."""
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
        os.close(lock)  # one that has ended took it away just now


def _wait_for(directory: int, name: str, key: str, patience: float) -> int:
    until = time.monotonic() + patience
    while True:
        lock = take_lock(directory, name)
        if lock is not None:
            return lock
        if time.monotonic() > until:
            files = []
            with suppress(FileNotFoundError):
                files.append(os.stat(name, dir_fd=directory))
            raise ConflictError(
                f"Nothing was done: {short_repr(key)} is being saved or rewound by "
                f"{describe_holders(lock_holders(*files))}, for longer "
                f"than {patience:g} s. Let that end or go on, then try again."
            )
        time.sleep(_BREATH)
