"""RecordLog: small records that belong to a key, beside its checkpoints. For adapters."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.core.codec.redacted_tree import redact_tree
from agent_checkpoint.core.codec.save_policy import SavePolicy
from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.core.path_errors import as_state_error
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.store.record_stream import LogStream
from agent_checkpoint.store.store import Store

_PART = "record"


class RecordLog:
    """An append-only log of records of a key; see `CheckpointManager.records`.

    Any process may append at any time, also before the key has a checkpoint. Thread-safe.
    """

    def __init__(self, store: Store, key: str, name: str, policy: SavePolicy) -> None:
        self._stream = LogStream(store, key, name)
        self._policy = policy

    def append(self, value: Any, *, number: int | None = None, wait: float = 0) -> int:
        """Append a value durably; return its number, from 1. It is encoded as in a state.

        Args:
            value: the value.
            number: the number of the record that this one is a copy of, greater than those here.
            wait: seconds to wait for another thread of this process that saves or appends: the
                store then commits both at once, if it can.

        Raises:
            InvalidInputError: the number is not greater.
            ConflictError: another process appended to a log of copies.
            StateError: the value cannot be captured.
            StorageError: the medium failed; the record is not confirmed.
        """
        store, policy = self._stream.store, self._policy
        tree = encode_state({"value": value}, _PART, "json", store.writer, policy)
        if policy.redactor is not None:
            with as_state_error(_PART):
                tree, _ = redact_tree(tree, policy.redactor)
        if number is None:
            return self._stream.append({}, {_PART: tree}, after=None, wait=wait)[0]
        newest = self._stream.newest()
        if number <= self._stream.newest_number():
            raise InvalidInputError(f"The log already has a record with a number above {number}.")
        self._stream.append_copy(number, {_PART: tree}, after=newest)
        return number

    def read(self, after: int = 0) -> list[tuple[int, Any]]:
        """Return the records with numbers above `after`, in order: number and value of each.

        Raises:
            StateError: a value cannot be decoded.
            IntegrityError: a record is damaged.
            StorageError: the medium failed.
        """
        found = []
        for number, record in self._stream.read_numbered(after):
            parts = record["parts"]
            if _PART not in parts:  # a number that a copy used up
                continue
            decoded = decode_part(parts[_PART], _PART, reader=self._stream.reader(parts))
            found.append((number, decoded.value["value"]))
        return found

    def newest(self) -> int:
        """Return the number of the newest record, 0 if there is none.

        Raises IntegrityError, StorageError.
        """
        return self._stream.newest_number()

    def clear(self, before: int | None = None) -> None:
        """Remove all records, or those with numbers below `before`; no number is used again.

        Raises:
            IntegrityError: `before` is given, and a record is damaged.
            StorageError: the medium failed.
        """
        self._stream.clear(before)
