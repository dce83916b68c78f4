"""Seals: signatures (HMAC-SHA256) under the user's secret. Owns the secret.

A seal proves that the user wrote a pickle, an entry or a claim. It does not encrypt. The secret is
never in a store: it is in `AGENT_CHECKPOINT_SECRET`, or in a file in the config directory that only
its owner can read or replace.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from agent_checkpoint.errors import StateError, UntrustedDataError
from agent_checkpoint.file_trust import other_owner, other_writer, why_replaceable

ENVIRONMENT = "AGENT_CHECKPOINT_SECRET"
_ADVICE = (
    f"Set {ENVIRONMENT} to the secret that signed it (by default the content of "
    ".config/agent-checkpoint/secret of the user who saved it), or, if you trust its origin, pass "
    "trust_pickle=True."
)
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
_DOMAIN = b"agent-checkpoint pickle 1\n"
_ENTRY_DOMAIN = b"agent-checkpoint entry 1\n"
_DIGEST_DOMAIN = b"agent-checkpoint digest 1\n"
_SETTLED_NS = 2_000_000_000
"""A change of a file that was changed later than this may leave its timestamps as they are."""

_last: tuple[str, tuple[int, ...], bytes] | None = None
"""The last secret that was read, with the path and the signature of its file."""


def make_seal(data: bytes) -> str:
    """Return the HMAC of a pickle under the user's secret; create the secret if there is none.

    Raises:
        StateError: the secret cannot be created or read.
    """
    return seal_with(_secret(create=True) or b"", data)


def check_seal(data: bytes, seal: object) -> None:
    """Verify the HMAC of a pickle under the user's secret.

    Raises:
        UntrustedDataError: the HMAC is missing or invalid, or there is no secret.
        StateError: the secret cannot be read.
    """
    secret = _secret(create=False)
    if secret is None:
        raise UntrustedDataError(
            f"is a pickle, and there is no secret to verify its signature. {_ADVICE}"
        )
    if not isinstance(seal, str) or not hmac.compare_digest(
        seal.encode("utf-8", "replace"), seal_with(secret, data).encode()
    ):
        raise UntrustedDataError(
            "is a pickle without a valid signature under your secret: loading it could run "
            f"untrusted code. {_ADVICE}"
        )


def entry_key(*, create: bool) -> bytes | None:
    """Return the HMAC key for entries of shared stores; None if there is no secret.

    Raises:
        StateError: the secret cannot be created or read; `__cause__` is the reason.
    """
    secret = _secret(create=create)
    return None if secret is None else hmac.new(secret, _ENTRY_DOMAIN, hashlib.sha256).digest()


def keyed_digest(data: bytes) -> str:
    """Return a digest of data with secrets: a plain hash of a short secret could be guessed.

    An HMAC under a key derived from the user's secret, and a point with a short hash of that key.

    Raises:
        StateError: the secret cannot be created or read.
    """
    secret = _secret(create=True) or b""
    key = hmac.new(secret, _DIGEST_DOMAIN, hashlib.sha256).digest()
    name = hmac.new(key, b"name", hashlib.sha256).hexdigest()[:8]
    return f"{hmac.new(key, data, hashlib.sha256).hexdigest()}.{name}"


def seal_claim(statement: bytes) -> str | None:
    """Return the HMAC of a statement under the user's secret; None if there can be no secret.

    Raises:
        StateError: the secret cannot be read because of a transient error.
    """
    secret = claim_secret()
    return None if secret is None else seal_with(secret, statement)


def claim_secret() -> bytes | None:
    """Return the secret for `seal_with`; None if there can be no secret.

    Raises:
        StateError: the secret cannot be read because of a transient error.
    """
    try:
        return _secret(create=True) or b""
    except StateError as error:
        if _is_transient(error):
            raise
        return None


def is_own_claim(statement: bytes, seal: object) -> bool:
    """Return whether `seal` is the HMAC of the statement under the user's secret.

    Raises:
        StateError: the secret cannot be read because of a transient error.
    """
    try:
        check_seal(statement, seal)
    except StateError as error:
        if _is_transient(error):
            raise
        return False
    return True


def secret_file() -> Path:
    """Return the path of the secret file.

    Raises:
        RuntimeError: the user has no home directory.
    """
    # The home directory of a process without HOME is that of its user, which may change.
    return _secret_file(os.environ.get("XDG_CONFIG_HOME"), os.environ.get("HOME"), os.getuid())


@lru_cache(maxsize=1)
def _secret_file(config: str | None, home: str | None, user: int) -> Path:
    if config and Path(config).is_absolute():
        return Path(config) / "agent-checkpoint" / "secret"
    if home == "":
        raise RuntimeError("HOME is empty")
    return Path.home() / ".config" / "agent-checkpoint" / "secret"


def _is_transient(error: StateError) -> bool:
    """Return whether the error is transient, so that a retry may succeed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _TRANSIENT


def seal_with(secret: bytes, data: bytes) -> str:
    """Return the HMAC of a statement or a pickle under a secret."""
    return hmac.digest(secret, _DOMAIN + data, "sha256").hex()


def _secret(*, create: bool) -> bytes | None:
    given = os.environ.get(ENVIRONMENT)
    if given:
        return given.encode("utf-8", "surrogateescape")
    try:
        path = secret_file()
        secret = _read(path)
        if secret is None and create:
            _create(path)
            secret = _read(path)
    except (OSError, RuntimeError) as error:  # Path.home() raises RuntimeError without a home
        raise StateError(
            f"needs your secret for its signature, but the secret cannot be used ({error}). Fix "
            f"the secret file, or set {ENVIRONMENT}."
        ) from error
    return secret


def _read(path: Path) -> bytes | None:
    """Return the secret in a file, checked again if the file is not the one that was read last."""
    global _last
    name = str(path)
    try:
        signature = _signature(os.lstat(name))
    except OSError:
        return _read_checked(path)
    last = _last
    if last is not None and last[:2] == (name, signature):
        return last[2]
    is_settled = signature[-1] < time.time_ns() - _SETTLED_NS
    secret = _read_checked(path)
    _last = (name, signature, secret) if is_settled and secret is not None else None
    return secret


def _signature(status: os.stat_result) -> tuple[int, ...]:
    file = status.st_dev, status.st_ino, status.st_size
    return os.geteuid(), *file, status.st_mtime_ns, status.st_ctime_ns


def _read_checked(path: Path) -> bytes | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        why = why_replaceable(path) or other_writer(path.parent, os.fstat(folder))
        if why is not None:
            raise OSError(f"{why}: set HOME to your home directory")
        fd = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file; remove it")
    with os.fdopen(fd, "rb") as file:
        why = other_owner(path, status)
        if why is not None:
            raise OSError(f"{why}: set HOME to your home directory")
        if status.st_mode & 0o077:
            raise OSError(f"other users can read {path}: run chmod 600 {path}")
        secret = file.read(4096).strip()
    if len(secret) < 32:
        raise OSError(
            f"{path} is damaged: it has less than 32 bytes. Restore it from a backup; pickles "
            "signed with the lost secret cannot be loaded"
        )
    return secret


def _create(path: Path) -> None:
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    # One by one: with `parents=True` the umask would set their mode.
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"secret.{os.urandom(8).hex()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(os.urandom(32).hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: use its secret
            os.link(fresh, path)
    finally:
        fresh.unlink()
