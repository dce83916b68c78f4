"""The journal of rewinds in progress. Owns its entries, which are outside of every store.

A store may come from elsewhere, or have lost checkpoints. So the rewind in the note of a head is
finished only if the journal in this user's state directory has an entry for it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from agent_checkpoint.agents.hook.client import open_state_dir
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store

_MOST = 1 << 16


def write_entry(store: Store, safety: Checkpoint) -> None:
    """Write the entry of a rewind that is about to start.

    Raises:
        OSError: it cannot be written.
    """
    directory = open_state_dir()
    if directory is None:  # the rewind works, but could not be finished after a crash
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


def remove_entry(key: str) -> None:
    """Remove the entry of a session."""
    directory = open_state_dir()
    if directory is None:
        return
    try:
        with suppress(OSError):  # finishing a finished rewind changes nothing
            os.unlink(_name(key), dir_fd=directory)
    finally:
        os.close(directory)


def has_entry(store: Store, safety: Checkpoint) -> bool:
    """Tell whether the journal has an entry for the rewind of a safety checkpoint."""
    directory = open_state_dir()
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
