"""The seal of what only its own user may have written. Owns the secret and the HMAC.

The secret lives outside every store: in `AGENT_CHECKPOINT_SECRET`, else in a file of the user's
config directory that only the user can read, and that nobody else can have put there.
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
    f"Set {ENVIRONMENT} to the secret it was saved under (if none was set there, the text of that "
    "user's .config/agent-checkpoint/secret), or, if you trust its origin, load it with "
    "trust_pickle=True."
)
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR})
_DOMAIN = b"agent-checkpoint pickle 1\n"
_ENTRY_DOMAIN = b"agent-checkpoint entry 1\n"


def make_seal(data: bytes) -> str:
    """Return the seal of a pickle under the user's secret, which is made if there is none.

    Raises:
        StateError: the secret cannot be made or read.
    """
    return _seal(_secret(create=True) or b"", data)


def check_seal(data: bytes, seal: object) -> None:
    """Return if the pickle was sealed under the user's secret.

    Raises:
        UntrustedDataError: the seal is missing, or was made under another secret.
        StateError: the secret cannot be read.
    """
    secret = _secret(create=False)
    if secret is None:
        raise UntrustedDataError(
            f"is a pickle, and there is no secret here to check its seal with. {_ADVICE}"
        )
    if not isinstance(seal, str) or not hmac.compare_digest(
        seal.encode("utf-8", "replace"), _seal(secret, data).encode()
    ):
        raise UntrustedDataError(
            "is a pickle that was not sealed under your secret: loading it could run code from "
            f"elsewhere. {_ADVICE}"
        )


def entry_key(*, create: bool) -> bytes | None:
    """Return the key that entries of shared stores are sealed with; None if there is no secret.

    Raises:
        StateError: the secret cannot be made or read; its cause says why.
    """
    secret = _secret(create=create)
    return None if secret is None else hmac.new(secret, _ENTRY_DOMAIN, hashlib.sha256).digest()


def seal_claim(said: bytes) -> str | None:
    """Return a proof that this user said something; None if there can be no secret here.

    Raises:
        StateError: the secret cannot be read just now.
    """
    try:
        return make_seal(said)
    except StateError as error:
        if _is_passing(error):
            raise
        return None


def is_own_claim(said: bytes, seal: object) -> bool:
    """Tell whether it was this user who said it.

    Raises:
        StateError: the secret cannot be read just now.
    """
    try:
        check_seal(said, seal)
    except StateError as error:
        if _is_passing(error):
            raise
        return False
    return True


def secret_file() -> Path:
    """Return where the secret is kept when the environment has none.

    Raises:
        RuntimeError: the user has no home.
    """
    config = os.environ.get("XDG_CONFIG_HOME")
    if config and Path(config).is_absolute():
        return Path(config) / "agent-checkpoint" / "secret"
    if os.environ.get("HOME") == "":
        raise RuntimeError("HOME is empty")
    return Path.home() / ".config" / "agent-checkpoint" / "secret"


def _is_passing(error: StateError) -> bool:
    """Tell whether it may be otherwise in a moment, or for another process."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING


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
            f"needs a sealed pickle, but the secret file cannot be used ({error}). "
            f"Set {ENVIRONMENT} instead."
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
            raise OSError(f"{why}: set HOME to your own home")
        fd = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a regular file; remove it")
        why = other_owner(path, found)
        if why is not None:
            raise OSError(f"{why}: set HOME to your own home")
        if found.st_mode & 0o077:
            raise OSError(f"others may read {path}: chmod 600 it")
        secret = file.read(4096).strip()
    if len(secret) < 32:
        raise OSError(f"{path} is damaged: restore it, for pickles sealed under it load no more")
    return secret


def _create(path: Path) -> None:
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):  # one by one: `parents=True` would leave them to the umask
        folder.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"secret.{secrets.token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its secret counts
            os.link(fresh, path)
    finally:
        fresh.unlink()
