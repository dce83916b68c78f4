"""HMAC seals that prove which user wrote something, and the secret of the user.

The secret is outside every store: in `AGENT_CHECKPOINT_SECRET`, or in a file of the config
directory that only its owner can read or replace.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.errors import StateError, UntrustedDataError
from agent_checkpoint.file_ownership import other_owner, other_writer, why_replaceable

ENVIRONMENT = "AGENT_CHECKPOINT_SECRET"
_ADVICE = (
    f"Set {ENVIRONMENT} to the secret that it was saved under (by default the content of that "
    "user's .config/agent-checkpoint/secret), or, if you trust its origin, pass "
    "trust_pickle=True."
)
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
_DOMAIN = b"agent-checkpoint pickle 1\n"
_ENTRY_DOMAIN = b"agent-checkpoint entry 1\n"


def make_seal(data: bytes) -> str:
    """Return the seal of a pickle; creates the secret of the user if there is none.

    Raises:
        StateError: the secret cannot be created or read.
    """
    return _seal(_secret(create=True) or b"", data)


def check_seal(data: bytes, seal: object) -> None:
    """Verify that a pickle was sealed with the secret of the user.

    Raises:
        UntrustedDataError: the seal is missing, or was made with another secret.
        StateError: the secret cannot be read.
    """
    secret = _secret(create=False)
    if secret is None:
        raise UntrustedDataError(
            f"is a pickle, and there is no secret to verify its seal. {_ADVICE}"
        )
    if not isinstance(seal, str) or not hmac.compare_digest(
        seal.encode("utf-8", "replace"), _seal(secret, data).encode()
    ):
        raise UntrustedDataError(
            "is a pickle that was not sealed under your secret: loading it could run foreign code. "
            f"{_ADVICE}"
        )


def entry_key(*, create: bool) -> bytes | None:
    """Return the key that seals entries of shared stores; None if there is no secret.

    Raises:
        StateError: the secret cannot be created or read; the cause says why.
    """
    secret = _secret(create=create)
    return None if secret is None else hmac.new(secret, _ENTRY_DOMAIN, hashlib.sha256).digest()


def seal_claim(statement: bytes) -> str | None:
    """Return the seal of a statement of this user; None if no secret can be created.

    Raises:
        StateError: the secret cannot be read at the moment.
    """
    try:
        return make_seal(statement)
    except StateError as error:
        if _is_transient(error):
            raise
        return None


def is_own_claim(statement: bytes, seal: object) -> bool:
    """Return whether this user sealed the statement.

    Raises:
        StateError: the secret cannot be read at the moment.
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
    config = os.environ.get("XDG_CONFIG_HOME")
    if config and Path(config).is_absolute():
        return Path(config) / "agent-checkpoint" / "secret"
    if os.environ.get("HOME") == "":
        raise RuntimeError("HOME is empty")
    return Path.home() / ".config" / "agent-checkpoint" / "secret"


def _is_transient(error: StateError) -> bool:
    """Return whether a retry, or another process, may succeed."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _TRANSIENT


def _seal(secret: bytes, data: bytes) -> str:
    return hmac.new(secret, _DOMAIN + data, hashlib.sha256).hexdigest()


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
            f"needs a sealed pickle, but the secret file cannot be used ({error}). Set "
            f"{ENVIRONMENT}."
        ) from error
    return secret


def _read(path: Path) -> bytes | None:
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
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file; remove it")
        why = other_owner(path, status)
        if why is not None:
            raise OSError(f"{why}: set HOME to your home directory")
        if status.st_mode & 0o077:
            raise OSError(f"other users can read {path}: run chmod 600 {path}")
        secret = file.read(4096).strip()
    if len(secret) < 32:
        raise OSError(
            f"{path} is damaged: restore it from a backup, or pickles sealed with it cannot be "
            "loaded"
        )
    return secret


def _create(path: Path) -> None:
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(
        missing
    ):  # one by one: with `parents=True` the umask would set their mode
        folder.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"secret.{secrets.token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: use its secret
            os.link(fresh, path)
    finally:
        fresh.unlink()
