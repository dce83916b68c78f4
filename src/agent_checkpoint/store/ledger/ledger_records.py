"""The types and members of ledger records. Owns their validation; does not apply them.

    epoch       a session was opened: a fencing token; owners of older epochs cannot start effects
    started     an effect is about to be executed; durable before the execution starts
    committed   the effect was executed; failed: it was not; resolved: a person recorded the outcome
    undoing     the compensation of an effect is about to run; undone: it has run
    asked       a call needs approval; answered, used, void: the status of that request
    finished    a rollback is complete
    imported    all earlier records come from an archive: their epochs and answers are not valid

A purge replaces a record that contained a secret by a redacted record, whose member `instead` is
the number of the replaced record. Records of unknown types, from later versions, are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import JsonValue, is_utf8, short_repr
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.store import Store

PREFIX = "fx/"
STREAM_MEMBERS = frozenset({"agent_checkpoint", "parts", "sha256"})
"""Members that the stream adds to every record."""


class LedgerStream(RecordStream):
    """The stream of one ledger. Its records are checked when they are read."""

    def __init__(self, store: Store, lineage: str) -> None:
        super().__init__(store, PREFIX + lineage)
        self.lineage = lineage

    def check(self, seq: int, record: dict[str, Any]) -> None:
        """Check the members of a record. Raises IntegrityError."""
        check_record(self.lineage, seq, record)


def effective_seq(seq: int, record: dict[str, Any]) -> int:
    """Return the number at which a record applies: its own, or that of the record it replaces."""
    return record.get("instead") or seq


def check_record(lineage: str, seq: int, record: dict[str, Any]) -> None:
    """Check the members of a ledger record. Raises IntegrityError."""
    wrong = wrong_members(record)
    if not wrong and effective_seq(seq, record) > seq:
        wrong = ["instead"]
    if wrong:
        raise damaged_record(lineage, seq, f"wrong or missing members: {', '.join(wrong)}")


def damaged_record(lineage: str, seq: int, why: str) -> IntegrityError:
    """Return the error for an invalid ledger record."""
    return IntegrityError(
        f"Record {seq} of the ledger {short_repr(lineage, 300)} is invalid ({why})."
    )


def wrong_members(record: dict[str, JsonValue]) -> list[str]:
    """Return the names of members that are missing or have an invalid value."""
    what = record.get("type")
    if not _is_text(what):
        return ["type"]
    rules = {**_RULES_OF_ALL, **_RULES.get(str(what), {})}
    return [name for name, is_right in rules.items() if not is_right(record.get(name))]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and is_utf8(value)


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10**20


def _is_end(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)


Rules = dict[str, Callable[[Any], bool]]

# A valid hash does not authenticate the writer: anybody can compute one.
_RULES_OF_ALL: Rules = {
    "parts": lambda value: isinstance(value, dict),
    "instead": lambda value: value is None or (_is_count(value) and value > 0),
}
_ABOUT_EFFECT: Rules = {"ts_ns": _is_time, "effect": _is_text}
_ABOUT_REQUEST: Rules = {"ts_ns": _is_time, "request": _is_text}
_CALL: Rules = {
    "ts_ns": _is_time,
    **dict.fromkeys(("session", "tool", "module", "identity", "digest", "at", "words"), _is_text),
    **dict.fromkeys(
        ("task", "part", "called", "call_id", "call_ref", "subagent"), _is_text_or_none
    ),
}
_RULES: dict[str, Rules] = {
    "epoch": {"ts_ns": _is_time, "session": _is_text, "epoch": _is_count},
    "started": {
        **_CALL,
        "effect": _is_text,
        "kind": _is_text,
        "also": _is_text_or_none,
        "epoch": _is_count,
        "generation": _is_count,
        "request": _is_text_or_none,
        "number": lambda value: value is None or _is_count(value),
    },
    "committed": {**_ABOUT_EFFECT, "described": lambda value: value is None or _is_bool(value)},
    "failed": {**_ABOUT_EFFECT, "note": _is_text},
    "resolved": {**_ABOUT_EFFECT, "happened": _is_bool, "note": _is_text},
    "undoing": _ABOUT_EFFECT,
    "undone": _ABOUT_EFFECT,
    "asked": {**_CALL, "request": _is_text, "expires": _is_end, "within": _is_text_or_none},
    "answered": {
        **_ABOUT_REQUEST,
        "approved": _is_bool,
        "reason": _is_text_or_none,
        "by": _is_text_or_none,
    },
    "used": _ABOUT_REQUEST,
    "void": {
        "ts_ns": _is_time,
        "requests": _are_texts,
        "reason": _is_text_or_none,
        "reopen": lambda value: value is None or _is_bool(value),
    },
    "finished": {"ts_ns": _is_time, "checkpoint": _is_text},
    "imported": {"ts_ns": _is_time},
}

KNOWN_TYPES = frozenset(_RULES)
"""The record types that this version applies."""
