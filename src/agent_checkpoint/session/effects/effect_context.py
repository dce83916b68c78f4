"""A call, and what a tool is told of the effect that it is to make. Owns the idempotency key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_checkpoint.session.tools.call_arguments import describe_call
from agent_checkpoint.store.ledger.ledger import Effect, Request

if TYPE_CHECKING:
    from agent_checkpoint.session.effects.effects import Decision
    from agent_checkpoint.session.effects.idempotency import CallNumber
    from agent_checkpoint.session.tools.tool import Tool


class EffectContext:
    """What a tool is told about the effect that it is to make."""

    def __init__(self, effect: Effect, family: str) -> None:
        self.id = effect.id
        text = json.dumps([family, effect.identity, effect.generation])
        self.key = hashlib.sha256(text.encode()).hexdigest()[:40]
        """The idempotency key: the same for every attempt at the same effect, and no other."""
        self.is_not_done = False

    def not_done(self) -> None:
        """Say that nothing has happened, before an error is raised: it may then be tried again."""
        self.is_not_done = True


@dataclass
class ApprovalQuestion:
    """What an inline `approve=` function is asked."""

    tool: str
    arguments: dict[str, Any]
    task: str | None
    words: str


@dataclass(eq=False)
class ToolCall:
    """One call on its way."""

    tool: Tool
    owner: Any
    arguments: dict[str, Any]
    task: str | None = None
    part: str | None = None
    """The part of the session whose method it is; empty if it is of no part."""
    digest: str | None = None
    identity: str | None = None
    call_number: CallNumber | None = None
    decision: Decision | None = None
    context: EffectContext | None = None
    request: Request | None = None
    """What somebody agreed to, if it is carried out for that."""
    is_awaited: bool = False
    """Whether it is made on an event loop, which another thread does some of the steps for."""
    began: float = 0.0
    given: Any = None
    """The arguments as they are recorded: the tool may change them."""

    @property
    def words(self) -> str:
        """What the checkpoint after it is called: what was done, if that was otherwise."""
        if self.decision is not None and self.decision.is_replay:
            return self.decision.effect.words
        return describe_call(self.tool.name, self.given)

    @property
    def is_replay(self) -> bool:
        """Whether it was made before, and its result is given back."""
        return self.decision is not None and self.decision.is_replay
