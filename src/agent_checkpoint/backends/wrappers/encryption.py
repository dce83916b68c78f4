"""The wrapper that encrypts objects, entries and names before they reach another backend.

Owns the key record of the store, and the binding of entries to their places. See
`design/034-encryption.md`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from agent_checkpoint.backends.base import (
    FORMAT_STREAM,
    NO_OBJECTS,
    Backend,
    BackendProperties,
    ObjectScan,
)
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.backends.wrappers.encryption_keys import (
    EncryptionKey,
    KeyMaterial,
    key_materials,
    read_key_record,
    url_options,
    write_key_record,
)
from agent_checkpoint.backends.wrappers.read_only import ReadOnlyBackend
from agent_checkpoint.backends.wrappers.store_cipher import OVERHEAD, StoreCipher
from agent_checkpoint.backends.wrappers.url_options import with_options
from agent_checkpoint.errors import (
    ConflictError,
    EncryptionKeyError,
    IntegrityError,
    InvalidInputError,
    MissingObjectsError,
    StorageError,
)
from agent_checkpoint.records import (
    Entry,
    ObjectInfo,
    check_object_id,
    check_stream,
    is_object_id,
    is_stream,
    short_repr,
)

_PREVIOUS = 8
"""Bytes of the number of the previous entry, before the encrypted entry."""
_TRIES = 1000
_PAUSE = 0.02
"""Seconds; the longest pause before the third attempt of an append, and a factor of later ones."""
_MOST_STREAMS = 1000
_DAMAGED = b""
"""Returned for an object or entry that is not authentic. The store above reports it as damaged:
neither an object nor an entry of a store is ever empty."""


class EncryptedBackend(WrapperBackend):
    """Encrypts with AES-256-GCM under a random data key, which the user's key encrypts.

    The data key is in the store's format record. Objects are bound to their ids, entries to their
    stream and to the entry before them. An object or entry that is not authentic comes back as
    empty bytes, so that the rest of a damaged store stays usable.
    """

    def __init__(self, inner: Backend, key: EncryptionKey) -> None:
        """Wrap a backend. The key is read, and the store checked, at the first use.

        Args:
            inner: the backend, which the wrapper closes.
            key: 32 random bytes, a passphrase, a path of a file with one of these, a function that
                returns one; or a list: the current key first, then keys that may open the store
                until `rotate_key` has run.
        """
        super().__init__(inner)
        self._key = key
        self._materials: list[KeyMaterial] = []
        self._properties: BackendProperties | None = None
        self._opened: StoreCipher | None = None
        self._newest: dict[str, int] = {}
        """The number of the newest entry of a stream, when it was last read or appended to."""

    def __reduce__(self) -> Any:
        raise InvalidInputError("An encrypted store cannot be pickled: open it again instead.")

    def __copy__(self) -> EncryptedBackend:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)  # not by __reduce__
        return twin

    @property
    def properties(self) -> BackendProperties:
        """Those of the wrapped backend, but not readable. The URL names a file or a variable.

        There is no URL if the key is given in any other way.
        """
        if self._properties is None:  # every save reads it several times
            inner, options = self.inner.properties, url_options(self._key)
            url = with_options(inner.url, **options) if options else None
            self._properties = inner._replace(readable=False, url=url, can_repack=False)
        return self._properties

    # -- the key record --------------------------------------------------------------------------

    def rotate_key(self, new: EncryptionKey | None = None) -> None:
        """Make a new key the only one that opens the store. The data is not encrypted again.

        Other processes may use the store meanwhile. If the call is interrupted, repeat it.

        Args:
            new: the new key; by default the first one of the keys that were given.

        Raises:
            EncryptionKeyError: none of the keys opens the store, it is not encrypted, or another
                process has rotated it to a key that is not given here.
            IntegrityError: the key record is damaged.
            StorageError: the medium failed.
        """
        if new is not None:
            materials = [*key_materials(new), *self._keys()]
            self._key, self._materials, self._properties = [new, self._key], materials, None
        self._cipher_to_write()
        first = self._keys()[0]
        for _ in range(_TRIES):
            newest = self._newest_record()
            if newest is None:
                raise self._no_record()
            # Not the cipher in use: if another process has rotated to a key that is not given
            # here, this rotation fails. Otherwise both would claim that only their key is valid.
            cipher, key = self._unwrapped(newest)
            if key is first:
                older = self.inner.read(FORMAT_STREAM, before=newest.seq)
                self.inner.remove(FORMAT_STREAM, [entry.seq for entry in older])
                return
            record = write_key_record(cipher.wrap(first))
            with suppress(ConflictError):  # another process rotates it: look again
                self.inner.append(FORMAT_STREAM, record, after=newest.seq)
        raise StorageError("Other processes keep changing the key of the store.", retryable=True)

    def _keys(self) -> list[KeyMaterial]:
        """Return the given keys; files are read, and functions called, once."""
        if not self._materials:
            self._materials = key_materials(self._key)
        return self._materials

    def _cipher(self) -> StoreCipher | None:
        """Return the cipher of the store; None if the store is new.

        Raises:
            EncryptionKeyError: no given key opens the store, or it is not encrypted.
            IntegrityError: the key record is damaged.
            StorageError: the medium failed.
        """
        if self._opened is None:
            # No lock: two threads do the same work, and a forked child cannot inherit it locked.
            self._opened = self._unlock()
        return self._opened

    def _cipher_to_write(self) -> StoreCipher:
        """Return the cipher of the store; make the key record of a new store."""
        cipher = self._cipher()
        if cipher is None:
            cipher = StoreCipher()
            record = write_key_record(cipher.wrap(self._keys()[0]))
            try:
                self.inner.append(FORMAT_STREAM, record, after=0)
            except ConflictError:  # another process opened the same new store
                return self._cipher_to_write()
            self._opened = cipher
        return cipher

    def _unlock(self) -> StoreCipher | None:
        self._keys()
        newest = self._newest_record()
        if newest is None and next(self.inner.streams(), None) is not None:
            # Written by another process in between, or missing: it is the first entry of a store.
            newest = self._newest_record()
            if newest is None:
                raise self._no_record()
        return None if newest is None else self._unwrapped(newest)[0]

    def _newest_record(self) -> Entry | None:
        return next(iter(self.inner.read(FORMAT_STREAM, limit=1, newest_first=True)), None)

    def _no_record(self) -> EncryptionKeyError:
        return EncryptionKeyError(
            f"{self.inner!r} has entries but no key record. It is not encrypted, or its key "
            "record was removed."
        )

    def _unwrapped(self, record: Entry) -> tuple[StoreCipher, KeyMaterial]:
        """Return the cipher in a key record, and the key that opens it. Raises as `_cipher`."""
        wrapped = read_key_record(record.data)
        if wrapped is None:
            raise EncryptionKeyError(
                f"{self.inner!r} is not encrypted. Open it without a key, or copy it to a new "
                "encrypted store."
            )
        for key in self._keys():
            cipher = StoreCipher.unwrap(key, wrapped)
            if cipher is not None:
                return cipher, key
        raise EncryptionKeyError(
            f"The encryption key does not open {self.inner!r}. Pass the key that the store was "
            "made with, or was last rotated to."
        )

    # -- objects ---------------------------------------------------------------------------------

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Encrypt and store objects. Raises also EncryptionKeyError."""
        for name in objects:
            check_object_id(name)
        if objects:
            self.inner.put_objects(_encrypted(self._cipher_to_write(), objects))

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects, decrypted. Raises also EncryptionKeyError."""
        cipher = self._cipher()
        if cipher is None:
            return {}
        found = self.inner.get_objects(_names(cipher, ids))
        plain = ((cipher.decrypt_name(name), data) for name, data in found.items())
        return {name: _opened(cipher.decrypt(data, _object_place(name))) for name, data in plain}

    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored. Raises also EncryptionKeyError."""
        cipher, asked = self._cipher(), set(ids)
        if cipher is None:
            return asked
        valid = {name for name in asked if is_object_id(name)}
        missing = self.inner.missing_objects(_names(cipher, valid))
        return asked - valid | {cipher.decrypt_name(name) for name in missing}

    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over all objects, with the sizes of their content. Raises EncryptionKeyError."""
        cipher = self._cipher()
        if cipher is not None:
            for name, size, ts in self.inner.list_objects():
                yield ObjectInfo(cipher.decrypt_name(name), max(0, size - OVERHEAD), ts)

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects. Raises also EncryptionKeyError."""
        cipher = self._cipher()
        if cipher is not None:
            self.inner.delete_objects(_names(cipher, ids))

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Raise StorageError: the first bytes of encrypted objects say nothing."""
        return Backend.find_objects(self, first, position)

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Raise StorageError, as `find_objects` does."""
        Backend.replace_objects(self, objects)

    # -- streams ---------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Encrypt and append, always after a known entry: the new entry is bound to it.

        Raises also EncryptionKeyError.
        """
        check_stream(stream)
        for name in objects:
            check_object_id(name)
        malformed = {name for name in requires if not is_object_id(name)}
        if malformed:
            raise MissingObjectsError(malformed)
        cipher = self._cipher_to_write()
        name, hidden = cipher.encrypt_stream(stream), _encrypted(cipher, objects)
        needed = list(_names(cipher, requires))
        previous = self._newest.get(stream) if after is None else after
        for attempt in range(_TRIES):
            if attempt > 1:  # several writers, of whom one can win: make room for it
                time.sleep(random.uniform(0.0, _PAUSE * min(attempt, 8)))  # noqa: S311 - a pause
            if previous is None:
                newest = self.inner.read(name, limit=1, newest_first=True)
                previous = newest[0].seq if newest else 0
            number = (previous if 0 <= previous < 1 << 63 else 0).to_bytes(_PREVIOUS, "big")
            data = number + cipher.encrypt(bytes(entry), _entry_place(stream, number))
            try:
                seq = self.inner.append(name, data, after=previous, objects=hidden, requires=needed)
            except MissingObjectsError as error:
                raise MissingObjectsError(map(cipher.decrypt_name, error.ids)) from error
            except ConflictError as error:
                if after is not None:
                    raise ConflictError(
                        f"The newest entry of the stream {short_repr(stream)} is not {after}."
                    ) from error
                previous = None  # another writer was faster
            else:
                self._saw(stream, seq)
                return seq
        raise StorageError(
            f"Too many others append to the stream {short_repr(stream)}.", retryable=True
        )

    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the entries, decrypted. Raises also EncryptionKeyError."""
        cipher = self._cipher()
        if cipher is None or not is_stream(stream):
            return []
        # One more, older entry where that is cheap, to check the place of the oldest of these.
        found = self.inner.read(
            cipher.encrypt_stream(stream),
            before=before,
            after=None if after is None else after - 1,
            limit=None if limit is None else limit + 1,
            newest_first=newest_first,
        )
        if newest_first and before is None:
            self._saw(stream, found[0].seq if found else 0)
        opened: list[Entry] = []
        older = 0
        for seq, data in reversed(found) if newest_first else found:
            previous = int.from_bytes(data[:_PREVIOUS], "big")
            plain = cipher.decrypt(data[_PREVIOUS:], _entry_place(stream, data[:_PREVIOUS]))
            # The entry before it was the newest one when it was appended. It may be removed since,
            # but no entry that is still there may lie between the two.
            is_in_place = older <= previous < seq
            opened.append(Entry(seq, _opened(plain if is_in_place else None)))
            older = seq
        if newest_first:
            opened.reverse()
        wanted = [entry for entry in opened if after is None or entry.seq > after]
        return wanted if limit is None else wanted[:limit]

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove the entries. Raises also EncryptionKeyError."""
        cipher = self._cipher()
        if cipher is not None and is_stream(stream):
            self.inner.remove(cipher.encrypt_stream(stream), seqs)

    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the decrypted names of streams.

        Raises:
            EncryptionKeyError: no given key opens the store, or it is not encrypted.
            IntegrityError: a name is not authentic. Not skipped: gc would delete what its entries
                refer to.
            StorageError: the medium failed.
        """
        cipher = self._cipher()
        if cipher is None:
            return
        kind, slash, _ = prefix.partition("/")
        for name in self.inner.streams(kind + slash if slash else ""):
            stream = cipher.decrypt_stream(name)
            if stream is None and name != FORMAT_STREAM:
                raise IntegrityError(
                    f"The name of the stream {short_repr(name)} in {self.inner!r} is not "
                    "authentic: the store was altered. Restore it from a backup, or remove the "
                    "stream there."
                )
            if stream is not None and stream.startswith(prefix):
                yield stream

    def _saw(self, stream: str, newest: int) -> None:
        if len(self._newest) >= _MOST_STREAMS:
            self._newest.clear()
        self._newest[stream] = newest


def find_encrypted(backend: Backend) -> EncryptedBackend:
    """Return the wrapper that encrypts a store, below other wrappers.

    Raises:
        EncryptionKeyError: the store is not encrypted.
        StorageError: the store is open read-only.
    """
    found: Any = backend
    while not isinstance(found, EncryptedBackend):
        if isinstance(found, ReadOnlyBackend):
            raise StorageError(f"{backend!r} is open read-only: its key cannot be rotated.")
        found = getattr(found, "inner", None)
        if found is None:
            raise EncryptionKeyError(f"{backend!r} was opened without an encryption key.")
    return found


def _encrypted(cipher: StoreCipher, objects: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        cipher.encrypt_name(name): cipher.encrypt(bytes(data), _object_place(name))
        for name, data in objects.items()
    }


def _object_place(object_id: str) -> bytes:
    return b"object " + bytes.fromhex(object_id)


def _entry_place(stream: str, previous: bytes) -> bytes:
    return b"entry " + previous + stream.encode()


def _names(cipher: StoreCipher, ids: Iterable[str]) -> Iterator[str]:
    return (cipher.encrypt_name(name) for name in ids if is_object_id(name))


def _opened(plain: bytes | None) -> bytes:
    return _DAMAGED if plain is None else plain
