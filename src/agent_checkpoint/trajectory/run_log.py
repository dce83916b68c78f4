"""The results of `bisect` and `replay`, recorded beside the key. Owns their form and number.

The web UI shows them, since it cannot run a test or an agent. They are small and few, and nothing
depends on them: a key has the last 20.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.manager.manager import CheckpointManager

BISECT, REPLAY = "bisect", "replay"
_LOG = "runs"
MOST_RUNS = 20
_LONGEST = 20_000
MOST_ITEMS = 1_000


@dataclass(frozen=True)
class RecordedRun:
    """A recorded result. Its values are unverified: anyone who can write to the store made them."""

    number: int
    kind: str
    """`bisect` or `replay`."""
    ts: float
    values: dict[str, Any]


def record_run(
    manager: CheckpointManager, key: str, kind: str, values: dict[str, Any]
) -> str | None:
    """Record a result; return why it could not be recorded, as in a read-only store, else None."""
    log = manager.records(key, _LOG)
    try:
        log.append({"kind": kind, "ts": time.time(), **values})
    except CheckpointError as error:
        return str(error)
    with suppress(CheckpointError):  # it is recorded; the next one removes older ones
        rows = log.read()
        if len(rows) > MOST_RUNS:
            log.clear(before=rows[-MOST_RUNS][0])
    return None


def recorded_runs(manager: CheckpointManager, key: str) -> list[RecordedRun]:
    """Return the recorded results of a key, newest first.

    Raises:
        IntegrityError: a record is damaged.
        StateError: a record cannot be decoded.
        StorageError: the medium failed.
    """
    found = []
    for number, row in manager.records(key, _LOG).read():
        values = row if isinstance(row, dict) else {}
        kind, ts = values.get("kind"), values.get("ts")
        if kind in (BISECT, REPLAY) and isinstance(ts, float):
            found.append(RecordedRun(number, kind, ts, values))
    return found[::-1]


def as_text(value: Any) -> str:
    """Return a text, or another value as JSON, of a limited length, to be compared line by line."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
