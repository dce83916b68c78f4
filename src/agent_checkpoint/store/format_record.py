"""Which versions may read and write a store. Owns the one record that says so."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import ConflictError, FormatError, IntegrityError
from agent_checkpoint.store.entries import FORMAT, open_entry, seal_entry

_STREAM = "meta/format"


class FormatRecord:
    """The format record of one store, looked at until it has allowed what is to be done."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._allows: set[str] = set()

    def read(self) -> dict[str, Any] | None:
        """Return the record; None if the store is new.

        Raises:
            IntegrityError: the record is damaged.
            FormatError: the record itself is of a newer format.
            StorageError: the medium failed.
        """
        entries = self._backend.read(_STREAM, limit=1, newest_first=True)
        return open_entry(entries[0].data, "The format record of the store") if entries else None

    def check(self, *, writing: bool = False) -> None:
        """Make sure that this version may read, or write, the store; a new one gets its record.

        Raises:
            FormatError: the store is of a newer format.
            IntegrityError: the format record is damaged, and the store is to be written.
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
            return  # what is there can still be read; `verify` tells
        if record is None and writing:
            record = {"read": FORMAT, "write": FORMAT, "features": []}
            entry = seal_entry(record, indent=self._backend.readable)
            try:
                self._backend.append(_STREAM, entry, after=0)
            except ConflictError:  # another process opened the same new store
                record = self.read() or {}
        if record is None:
            return
        needed = record.get(need)
        if not isinstance(needed, int) or needed > FORMAT or record.get("features"):
            raise FormatError(
                f"The store has format {needed}, features {record.get('features')}; this "
                f"version knows format {FORMAT}. Install a newer agent-checkpoint."
            )
        self._allows.add(need)
