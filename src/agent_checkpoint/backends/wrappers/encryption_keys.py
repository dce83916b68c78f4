"""Keys of encrypted stores, and the record in which a store keeps its wrapped data key.

Owns where a key comes from, how a wrapping key is derived from it, and the form of the record. Does
not encrypt. Standard library only: a store is recognised as encrypted without `cryptography`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, Union

from agent_checkpoint.backends.base import ENCRYPTED
from agent_checkpoint.errors import EncryptionKeyError, IntegrityError, InvalidInputError
from agent_checkpoint.file_trust import other_owner, other_writer
from agent_checkpoint.named_tuple import NamedTuple

KEY_BYTES = 32
_SHORTEST = 16
_LONGEST = 4096
_HASH_MEMBER = b',"sha256":"%b"}'

EncryptionKey = Union[bytes, str, "os.PathLike[str]", Callable[[], Any], Sequence[Any]]
"""A key, its file, a function that returns it; or a list of these, the current key first."""


class EnvironmentKey:
    """A key in an environment variable, read when it is needed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> str:
        """Return the value. Raises EncryptionKeyError."""
        value = os.environ.get(self.name)
        if not value:
            raise EncryptionKeyError(
                f"The environment variable {self.name} with the encryption key is not set."
            )
        return value


class KeyMaterial:
    """The bytes of one key. Neither printed nor pickled."""

    __slots__ = ("_bytes", "is_random")

    def __init__(self, data: bytes, is_random: bool) -> None:
        if not _SHORTEST <= len(data) <= _LONGEST:
            raise EncryptionKeyError(
                f"The encryption key has {len(data)} bytes; it must have {_SHORTEST} to "
                f"{_LONGEST:,}. Use 32 random bytes, or a passphrase of several words."
            )
        self._bytes = data
        self.is_random = is_random
        """Whether the key is 32 random bytes, so that a guess is hopeless without slow hashing."""

    def __reduce__(self) -> Any:
        raise InvalidInputError("An encryption key cannot be pickled.")

    def wrapping_key(self, kdf: str, salt: bytes) -> bytes:
        """Derive the key that wraps the data key. Raises IntegrityError for an unknown function."""
        if kdf == "blake2b":
            return hashlib.blake2b(salt, key=_hashed(self._bytes), digest_size=KEY_BYTES).digest()
        if kdf == "scrypt":  # fixed cost: a record from a hostile server must not set it
            return hashlib.scrypt(
                self._bytes, salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=KEY_BYTES
            )
        raise IntegrityError(f"The key record of the store names an unknown function {kdf!r}.")


class WrappedKey(NamedTuple):
    """The data key of a store, encrypted under a key of the user."""

    kdf: str
    salt: bytes
    wrapped: bytes


def key_materials(key: EncryptionKey) -> list[KeyMaterial]:
    """Return the keys that an `encryption_key=` argument gives; reads files, calls functions.

    Raises:
        EncryptionKeyError: a key is missing or too short, or others can read or write its file.
        InvalidInputError: the argument is of another type.
    """
    if isinstance(key, (bytes, bytearray)):
        return [KeyMaterial(bytes(key), _is_random(bytes(key)))]
    if isinstance(key, str):
        if os.sep in key and os.path.exists(key):
            raise EncryptionKeyError("encryption_key= is the name of a file: pass a Path instead.")
        return [KeyMaterial(key.encode("utf-8", "surrogateescape"), False)]
    if isinstance(key, os.PathLike):
        return [_key_in(os.fspath(key))]
    if callable(key):
        return key_materials(key())
    if isinstance(key, (list, tuple)) and key:
        return [material for each in key for material in key_materials(each)]
    raise InvalidInputError(
        "encryption_key= must be bytes, a string, a path, a function that returns one of these, or "
        f"a non-empty list of these, not {type(key).__name__}."
    )


def url_options(key: EncryptionKey) -> dict[str, str] | None:
    """Return the options of a store URL that name a key; None if a URL cannot name it."""
    options: dict[str, str] = {}
    names = iter(("encryption_key_file", "encryption_key_env", "old_encryption_key_file"))
    for each in key if isinstance(key, (list, tuple)) else [key]:
        if isinstance(each, os.PathLike):
            value, ending = os.path.abspath(each), "file"
        elif isinstance(each, EnvironmentKey):
            value, ending = each.name, "env"
        else:
            return None
        name = next((name for name in names if name.endswith(ending)), None)
        if name is None:  # more keys than options, or in another order
            return None
        options[name] = value
    return options


def _key_in(path: str) -> KeyMaterial:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise EncryptionKeyError(f"The key file {path} is not a regular file.")
            why = other_owner(path, status, or_root=True) or other_writer(path, status)
            if why is None and status.st_mode & 0o077:
                why = f"other users can read {path} (fix: chmod 600 {path})"
            if why is not None:
                raise EncryptionKeyError(f"The key file is not private: {why}.")
            data = file.read(_LONGEST + 3)
    except OSError as error:
        raise EncryptionKeyError(f"Cannot read the key file {path}: {error.strerror}.") from None
    is_random = _is_random(data)
    return KeyMaterial(data if is_random else data.rstrip(b"\r\n"), is_random)


def _is_random(data: bytes) -> bool:
    """Return whether a key is 32 random bytes, not a passphrase of that length or a line of it."""
    try:
        is_text = data.decode().rstrip("\r\n").isprintable()
    except UnicodeDecodeError:
        is_text = False
    return len(data) == KEY_BYTES and not is_text


def _hashed(data: bytes) -> bytes:
    """Return a key for BLAKE2b, which takes 64 bytes at most."""
    return data if len(data) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.sha512(data).digest()


def write_key_record(key: WrappedKey) -> bytes:
    """Return the format record of an encrypted store, with its wrapped data key.

    A format record like those of `store/format_record.py`, in its place: a process without the key
    refuses the store, and only one of two processes that make a store decides whether it is plain.
    """
    record = {
        "agent_checkpoint": 1,
        "read": 1,
        "write": 1,
        "features": [ENCRYPTED],
        "key": {"kdf": key.kdf, "salt": key.salt.hex(), "wrapped": key.wrapped.hex()},
    }
    members = json.dumps(record, separators=(",", ":")).encode()[:-1]
    return members + _HASH_MEMBER % hashlib.sha256(members).hexdigest().encode()


def read_key_record(data: bytes) -> WrappedKey | None:
    """Return the wrapped key in a format record; None if it is that of a plaintext store.

    Raises:
        IntegrityError: the record is damaged.
    """
    try:
        record = json.loads(data)
        if ENCRYPTED not in record["features"]:
            return None
        members = data[: data.rindex(b',"sha256"')]
        if data != members + _HASH_MEMBER % hashlib.sha256(members).hexdigest().encode():
            raise ValueError
        key = record["key"]
        return WrappedKey(
            str(key["kdf"]), bytes.fromhex(key["salt"]), bytes.fromhex(key["wrapped"])
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        raise IntegrityError(
            "The key record of the store (meta/format) is damaged. Restore it from a backup: no "
            "data can be decrypted without it."
        ) from None
