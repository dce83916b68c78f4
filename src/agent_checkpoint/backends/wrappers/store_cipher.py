"""The cipher of one encrypted store: object names, stream names and contents under its data key.

Owns the format of encrypted bytes, described in `design/034-encryption.md`. Needs `cryptography`.
"""

from __future__ import annotations

import os
from base64 import b32decode, b32encode
from hashlib import blake2b
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from agent_checkpoint.backends.wrappers.encryption_keys import KEY_BYTES, KeyMaterial, WrappedKey
from agent_checkpoint.errors import InvalidInputError

_VERSION = b"\1"
_SALT = 16
_HEADER = len(_VERSION) + _SALT
_NONCE = bytes(12)
"""Constant: every message has a key of its own."""

OVERHEAD = _HEADER + 16
"""How many bytes longer an encrypted object is."""


class StoreCipher:
    """Encrypts for one store. Has no state besides its keys; thread-safe."""

    def __init__(self, data_key: bytes | None = None) -> None:
        """Use a data key, or make one."""
        self._data_key = data_key or os.urandom(KEY_BYTES)
        self._rounds = [self._subkey(b"name %d" % number) for number in range(4)]
        self._streams = AESSIV(self._subkey(b"stream 1") + self._subkey(b"stream 2"))
        self._contents = self._subkey(b"content")

    def __reduce__(self) -> Any:
        raise InvalidInputError("The cipher of an encrypted store cannot be pickled.")

    @classmethod
    def unwrap(cls, key: KeyMaterial, wrapped: WrappedKey) -> StoreCipher | None:
        """Return the cipher of a store; None if it was wrapped under another key."""
        try:
            wrapping = AESGCM(key.wrapping_key(wrapped.kdf, wrapped.salt))
            return cls(wrapping.decrypt(_NONCE, wrapped.wrapped, b"data key"))
        except InvalidTag:
            return None

    def wrap(self, key: KeyMaterial) -> WrappedKey:
        """Encrypt the data key under a key of the user."""
        kdf, salt = "blake2b" if key.is_random else "scrypt", os.urandom(_SALT)
        wrapping = AESGCM(key.wrapping_key(kdf, salt))
        return WrappedKey(kdf, salt, wrapping.encrypt(_NONCE, self._data_key, b"data key"))

    def encrypt_name(self, object_id: str) -> str:
        """Return the name of an object in the store: a Luby-Rackoff permutation of its id."""
        left, right = bytes.fromhex(object_id[:32]), bytes.fromhex(object_id[32:])
        for key in self._rounds:
            left, right = right, _mixed(left, right, key)
        return (left + right).hex()

    def decrypt_name(self, name: str) -> str:
        """Return the id of an object from its name in the store."""
        left, right = bytes.fromhex(name[:32]), bytes.fromhex(name[32:])
        for key in reversed(self._rounds):
            left, right = _mixed(right, left, key), left
        return (left + right).hex()

    def encrypt_stream(self, stream: str) -> str:
        """Return the name of a stream in the store: its kind, and the rest under AES-SIV."""
        kind, _, rest = stream.partition("/")
        hidden = b32encode(self._streams.encrypt(rest.encode(), [kind.encode()]))
        # Lower case: media may fold case, and the file backend shortens names with capitals.
        return f"{kind}/{hidden.decode().rstrip('=').lower()}"

    def decrypt_stream(self, name: str) -> str | None:
        """Return the name of a stream; None if this cipher did not make it."""
        kind, _, rest = name.partition("/")
        try:
            hidden = b32decode(rest.upper() + "=" * (-len(rest) % 8))
            stream = f"{kind}/{self._streams.decrypt(hidden, [kind.encode()]).decode()}"
        except (InvalidTag, ValueError):
            return None
        return stream if self.encrypt_stream(stream) == name else None  # one spelling alone

    def encrypt(self, data: bytes, place: bytes) -> bytes:
        """Encrypt bytes for one place, such as an object id: nowhere else can they be decrypted."""
        salt = os.urandom(_SALT)
        return _VERSION + salt + self._content_cipher(salt, place).encrypt(_NONCE, data, place)

    def decrypt(self, data: bytes, place: bytes) -> bytes | None:
        """Decrypt the bytes of a place; None if they were altered or are from another place."""
        if data[:1] != _VERSION or len(data) < OVERHEAD:
            return None
        try:
            cipher = self._content_cipher(data[1:_HEADER], place)
            return cipher.decrypt(_NONCE, data[_HEADER:], place)
        except InvalidTag:
            return None

    def _content_cipher(self, salt: bytes, place: bytes) -> AESGCM:
        return AESGCM(blake2b(salt + place, key=self._contents, digest_size=KEY_BYTES).digest())

    def _subkey(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._data_key, digest_size=KEY_BYTES).digest()


def _mixed(left: bytes, right: bytes, key: bytes) -> bytes:
    mask = blake2b(right, key=key, digest_size=16).digest()
    return (int.from_bytes(left, "big") ^ int.from_bytes(mask, "big")).to_bytes(16, "big")
