"""Whose line of checkpoints a key is. Owns the proof that it is that of a directory of this user.

Each checkpoint of a directory's line carries a claim: the path and the host, sealed under the
user's secret together with the key. Anybody can write a checkpoint under any key: without a claim
that holds here, it owns nothing. An import drops all claims, and marks each checkpoint for good.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Checkpoint, Claim, short_repr
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.store import Store

HOST = "AGENT_CHECKPOINT_HOST"
"""The environment variable that tells hosts apart which share a store and have the same paths."""
IMPORTED = "it was imported from an archive"
_MACHINE = Path("/etc/machine-id")


def host_of(backend: Backend) -> str:
    """Return the identity of this host for a store; empty if only this machine uses the store.

    A machine that is renamed keeps the lines of its own stores. Stores that hosts share need
    something that outlives a reboot: the machine id, or else the host name.
    """
    said = os.environ.get(HOST)
    if said:
        return said.encode("utf-8", "replace").decode()
    if is_local(backend):
        return ""
    try:
        name = _MACHINE.read_text().strip()
    except (OSError, ValueError):
        name = ""
    # The machine id itself is not for others to see.
    known = f"agent-checkpoint host\n{name or socket.gethostname()}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def is_local(backend: Backend) -> bool:
    """Tell whether a store is in a directory of this machine, or in memory."""
    return getattr(backend, "path", None) is not None or isinstance(backend, MemoryBackend)


def make_claim(backend: Backend, key: str, place: Path) -> Claim | None:
    """Return this user's claim of a key for a directory; None if there can be no secret here.

    Raises:
        StateError: the secret cannot be read just now.
    """
    path, host = path_text(place), host_of(backend)
    seal = seal_claim(_said(key, path, host))
    return None if seal is None else Claim(path, host, seal)


def is_owned_by_directory(store: Store, checkpoint: Checkpoint, place: Path, key: str) -> bool:
    """Tell whether a checkpoint, the newest of its key, makes the key the line of a directory.

    Args:
        store: where it is.
        checkpoint: the newest of its key that can be read.
        place: the directory.
        key: one that the directory has by its path.

    Raises:
        StateError: the secret cannot be read just now.
        StorageError: the medium failed.
    """
    if checkpoint.claim is not None:
        return checkpoint.claim.path == path_text(place) and _holds(store, checkpoint)
    return checkpoint.key == key and why_unclaimed_not_owned(store, checkpoint) is None


def why_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return why a line is not this user's, by its newest checkpoint, in words; None if it is.

    Raises as `is_line_of` does.
    """
    said = checkpoint.claim
    if said is None:
        return why_unclaimed_not_owned(store, checkpoint)
    host = host_of(store.backend)
    if said.host != host:
        return f"it was saved on another host, {short_repr(said.host)} and not {short_repr(host)}"
    return None if _holds(store, checkpoint) else "it was sealed under another secret"


def why_unclaimed_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint without a claim is not this user's; None if it is.

    Version 0.1 made no claims, but marked imports: what it saved in a store of this machine is the
    user's own, unless the line, or what it continues, was imported. Raises StorageError.
    """
    if not is_local(store.backend):
        return "nobody claims it, and others may write to this store"
    if checkpoint.token is not None:
        return IMPORTED
    oldest = next(store.oldest_first(checkpoint.key, page=1), None)
    try:
        is_own = oldest is None or not read_checkpoint(checkpoint.key, *oldest).token
    except UNUSABLE:
        is_own = True  # the newest can be read, and was not imported
    return None if is_own else IMPORTED


def newest_readable(store: Store, key: str) -> Checkpoint | None:
    """Return the newest checkpoint of a key that can be read. Raises StorageError."""
    for entry in store.entries(key, page=1):
        try:
            return read_checkpoint(key, entry.seq, entry.data)
        except UNUSABLE:
            continue  # `verify` tells about it
    return None


def path_text(place: Path) -> str:
    """Return a path as text that can be stored."""
    return os.fsencode(place).decode(errors="backslashreplace")


def _holds(store: Store, checkpoint: Checkpoint) -> bool:
    said = checkpoint.claim
    if said is None or said.host != host_of(store.backend):
        return False
    return is_own_claim(_said(checkpoint.key, said.path, said.host), said.seal)


def _said(key: str, path: str, host: str) -> bytes:
    return json.dumps(["line of a directory", key, path, host]).encode()
