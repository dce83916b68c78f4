"""The format record of a store: the format version and features required to read or write it."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.backends.base import ENCRYPTED, FORMAT_STREAM, Backend
from agent_checkpoint.errors import (
    ConflictError,
    EncryptionKeyError,
    FormatError,
    Hint,
    IntegrityError,
    InvalidInputError,
)
from agent_checkpoint.store.checkpoint_entries import FORMAT, append_record, open_entry
from agent_checkpoint.store.objects import compression

_ZSTD = "zstd"
"""The feature of a store whose objects are compressed with zstd."""


class FormatRecord:
    """The format record of one store. It is read again until a check has succeeded."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._allows: set[str] = set()
        self.needs_zstd = False
        """Whether objects are compressed with zstd; valid after `check`."""

    def read(self) -> dict[str, Any] | None:
        """Return the record; None if the store is new.

        Raises:
            IntegrityError: the record is damaged.
            FormatError: the record itself has a newer format.
            StorageError: the medium failed.
        """
        # A record without a seal is accepted: it can only cause the store to be rejected.
        entries = self._backend.read(FORMAT_STREAM, limit=1, newest_first=True)
        return open_entry(entries[0].data, "The format record of the store") if entries else None

    def check(self, *, writing: bool = False) -> None:
        """Check that this version can read or write the store; write the record of a new store.

        Raises:
            EncryptionKeyError: the store is encrypted, and was opened without a key.
            FormatError: the store has a newer format, or requires zstd, which is not installed.
            InvalidInputError: the store was created with another compression.
            IntegrityError: the format record is damaged, and `writing` is set.
            StorageError: the medium failed.
        """
        need = "write" if writing else "read"
        if need in self._allows:
            return
        try:
            record = self.read()
        except IntegrityError:
            if writing:
                raise
            return  # checkpoints can still be read; `verify` reports it
        if record is None and writing:
            features = [_ZSTD] if self._backend.properties.compression == "zstd" else []
            _check_installed(features)
            record = {"read": FORMAT, "write": FORMAT, "features": features}
            try:
                append_record(self._backend, FORMAT_STREAM, record, after=0)
            except ConflictError:  # another process opened the same new store
                record = self.read() or {}
        if record is None:
            return
        needed, features = record.get(need), record.get("features") or []
        if features == [ENCRYPTED]:  # the wrapper that decrypts hides this record
            raise EncryptionKeyError(
                f"The store of {self._backend!r} is encrypted.",
                hint=Hint(
                    "Pass encryption_key=, or name its key in the store URL: "
                    "…?encryption_key_file=/path or …?encryption_key_env=NAME.",
                    "encryption_key",
                ),
            )
        if not isinstance(needed, int) or needed > FORMAT or features not in ([], [_ZSTD]):
            raise FormatError(
                f"The store has format {needed} and features {features}; this version supports "
                f"formats up to {FORMAT}. Install a newer agent-checkpoint."
            )
        self._check_compression("zstd" if features else "zlib")
        _check_installed(features)
        self.needs_zstd = bool(features)
        self._allows.add(need)

    def _check_compression(self, present: str) -> None:
        if self._backend.properties.compression not in (None, present):
            raise InvalidInputError(
                f"The store of {self._backend!r} was created with compression={present!r}, which "
                "cannot be changed. Omit the option, or create another store."
            )


def _check_installed(features: list[str]) -> None:
    if features and compression.load_zstd() is None:
        raise FormatError(
            "The store uses zstd compression, but zstd is not installed. "
            f"{compression.INSTALL_ZSTD}."
        )
