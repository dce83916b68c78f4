"""Computes the identity of an effect. Calls with the same identity are one effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.redaction import Redactor
from agent_checkpoint.session.session_record import SessionRecord
from agent_checkpoint.session.tools.call_arguments import fingerprints
from agent_checkpoint.session.tools.invoke import invoke_by_name
from agent_checkpoint.session.tools.tool import Tool
from agent_checkpoint.store.ledger.ledger_state import LedgerState


class CallNumber(NamedTuple):
    """The position of a call without a key among identical calls of its task."""

    place: str | None
    """The task, and the agent; see `AgentScope.place`."""
    kind: str
    number: int


class CallNumbers:
    """Reserves numbers for running calls without a key. The caller holds the lock."""

    def __init__(self, record: SessionRecord) -> None:
        self._record = record
        self._reserved: dict[Any, CallNumber] = {}

    def reserve(
        self,
        tool: Tool,
        digest: str,
        place: str | None,
        holder: Any,
        *,
        number: int | None = None,
        others: Collection[int] = (),
    ) -> CallNumber | None:
        """Reserve a number; return None if the tool has a key.

        Args:
            tool: the tool.
            digest: the hash of the arguments.
            place: the task, and the agent.
            holder: the call.
            number: the number of an earlier attempt at this call; None for the lowest free one.
            others: numbers of other calls that will be attempted again.
        """
        if tool.key is not None:
            return None
        kind = f"{tool.name} {digest[:16]}"
        taken = set(others) | {
            call_number.number
            for call_number in list(self._reserved.values())
            if call_number[:2] == (place, kind)
        }
        free = number or self._record.counts.next_number(place, kind, taken)
        call_number = CallNumber(place, kind, free)
        self._reserved[holder] = call_number
        return call_number

    def release(self, holder: Any) -> None:
        """Drop a reservation, whether its number was used or not."""
        self._reserved.pop(holder, None)

    def release_for_retry(self, holder: Any, call_number: CallNumber | None) -> None:
        """Give the number to the next identical call: no caller received the result."""
        call_number = call_number or self._reserved.get(holder)
        if call_number is not None:
            self._record.counts.mark_unused(*call_number)
        self._reserved.pop(holder, None)


def call_digest(given: Any, what: str, redactor: Redactor | None, ledger: LedgerState) -> str:
    """Return the digest of the arguments of a call: the one that is recorded, or a new one.

    Raises:
        InvalidInputError: the arguments cannot be compared.
        StateError: the user's secret is needed, and cannot be used.
    """
    digests = fingerprints(given, what, redactor, with_keyed=ledger.has_keyed)
    return next((digest for digest in digests if digest in ledger.digests), digests[0])


def effect_identity(
    tool: Tool,
    arguments: Mapping[str, Any],
    digest: str,
    place: str | None,
    number: int = 0,
    *,
    part: str | None = None,
    redactor: Redactor | None = None,
    ledger: LedgerState | None = None,
) -> str:
    """Return the identity of an effect, from its key, or from place, arguments and call number.

    The identity of a method tool includes `part`, the name of the part it is called on. `ledger`
    has the identities that are recorded.

    Raises:
        InvalidInputError: `key=` failed, or its value cannot be compared.
        StateError: the user's secret is needed, and cannot be used.
    """
    if tool.key is None:  # the digest includes the part
        return _identity([tool.name, "call", place or "", digest, str(number)], digest)
    with_keyed = ledger is not None and ledger.has_keyed
    key = _key(tool, tool.key, arguments)
    end = [] if part is None else [part]
    names = [
        _identity([tool.name, "key", found, *end], found)
        for found in fingerprints(key, "The key", redactor, with_keyed=with_keyed)
    ]
    known = [
        name
        for name in names
        if ledger is not None and (name in ledger.effects_of or name in ledger.requests_of)
    ]
    return (known or names)[0]


def _identity(name: list[str], digest: str) -> str:
    """Return the hash of a name; with the name of the HMAC key if its digest is keyed."""
    _, point, key_name = digest.partition(".")
    return hashlib.sha256(json.dumps(name).encode()).hexdigest() + point + key_name


def _key(tool: Tool, key: Any, arguments: Mapping[str, Any]) -> Any:
    try:
        return invoke_by_name(key, tool.keyword_arguments(arguments))
    except Exception as error:
        raise InvalidInputError(
            f"key= of the tool {tool.name} failed ({cause_text(error)}). It receives the call's "
            "arguments by name, without self."
        ) from error
