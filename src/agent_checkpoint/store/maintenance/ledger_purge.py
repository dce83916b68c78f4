"""Purges a secret from ledgers. Owns the redaction of ledger records.

An external side effect stays recorded, so that it is not repeated. Arguments, result and free text
of its record are dropped; in names only the secret itself is redacted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    STREAM_MEMBERS,
    LedgerStream,
    effective_seq,
)
from agent_checkpoint.store.maintenance.verify import RECORD_STREAMS
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.store import Store

_FREE_TEXT = frozenset({"words", "note", "reason"})
"""Members with free text. They are dropped: a redaction could leave a part of the secret."""
_OURS = STREAM_MEMBERS | {"type", "kind"}
_RANDOM = frozenset({"identity", "also", "digest", "effect", "request", "object", "needed"})
_IS_RANDOM = re.compile(r"(approval-)?[0-9a-f]{12,64}")
"""Hashes and random ids. They contain no secret, and redacting one would break references."""


class TaintedRecord(NamedTuple):
    """A record that contains the secret."""

    stream: str
    seq: int
    record: dict[str, Any]


def tainted_records(
    store: Store, holds: Callable[[dict[str, Any], bytes], bool]
) -> list[TaintedRecord]:
    """Return the records that contain a secret, of all record streams.

    Args:
        store: the store.
        holds: returns whether the parts of a record, or the strings in its other members, contain
            the secret.

    Raises:
        IntegrityError: a record is damaged, so its content is unknown.
        StorageError: the medium failed.
    """
    tainted = []
    for prefix in RECORD_STREAMS:
        for name in store.backend.streams(prefix):
            for seq, record in _stream(store, name).read():
                texts = "\n".join(_texts(_members(record)))
                if holds(record["parts"], texts.encode()):
                    tainted.append(TaintedRecord(name, seq, record))
    return tainted


def replace_records(
    store: Store, tainted: list[TaintedRecord], redact: Callable[[str], str]
) -> None:
    """Replace ledger records that contain the secret by redacted records; remove other records.

    Args:
        store: the store.
        tainted: the records that contain the secret.
        redact: returns a string without the secret, or the placeholder for an empty string.

    Raises:
        StorageError: the medium failed.
    """
    for name, seq, record in tainted:
        if name.startswith(PREFIX):
            plain = {key: value for key, value in record.items() if key not in STREAM_MEMBERS}
            plain.update(_redacted(_members(record), redact))
            plain.update({key: redact("") for key in _FREE_TEXT if plain.get(key)})
            plain["instead"] = effective_seq(seq, record)
            _stream(store, name).append(plain, {}, after=None)
        store.backend.remove(name, [seq])


def _stream(store: Store, name: str) -> RecordStream:
    if name.startswith(PREFIX):
        return LedgerStream(store, name[len(PREFIX) :])
    return RecordStream(store, name)


def _members(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a record, except its parts, that may contain user data."""
    return {
        key: value
        for key, value in record.items()
        if key not in _OURS
        and not (key in _RANDOM and isinstance(value, str) and _IS_RANDOM.fullmatch(value))
    }


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (list, dict)):
        for item in tree if isinstance(tree, list) else tree.values():
            yield from _texts(item)


def _redacted(tree: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return redact(tree) if tree else tree
    if isinstance(tree, list):
        return [_redacted(item, redact) for item in tree]
    if isinstance(tree, dict):
        return {key: _redacted(item, redact) for key, item in tree.items()}
    return tree
