"""Ownership claims: which key belongs to which directory of this user.

A checkpoint of a directory has a claim: its path, host and identity, signed together with the key
by an HMAC under the user's secret. Anybody can write a checkpoint under any key, so a key belongs
to a directory only if the claim of its newest checkpoint is valid for this user and host. An import
drops all claims and permanently marks each checkpoint as imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Checkpoint, Claim, short_repr
from agent_checkpoint.seal import claim_secret, is_own_claim, seal_with
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.store.store import Store

HOST = "AGENT_CHECKPOINT_HOST"
"""Environment variable with the identity of a host, for hosts that share a store and paths."""
IMPORTED = "it was imported from an archive or copied from another store"
_MACHINE = Path("/etc/machine-id")


def host_of(backend: Backend) -> str:
    """Return the identity of this host for a store; empty if the store is local.

    An empty identity lets a renamed machine keep the keys of its local stores. For a store that
    hosts share, the identity must survive a reboot: it is derived from the machine id, or from the
    host name if there is no machine id.
    """
    configured = os.environ.get(HOST)
    if configured:
        return configured.encode("utf-8", "replace").decode()
    if backend.properties.is_local:
        return ""
    try:
        name = _MACHINE.read_text().strip()
    except (OSError, ValueError):
        name = ""
    # Hashed: the machine id itself is confidential.
    text = f"agent-checkpoint host\n{name or os.uname().nodename}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_claim(
    backend: Backend, key: str, directory: Path, known_identity: str = ""
) -> Claim | None:
    """Return a signed claim that the key belongs to the directory; None without a secret.

    Args:
        backend: the store.
        key: the key.
        directory: the directory.
        known_identity: as for `identity_of`.

    Raises:
        StateError: the secret cannot be read because of a transient error.
    """
    path, host = path_text(directory), host_of(backend)
    identity = identity_of(directory, known_identity)
    secret = claim_secret()
    return None if secret is None else _signed(secret, key, path, host, identity)


@lru_cache(maxsize=16)
def _signed(secret: bytes, key: str, path: str, host: str, identity: str) -> Claim:
    seal = seal_with(secret, _sealed_text(key, path, host))
    of_identity = seal_with(secret, _sealed_text(key, path, host, identity)) if identity else ""
    return Claim(path, host, seal, identity, of_identity)


def is_owned_by_directory(store: Store, checkpoint: Checkpoint, directory: Path, key: str) -> bool:
    """Return whether the key of a checkpoint belongs to a directory of this user.

    Args:
        store: the store of the checkpoint.
        checkpoint: the newest readable checkpoint of its key.
        directory: the directory.
        key: the default key of the directory; in a local store its checkpoints need no claim.

    Raises:
        StateError: the secret cannot be read because of a transient error.
        StorageError: the medium failed.
    """
    if checkpoint.claim is not None:
        return checkpoint.claim.path == path_text(directory) and _is_valid(store, checkpoint)
    return checkpoint.key == key and why_unclaimed_not_owned(store, checkpoint) is None


def why_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return the reason why a key does not belong to this user; None if it does.

    `checkpoint` is the newest readable checkpoint of the key. Raises the same errors as
    `is_owned_by_directory`.
    """
    made = checkpoint.claim
    if made is None:
        return why_unclaimed_not_owned(store, checkpoint)
    host = host_of(store.backend)
    if made.host != host:
        return f"it was saved on another host, {short_repr(made.host)} and not {short_repr(host)}"
    is_valid = _is_valid(store, checkpoint)
    return None if is_valid else "its claim has no valid signature under your secret"


def why_unclaimed_not_owned(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return the reason why a key without a claim does not belong to this user; None if it does.

    Version 0.1 wrote no claims, but marked imports. In a local store its checkpoints belong to the
    user unless the newest or the oldest checkpoint of the key was imported. Raises StorageError.
    """
    if not store.backend.properties.is_local:
        return "it has no ownership claim, and other users may write to this store"
    if checkpoint.token is not None:
        return IMPORTED
    oldest = next(store.entries(checkpoint.key, page=1, oldest_first=True), None)
    try:
        is_own = oldest is None or not read_checkpoint(checkpoint.key, *oldest).token
    except UNUSABLE:
        is_own = True  # the newest is readable, and was not imported
    return None if is_own else IMPORTED


def newest_readable(store: Store, key: str) -> Checkpoint | None:
    """Return the newest checkpoint of a key that can be read. Raises StorageError."""
    return next(store.readable(key, page=1), None)


def path_text(path: Path) -> str:
    r"""Return a path as valid UTF-8, with undecodable bytes escaped as in `\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _is_valid(store: Store, checkpoint: Checkpoint) -> bool:
    made = checkpoint.claim
    if made is None or made.host != host_of(store.backend):
        return False
    members = checkpoint.key, made.path, made.host
    return is_own_claim(_sealed_text(*members), made.seal) and (
        not made.identity or is_own_claim(_sealed_text(*members, made.identity), made.identity_seal)
    )


def _sealed_text(*members: str) -> bytes:
    return json.dumps(["line of a directory", *members]).encode()
