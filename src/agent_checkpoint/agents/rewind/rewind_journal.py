"""Which rewind of a session is under way. Owns the mark of it, which is in no store.

A store may have come from elsewhere, or have lost checkpoints since: what its head says was about
to be done is done only if this user's own directory says that it was begun and has not ended.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from agent_checkpoint.agents.hook.client import open_state
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store

_MOST = 1 << 16


def begin(store: Store, safety: Checkpoint) -> None:
    """Note that what a safety checkpoint says is about to be done.

    Raises:
        OSError: it cannot be noted.
    """
    directory = open_state()
    if directory is None:  # then nobody can finish it; it can still be done
        return
    name = _name(safety.key)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{name}.new", flags, 0o600, dir_fd=directory)
        try:
            os.write(fd, _text(store, safety))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        os.close(directory)


def end(key: str) -> None:
    """Note that nothing is under way in a session any more."""
    directory = open_state()
    if directory is None:
        return
    try:
        with suppress(OSError):  # the next who comes finds that nothing is left to do
            os.unlink(_name(key), dir_fd=directory)
    finally:
        os.close(directory)


def is_under_way(store: Store, safety: Checkpoint) -> bool:
    """Tell whether what a safety checkpoint says was begun here, and has not ended."""
    directory = open_state()
    if directory is None:
        return False
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(_name(safety.key), flags, dir_fd=directory)
        try:
            return os.read(fd, _MOST) == _text(store, safety)
        finally:
            os.close(fd)
    except OSError:
        return False
    finally:
        os.close(directory)


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.rewind"


def _text(store: Store, safety: Checkpoint) -> bytes:
    where = store.backend.url or repr(store.backend)
    return f"{where}\n{safety.id}\n".encode("utf-8", "surrogateescape")[:_MOST]
