"""Formats effects and approval requests as text and JSON; finds them by id prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agent_checkpoint.cli.output import format_time, json_fields, one_line
from agent_checkpoint.errors import UNUSABLE, InvalidInputError, NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect
from agent_checkpoint.store.ledger.lineage import lineages
from agent_checkpoint.store.store import Store

_NAMED = 8


def effect_line(effect: Effect) -> str:
    """Return an effect as one line of text."""
    return f"{one_line(effect.words, 200)} ({effect.kind}, {format_time(effect.ts)})"


def effect_json(effect: Effect) -> dict[str, Any]:
    """Return an effect as JSON data."""
    return json_fields(effect, "id session tool words kind status ts task at note subagent")


def request_json(request: ApprovalRequest) -> dict[str, Any]:
    """Return a request as JSON data; the caller adds the arguments."""
    names = "id session tool words status ts expires task at answer by reason subagent"
    data = json_fields(request, names)
    if request.status == "pending" and request.is_expired:
        data["status"] = "expired"
    return data


def all_ledgers(store: Store) -> Iterator[Ledger]:
    """Iterate over the ledgers of a store; skip unusable ones. Raises StorageError."""
    for family in lineages(store):
        ledger = Ledger(store, family)
        try:
            ledger.refresh()
        except UNUSABLE:
            continue  # `verify` reports it
        yield ledger


def match_id(text: str, names: Iterable[str], noun: str) -> str:
    """Return the name that equals `text`, or the only name that starts with it.

    Raises:
        NotFoundError: no name matches.
        InvalidInputError: several names match.
    """
    known = list(names)
    if text in known:
        return text
    found = [name for name in known if name.startswith(text) and text]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(sorted(found)[:_NAMED]) + (", …" if len(found) > _NAMED else "")
        raise InvalidInputError(
            f"{short_repr(text)} is ambiguous: it matches {len(found)} {noun}s: {some}."
        )
    raise NotFoundError(f"No {noun} {short_repr(text)} in this store.")
