"""The state of a ledger: effects and approval requests, built by applying its records in order.

A ledger is append-only: later records change the status of an effect or a request. Does not depend
on the store, and does not execute effects. The classes of effects and requests are loaded with the
first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.ledger.ledger_records import (
    KNOWN_TYPES,
    check_record,
    damaged_record,
    effective_seq,
)
from agent_checkpoint.store.ledger.ledger_status import (
    APPROVED,
    BEFORE,
    COMMITTED,
    DENIED,
    FAILED,
    PENDING,
    UNDOING,
    UNDONE,
    UNKNOWN,
    USED,
    VOID,
)

if TYPE_CHECKING:
    from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect


def is_keyed(digest: str) -> bool:
    """Return whether a digest is keyed; see `seal.keyed_digest`."""
    return "." in digest


class Epoch(NamedTuple):
    """Fencing token, created each time a session is opened. A higher number is newer."""

    session: str
    number: int


class LedgerState:
    """The state of one ledger after the records applied so far."""

    def __init__(self, lineage: str) -> None:
        self.lineage = lineage
        self.epochs: dict[str, Epoch] = {}
        self.effects: dict[str, Effect] = {}
        self.requests: dict[str, ApprovalRequest] = {}
        self.finished: set[str] = set()
        self.effects_of: dict[str, dict[str, Effect]] = {}
        """The effects with an idempotency key (`identity`), by id, in order of their start."""
        self.effects_of_call: dict[str, dict[str, Effect]] = {}
        """The effects that a call of a model (`call_ref`) has started, by id, in order."""
        self.requests_of: dict[str, dict[str, ApprovalRequest]] = {}
        """The approval requests with an idempotency key (`identity`), by id, oldest first."""
        self.digests: set[str] = set()
        """The hashes of the arguments of all effects and requests."""
        self.has_keyed = False
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
        state = LedgerState(self.lineage)
        state.epochs, state.finished = other.epochs, other.finished
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
        with block_forks():
            from agent_checkpoint.store.ledger.ledger_calls import Effect  # slow to load

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
        with block_forks():
            from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest  # slow to load

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
