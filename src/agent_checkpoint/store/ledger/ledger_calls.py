"""Effects and approval requests of a ledger, as its records describe them.

They are dataclasses, which a session without effects does not need: `dataclasses` is slow to load.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.ledger.ledger_status import (
    APPROVED,
    COMMITTED,
    DENIED,
    PENDING,
    REDACTED,
    UNDOING,
    UNKNOWN,
    title_of,
)


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
