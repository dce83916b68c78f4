"""A tool call, and the effect context that a tool receives. Owns the idempotency key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.redaction import Redactor
from agent_checkpoint.session.effects.idempotency import CallNumber
from agent_checkpoint.session.tools.call_arguments import describe_call
from agent_checkpoint.session.tools.tool import Tool
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect


class EffectContext:
    """The `effect` argument of a tool: the effect id and the idempotency key."""

    def __init__(self, effect: Effect, family: str) -> None:
        self.id = effect.id
        text = json.dumps([family, effect.identity, effect.generation])
        self.key = hashlib.sha256(text.encode()).hexdigest()[:40]
        """The idempotency key: the same for every attempt at one effect, unique to it."""
        self.is_not_done = False

    def not_done(self) -> None:
        """Report, before raising an error, that nothing happened: the call may be retried."""
        self.is_not_done = True


@dataclass
class ApprovalQuestion:
    """The argument of an `approve=` function: the call to approve."""

    tool: str
    arguments: dict[str, Any]
    task: str | None
    words: str


class Decision(NamedTuple):
    """The decision about a call: run the effect, or replay its recorded result."""

    effect: Effect
    is_replay: bool
    result: Any = None


@dataclass(eq=False)
class ToolCall:
    """One tool call in progress."""

    tool: Tool
    owner: Any
    arguments: dict[str, Any]
    task: str | None = None
    subagent: str = ""
    """The path of the sub-agent that makes the call; empty for the session's own agent."""
    part: str | None = None
    """The part whose method is called; empty for a method of an object that is not a part."""
    digest: str = ""
    """Hash of the requested arguments; empty if the call needs neither ledger nor approval."""
    identity: str = ""
    """The identity of the effect; see `effect_identity`."""
    call_number: CallNumber | None = None
    decision: Decision | None = None
    context: EffectContext | None = None
    request: ApprovalRequest | None = None
    """The approved request, if `carry_out` runs this call."""
    edited: list[str] = field(default_factory=list)
    """The arguments whose values the approver changed."""
    is_awaited: bool = False
    """Whether the call runs on an event loop, with its blocking steps on another thread."""
    began: float = 0.0
    redactor: Redactor | None = None
    """Applied to the descriptions of the call; the call itself is never changed."""
    given: Any = None
    """The arguments as recorded before the call: the tool may modify them."""
    called: str | None = None
    """The name of the tool in the model's message, if it is another one."""
    call_id: str | None = None
    """The id of the call in the model's message, if `run_tools` runs it."""
    call_ref: str | None = None
    """The identity of such a call; see `session/open_calls.py`."""
    within: str | None = None
    """The `call_ref` of the call whose tool makes this call, if it waits for an approval."""
    is_saved: bool = True
    """Whether a checkpoint follows the call, as `every` says."""
    before: str = ""
    """The head when a model's call began."""
    is_torn: bool = False
    """Whether a call within it waits for an approval, after a part of its changes."""
    is_abandoned: bool = False
    """Whether the session has gone on without the call: it leaves no row and no checkpoint."""
    row: dict[str, Any] | None = None
    """The row in the list of calls, once the call has ended."""

    @property
    def name(self) -> str:
        """The name of the tool, as the model knows it."""
        return self.called or self.tool.name

    @property
    def words(self) -> str:
        """The label of the checkpoint after the call; that of the original call if replayed."""
        if self.decision is not None and self.is_replay:
            return self.decision.effect.words
        return describe_call(self.name, self.given, self.redactor)

    @property
    def is_from_record(self) -> bool:
        """Whether no Python code waits for the result: a model's call, or an approved request."""
        return self.call_id is not None or self.request is not None

    @property
    def members(self) -> dict[str, Any]:
        """The optional members of the call's ledger records."""
        found = {
            "called": self.called,
            "call_id": self.call_id,
            "call_ref": self.call_ref,
            "within": self.within,
            "subagent": self.subagent or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def is_replay(self) -> bool:
        """Whether the recorded result of an earlier call is returned."""
        return self.decision is not None and self.decision.is_replay
