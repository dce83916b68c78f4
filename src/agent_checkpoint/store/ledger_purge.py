"""Taking a secret out of ledgers. Owns what stands in the place of a record that held it.

What was done outside stays known, and that it may not be done twice: only the arguments and the
result are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from agent_checkpoint.store.json_text import write_json
from agent_checkpoint.store.ledger import PREFIX
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.verify import OTHERS

_WORDS = ("words", "note", "reason", "by", "task", "tool", "module", "part")


class Tainted(NamedTuple):
    """A record that holds the secret."""

    stream: str
    seq: int
    record: dict[str, Any]


def tainted_records(store: Store, holds: Callable[[dict[str, Any], bytes], bool]) -> list[Tainted]:
    """Return the records of all ledgers and the like that hold a secret.

    Args:
        store: where.
        holds: tells of the parts of a record, and of the rest of it as text.

    Raises:
        IntegrityError: one is damaged, so nobody can tell.
        StorageError: the medium failed.
    """
    found = []
    for prefix in OTHERS:
        for name in store.backend.streams(prefix):
            for seq, record in RecordStream(store, name).read():
                said = write_json({key: record.get(key) for key in _WORDS})
                if holds(record.get("parts", {}), said):
                    found.append(Tainted(name, seq, record))
    return found


def replace_records(store: Store, tainted: list[Tainted], blot: str) -> None:
    """Put records without the secret in the place of those that hold it. Raises StorageError."""
    for name, seq, record in tainted:
        if name.startswith(PREFIX):
            plain = {key: value for key, value in record.items() if key not in _NOT_TAKEN}
            texts = [key for key in _WORDS if isinstance(record.get(key), str) and record[key]]
            plain.update({key: blot for key in texts if key not in ("tool", "module", "part")})
            plain["instead"] = record.get("instead") or seq
            RecordStream(store, name).append(plain, {}, after=None)
        store.backend.remove(name, [seq])


_NOT_TAKEN = frozenset({"agent_checkpoint", "parts", "sha256"})
