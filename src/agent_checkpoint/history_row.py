"""HistoryRow: the type of a row of `history`.

Only type checkers need it, and a TypedDict compiles each of its annotations: `records` does not
load it.
"""

from __future__ import annotations

from typing import TypedDict


class _HistoryRow(TypedDict):
    id: str
    ts: float | None
    kind: str
    label: str | None
    tags: list[str]
    metrics: dict[str, float]
    parents: list[str]
    parts: list[str]


class HistoryRow(_HistoryRow, total=False):
    """A checkpoint in a history, without its state. `error` is the reason why it is unreadable.

    `redacted`: how many secrets the save replaced; only present if there were any.
    """

    error: str
    redacted: int
