"""The state of a ledger: effects and approval requests, built by applying its records in order.

A ledger is append-only: later records change the status of an effect or a request. Does not depend
on the store, and does not execute effects.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.ledger.ledger_records import (
    KNOWN_TYPES,
    check_record,
    damaged_record,
    effective_seq,
)

UNKNOWN, COMMITTED, FAILED, UNDOING, UNDONE = "unknown", "committed", "failed", "undoing", "undone"
BEFORE = {COMMITTED: {UNKNOWN, FAILED}, FAILED: {UNKNOWN}, UNDOING: {COMMITTED}, UNDONE: {UNDOING}}
"""Allowed previous statuses of each status. A record that violates this came late; ignored."""
PENDING, APPROVED, DENIED, USED, VOID = "pending", "approved", "denied", "used", "void"
REDACTED = "redacted"
"""The part with redacted arguments, instead of `arguments`: the call cannot run from it."""
UNREADABLE = "unreadable"
"""Status of the placeholder in lists for a ledger that cannot be read."""


@dataclass(repr=False)
class _Call:
    """A tool call in a ledger."""

    id: str
    session: str
    tool: str
    module: str
    """The module that defines the tool."""
    identity: str
    """Hash of the idempotency key. Two effects with the same identity must not both be executed."""
    digest: str
    """Hash of the arguments of the call."""
    seq: int
    ts: float
    task: str | None
    at: str
    """The id of the head when an effect was started, or of the checkpoint saved with a request."""
    parts: dict[str, JsonValue]
    """The arguments, encoded; of an effect also the result, of a request the edited arguments."""
    words: str
    """A description for people."""
    called: str | None
    """The name of the tool in the model's message, if it is another one."""

    @property
    def title(self) -> str:
        """Tool name and hash of the arguments; messages and logs must not contain arguments."""
        return title_of(self.called or self.tool, self.digest)

    @property
    def is_redacted(self) -> bool:
        """Whether only redacted arguments are stored."""
        return REDACTED in self.parts


@dataclass(repr=False)
class Effect(_Call):
    """An external side effect that was started, and its status."""

    kind: str
    also: str | None = None
    """A second identity, if the approver edited the arguments."""
    status: str = UNKNOWN
    note: str = ""
    described: bool = False
    """Whether only a description of the result is stored."""
    generation: int = 0
    """How many effects with this identity were compensated before."""
    part: str | None = None
    """The part of the session whose method the tool is; None if the tool is not a method."""
    call_id: str | None = None
    """The id of the call in the model's message, if the session ran it from there."""
    call_ref: str | None = None
    """The identity of such a call; see `session/open_calls.py`."""
    subagent: str | None = None
    """The path of the sub-agent that made the call; None for the session's own agent."""
    number: int | None = None
    """The call number in the identity, if the call has no idempotency key."""
    is_late: bool = False
    """Whether `committed` was recorded after the effect had been recorded as failed."""

    def __repr__(self) -> str:
        return f"<Effect {self.id}: {self.title}, {self.status}>"

    @property
    def stands(self) -> bool:
        """Whether the effect was executed, or may have been, and was not compensated."""
        return self.status in (UNKNOWN, COMMITTED, UNDOING)


@dataclass(repr=False)
class ApprovalRequest(_Call):
    """An approval request for a tool call."""

    expires: float | None
    status: str = PENDING
    answer: str | None = None
    """Approved or denied. Not changed when the answer is used."""
    by: str | None = None
    reason: str | None = None
    """The reason why the request was denied, is void, or is unreadable."""
    part: str | None = None
    call_id: str | None = None
    call_ref: str | None = None
    subagent: str | None = None
    within: str | None = None
    """The `call_ref` of the model's call whose tool made the call that waits."""
    answer_seq: int = 0
    """The number of the record with the answer; another answer has another number."""

    def __repr__(self) -> str:
        return f"<ApprovalRequest {self.id}: {self.title}, {self.status}>"

    @property
    def status_text(self) -> str:
        """The status for display, with the answer if the status does not include it."""
        if self.status == PENDING and self.is_expired:
            return "expired"
        is_included = self.answer in (None, self.status)
        return self.status if is_included else f"{self.answer}, {self.status}"

    @property
    def is_expired(self) -> bool:
        """Whether the request has expired: it cannot be answered, and its answer cannot be used."""
        return self.expires is not None and time.time() > self.expires

    @property
    def is_answered(self) -> bool:
        """Whether the request has an answer that was not used yet and can be revoked."""
        return self.status in (APPROVED, DENIED)

    @property
    def is_open(self) -> bool:
        """Whether the request waits for an answer."""
        return self.status == PENDING and not self.is_expired


def is_keyed(digest: str) -> bool:
    """Return whether a digest is keyed; see `seal.keyed_digest`."""
    return "." in digest


def title_of(tool: str, digest: str) -> str:
    """Return the title of a call: the tool name, and a prefix of the hash of the arguments."""
    return f"{tool} [{digest[:8]}]"


class Epoch(NamedTuple):
    """Fencing token, created each time a session is opened. A higher number is newer."""

    session: str
    number: int


@dataclass(eq=False)
class LedgerState:
    """The state of one ledger after the records applied so far."""

    lineage: str
    epochs: dict[str, Epoch] = field(default_factory=dict)
    effects: dict[str, Effect] = field(default_factory=dict)
    requests: dict[str, ApprovalRequest] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    effects_of: dict[str, dict[str, Effect]] = field(default_factory=dict)
    """The effects with an idempotency key (`identity`), by id, in order of their start."""
    effects_of_call: dict[str, dict[str, Effect]] = field(default_factory=dict)
    """The effects that a call of a model (`call_ref`) has started, by id, in order."""
    requests_of: dict[str, dict[str, ApprovalRequest]] = field(default_factory=dict)
    """The approval requests with an idempotency key (`identity`), by id, oldest first."""
    digests: set[str] = field(default_factory=set)
    """The hashes of the arguments of all effects and requests."""
    has_keyed: bool = False
    """Whether one of the hashes is keyed, because `redact=` found a secret in the arguments."""

    def apply(self, seq: int, record: dict[str, Any]) -> None:
        """Apply a checked record.

        Raises:
            IntegrityError: the record refers to an unknown effect or request.
        """
        if record["type"] not in KNOWN_TYPES:
            return  # written by a later version
        try:
            getattr(self, "_" + record["type"])(effective_seq(seq, record), record)
        except KeyError as error:
            why = f"it refers to {error}, which has no earlier record"
            raise damaged_record(self.lineage, seq, why) from None

    def pinned_checkpoints(self) -> Iterator[str]:
        """Iterate over the ids of checkpoints of open requests and effects with unknown outcome."""
        for effect in list(self.effects.values()):
            if effect.status in (UNKNOWN, UNDOING):
                yield effect.at
        for request in list(self.requests.values()):
            if request.status == APPROVED or request.is_open:
                yield request.at

    def become(self, other: LedgerState) -> None:
        """Take over another state; update known objects in place, because callers hold them."""
        state = LedgerState(self.lineage, other.epochs, finished=other.finished)
        for effect in other.effects.values():
            known = self.effects.get(effect.id, effect)
            vars(known).update(vars(effect))
            state._add_effect(known)
        for request in other.requests.values():
            asked = self.requests.get(request.id, request)
            vars(asked).update(vars(request))
            state._add_request(asked)
        vars(self).update(vars(state))

    def _add_effect(self, effect: Effect) -> None:
        effect = self.effects.setdefault(effect.id, effect)
        for name in {effect.identity, effect.also or effect.identity}:
            self.effects_of.setdefault(name, {})[effect.id] = effect
        if effect.call_ref is not None:
            self.effects_of_call.setdefault(effect.call_ref, {})[effect.id] = effect
        self._add_digest(effect.digest)

    def _add_request(self, request: ApprovalRequest) -> None:
        request = self.requests.setdefault(request.id, request)
        self.requests_of.setdefault(request.identity, {})[request.id] = request
        self._add_digest(request.digest)

    def _add_digest(self, digest: str) -> None:
        self.digests.add(digest)
        self.has_keyed = self.has_keyed or is_keyed(digest)

    def _epoch(self, seq: int, record: dict[str, Any]) -> None:
        epoch = Epoch(record["session"], record["epoch"])
        if epoch.number >= self.epochs.get(epoch.session, epoch).number:
            self.epochs[epoch.session] = epoch

    def _started(self, seq: int, record: dict[str, Any]) -> None:
        effect = Effect(
            id=record["effect"],
            kind=record["kind"],
            also=record.get("also"),
            generation=record["generation"],
            number=record.get("number"),
            **_call(seq, record),
        )
        self._add_effect(effect)
        if record.get("request") is not None:
            self.requests[record["request"]].status = USED

    def _committed(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status not in BEFORE[COMMITTED]:
            return  # a fenced-off owner reports late
        effect.is_late = effect.status == FAILED
        if effect.is_late:
            effect.note = f"done, although it had been declared not done ({effect.note})"
        effect.described = bool(record.get("described"))
        effect.parts.update(record["parts"])
        effect.status = COMMITTED  # last: after an interruption the record is applied again

    def _failed(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status in BEFORE[FAILED]:
            effect.status, effect.note = FAILED, record["note"]

    def _resolved(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status not in (UNKNOWN, UNDOING):
            return
        gone = UNDONE if effect.status == UNDOING else FAILED
        effect.note = record["note"]
        effect.parts.update(record["parts"])
        effect.status = COMMITTED if record["happened"] else gone

    def _undoing(self, seq: int, record: dict[str, Any]) -> None:
        effect, status = self.effects[record["effect"]], record["type"]
        if effect.status in BEFORE[status]:
            effect.status = status

    _undone = _undoing

    def _asked(self, seq: int, record: dict[str, Any]) -> None:
        request = ApprovalRequest(
            id=record["request"],
            expires=record.get("expires"),
            within=record.get("within"),
            **_call(seq, record),
        )
        if "arguments" not in request.parts and not request.is_redacted:
            request.status, request.reason = VOID, _PURGED
        self._add_request(request)

    def _answered(self, seq: int, record: dict[str, Any]) -> None:
        request = self.requests[record["request"]]
        request.by = record.get("by")
        if request.status != PENDING:
            return
        request.reason = record.get("reason")
        request.parts.update(record["parts"])
        request.answer_seq = seq
        request.status = request.answer = APPROVED if record["approved"] else DENIED
        if record["approved"] and "instead" in record:
            # The approver may have edited the arguments: the original ones were not approved.
            request.status, request.reason = VOID, _PURGED

    def _used(self, seq: int, record: dict[str, Any]) -> None:
        self.requests[record["request"]].status = USED

    def _void(self, seq: int, record: dict[str, Any]) -> None:
        for name in record["requests"]:
            request = self.requests[name]
            if not record.get("reopen"):
                request.status, request.reason = VOID, record.get("reason") or request.reason
            elif request.is_answered:  # else it was used, or voided by a purge, before
                request.parts.pop("edited", None)
                request.status, request.answer, request.by = PENDING, None, None
                request.reason = record.get("reason")

    def _imported(self, seq: int, record: dict[str, Any]) -> None:
        self.epochs.clear()
        for request in self.requests.values():
            if request.status != USED:
                request.status = VOID

    def _finished(self, seq: int, record: dict[str, Any]) -> None:
        self.finished.add(record["checkpoint"])


_PURGED = "its arguments were purged"


def _call(seq: int, record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `Effect` and `ApprovalRequest` have in common."""
    texts = ("session", "tool", "module", "identity", "digest", "at", "words")
    names = (*texts, "task", "part", "called", "call_id", "call_ref", "subagent")
    members = {name: record.get(name) for name in names}
    return {**members, "seq": seq, "ts": record["ts_ns"] / 1e9, "parts": dict(record["parts"])}


def in_order(records: Iterable[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Return records in the order of application; a redacted record at its original position."""
    return sorted(records, key=lambda item: effective_seq(*item))


def check_records(lineage: str, records: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Check that records form a valid ledger. Raises IntegrityError."""
    numbered = list(records)
    for seq, record in numbered:
        check_record(lineage, seq, record)
    state = LedgerState(lineage)
    for seq, record in in_order(numbered):
        state.apply(seq, record)
