"""Ownership claims: which key belongs to which directory of this user.

A checkpoint of a directory carries a claim: path and host, sealed together with the key by an HMAC
under the user's secret. Anybody can write a checkpoint under any key, so a key belongs to a
directory only if the claim of its newest checkpoint is valid here. An import drops all claims, and
marks each checkpoint as imported for good.
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
"""Environment variable that identifies a host; for hosts with equal paths that share a store."""
IMPORTED = "it was imported from an archive"
_MACHINE = Path("/etc/machine-id")


def host_of(backend: Backend) -> str:
    """Return the identity of this host for a store; empty if the store is local.

    So a renamed machine keeps the keys of its local stores. A store that hosts share needs an
    identity that survives a reboot: the machine id, or else the host name.
    """
    configured = os.environ.get(HOST)
    if configured:
        return configured.encode("utf-8", "replace").decode()
    if is_local(backend):
        return ""
    try:
        name = _MACHINE.read_text().strip()
    except (OSError, ValueError):
        name = ""
    # Hashed: the machine id itself is confidential.
    text = f"agent-checkpoint host\n{name or socket.gethostname()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_local(backend: Backend) -> bool:
    """Return whether a store is in a local directory, or in memory."""
    return getattr(backend, "path", None) is not None or isinstance(backend, MemoryBackend)


def make_claim(backend: Backend, key: str, directory: Path) -> Claim | None:
    """Return this user's claim of a key for a directory; None if no secret can exist here.

    Raises:
        StateError: the secret cannot be read now.
    """
    path, host = path_text(directory), host_of(backend)
    seal = seal_claim(_sealed_text(key, path, host))
    return None if seal is None else Claim(path, host, seal)


def is_owned_by_directory(store: Store, checkpoint: Checkpoint, directory: Path, key: str) -> bool:
    """Return whether the key of a checkpoint belongs to a directory of this user.

    Args:
        store: the store of the checkpoint.
        checkpoint: the newest readable one of its key.
        directory: the directory.
        key: the default key of the directory; checkpoints of it need no claim in a local store.

    Raises:
        StateError: the secret cannot be read now.
        StorageError: the medium failed.
    """
    if checkpoint.claim is not None:
        return checkpoint.claim.path == path_text(directory) and _is_valid(store, checkpoint)
    return checkpoint.key == key and why_unclaimed_not_owned(store, checkpoint) is None


def why_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return why a key is not this user's, by its newest checkpoint; None if it is.

    Raises as `is_owned_by_directory` does.
    """
    made = checkpoint.claim
    if made is None:
        return why_unclaimed_not_owned(store, checkpoint)
    host = host_of(store.backend)
    if made.host != host:
        return f"it was saved on another host, {short_repr(made.host)} and not {short_repr(host)}"
    return None if _is_valid(store, checkpoint) else "it was sealed under another secret"


def why_unclaimed_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint without a claim is not this user's; None if it is.

    Version 0.1 made no claims, but marked imports. In a local store its checkpoints belong to the
    user, unless the key, or the key that it continues, was imported. Raises StorageError.
    """
    if not is_local(store.backend):
        return "it has no ownership claim, and others may write to this store"
    if checkpoint.token is not None:
        return IMPORTED
    oldest = next(store.oldest_first(checkpoint.key, page=1), None)
    try:
        is_own = oldest is None or not read_checkpoint(checkpoint.key, *oldest).token
    except UNUSABLE:
        is_own = True  # the newest is readable, and was not imported
    return None if is_own else IMPORTED


def newest_readable(store: Store, key: str) -> Checkpoint | None:
    """Return the newest checkpoint of a key that can be read. Raises StorageError."""
    for entry in store.entries(key, page=1):
        try:
            return read_checkpoint(key, entry.seq, entry.data)
        except UNUSABLE:
            continue  # `verify` reports it
    return None


def path_text(path: Path) -> str:
    """Return a path as text that can be stored."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _is_valid(store: Store, checkpoint: Checkpoint) -> bool:
    made = checkpoint.claim
    if made is None or made.host != host_of(store.backend):
        return False
    return is_own_claim(_sealed_text(checkpoint.key, made.path, made.host), made.seal)


def _sealed_text(key: str, path: str, host: str) -> bytes:
    return json.dumps(["line of a directory", key, path, host]).encode()
