"""Taking a secret out of ledgers. Owns what stands in the place of a record that held it.

What was done outside stays known, and that it may not be done twice: the arguments, the result and
what people said are forgotten, and of names only what is the secret.
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

_WORDS = frozenset({"words", "note", "reason"})
"""What is said in sentences: a part of the secret may be left if the rest is taken out."""
_OURS = STREAM_MEMBERS | {"type", "kind"}
_RANDOM = frozenset({"identity", "also", "digest", "effect", "request", "object", "needed"})
_IS_RANDOM = re.compile(r"(approval-)?[0-9a-f]{12,64}")
"""Hashes and random ids hold nothing: to change one would part what belongs together."""


class Tainted(NamedTuple):
    """A record that holds the secret."""

    stream: str
    seq: int
    record: dict[str, Any]


def tainted_records(store: Store, holds: Callable[[dict[str, Any], bytes], bool]) -> list[Tainted]:
    """Return the records of all ledgers and the like that hold a secret.

    Args:
        store: where.
        holds: tells of the parts of a record, and of all texts in the rest of it.

    Raises:
        IntegrityError: one is damaged, so nobody can tell.
        StorageError: the medium failed.
    """
    found = []
    for prefix in RECORD_STREAMS:
        for name in store.backend.streams(prefix):
            for seq, record in _stream(store, name).read():
                said = "\n".join(_texts(_members(record)))
                if holds(record["parts"], said.encode()):
                    found.append(Tainted(name, seq, record))
    return found


def replace_records(store: Store, tainted: list[Tainted], blot: Callable[[str], str]) -> None:
    """Put records without the secret in the place of those that hold it.

    Args:
        store: where.
        tainted: what holds it.
        blot: returns a name without the secret; what is empty, as what stands for the secret.

    Raises:
        StorageError: the medium failed.
    """
    for name, seq, record in tainted:
        if name.startswith(PREFIX):
            plain = {key: value for key, value in record.items() if key not in STREAM_MEMBERS}
            plain.update(_blotted(_members(record), blot))
            plain.update({key: blot("") for key in _WORDS if plain.get(key)})
            plain["instead"] = effective_seq(seq, record)
            _stream(store, name).append(plain, {}, after=None)
        store.backend.remove(name, [seq])


def _stream(store: Store, name: str) -> RecordStream:
    if name.startswith(PREFIX):
        return LedgerStream(store, name[len(PREFIX) :])
    return RecordStream(store, name)


def _members(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record says that somebody chose, beside its parts."""
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


def _blotted(tree: Any, blot: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return blot(tree) if tree else tree
    if isinstance(tree, list):
        return [_blotted(item, blot) for item in tree]
    if isinstance(tree, dict):
        return {key: _blotted(item, blot) for key, item in tree.items()}
    return tree
