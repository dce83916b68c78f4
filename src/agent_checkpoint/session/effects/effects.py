"""Effects on the outside: whether one may be made now. Owns the rules, and which are whose.

What a session has done is given back and never done twice. What a relative has done is in the way
and is not given back: it belongs to another line of events. What nobody knows, a person decides.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from agent_checkpoint.errors import (
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.effects.approvals import check_answer_usable, void_unusable_answer
from agent_checkpoint.session.effects.idempotency import CallNumber, CallNumbers, effect_identity
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_record import SessionRecord
from agent_checkpoint.session.tools.call_arguments import describe_call, encode_for_ledger
from agent_checkpoint.session.tools.tool import IDEMPOTENT, IRREVERSIBLE, Tool, check_same_tool
from agent_checkpoint.store.ledger.ledger import (
    COMMITTED,
    UNDONE,
    UNKNOWN,
    Effect,
    Epoch,
    Ledger,
    Request,
)


class Decision(NamedTuple):
    """What to do about a call: make the effect, or give back what it gave the first time."""

    effect: Effect
    is_replay: bool
    result: Any = None


class Effects(EffectOutcomes):
    """The effects of one session, and what stands in their way."""

    def __init__(
        self,
        ledger: Ledger,
        session_record: SessionRecord,
        epoch: Epoch,
        owner: Callable[[Tool, str | None], Any],
    ) -> None:
        """Keep account of a session; `owner` gives the part that a method is called on."""
        super().__init__(ledger, session_record, epoch, owner)
        self.in_progress: dict[str, Any] = {}
        """By which call each is made."""
        self._call_numbers = CallNumbers()

    # -- names -----------------------------------------------------------------------------------

    def reserve_number(
        self, tool: Tool, digest: str, task: str | None, call: Any
    ) -> CallNumber | None:
        """Return which one a call is among its like, until it is over; None if it has a key."""
        return self._call_numbers.reserve(self.session_record, tool, digest, task, call)

    def release_for_retry(self, call: Any, call_number: CallNumber | None) -> None:
        """Have a call be met again by the next of its kind: its result has reached nobody."""
        for effect_id in [name for name, other in self.in_progress.copy().items() if other is call]:
            self.in_progress.pop(effect_id, None)
        self._call_numbers.release_for_retry(self.session_record, call, call_number)

    def release(self, call: Any) -> None:
        """Forget a call that has returned."""
        self._call_numbers.release(call)

    # -- may it be made? -------------------------------------------------------------------------

    def decide(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        identity: str,
        digest: str,
        task: str | None,
        at: str,
        request: Request | None = None,
        part: str | None = None,
        call: Any = None,
    ) -> Decision:
        """Return what to do; if the effect is to be made, its beginning is durable.

        Args:
            tool: whose effect it is.
            arguments: with which it is called.
            identity: what it is the same as.
            digest: of the arguments that were asked for.
            task: the task under way.
            at: the id of the head.
            request: what a person agreed to; it is used up.
            part: the part of the session whose method it is.
            call: who makes it.

        Raises:
            EffectConflictError: it was made with other arguments, or by a relative.
            EffectUnknownError: nobody knows whether it was made.
            EffectError: a fork may not make it.
            InvalidInputError: the arguments that the approver wants have no key; their answer is
                void then.
            ConflictError: the session was opened elsewhere.
        """
        also = None
        if request is not None and tool.key is not None:
            try:
                also = effect_identity(tool, arguments, digest, task, part=part)
            except InvalidInputError as error:
                void_unusable_answer(self.ledger, request, self.epoch, error)
                raise
        found = self.find_existing(tool, identity, digest, call)
        if found is not None:
            return found
        self.check_allowed(tool)
        effect_id = secrets.token_hex(8)

        def guard() -> None:
            names = [identity] if also in (None, identity) else [identity, str(also)]
            taken = [effect for name in names for effect in self._conflicting(name, digest)]
            if taken:
                raise EffectConflictError(
                    f"{taken[-1].title} was {_done_or_started(taken[-1])} by the session "
                    f"{short_repr(taken[-1].session)}: an external side effect is not repeated."
                )
            if request is not None:
                check_answer_usable(self.ledger, request)

        before = [effect for effect in self.ledger.of(identity) if effect.status == UNDONE]
        parts = {"arguments": encode_for_ledger(dict(arguments), f"{tool.name}'s arguments")}
        self.in_progress[effect_id] = call  # before others can see it: they would ask about it
        try:
            self.ledger.append(
                "started",
                parts=parts,
                fence=self.epoch,
                guard=guard,
                effect=effect_id,
                session=self.session_record.key,
                epoch=self.epoch.number,
                kind=tool.kind,
                tool=tool.name,
                module=tool.module,
                identity=identity,
                also=also if also != identity else None,
                digest=digest,
                task=task,
                at=at,
                part=part,
                words=describe_call(tool.name, arguments),
                generation=len(before),
                request=None if request is None else request.id,
            )
        except BaseException as error:
            self.in_progress.pop(effect_id, None)
            is_edited = request is not None and also not in (None, identity)
            if request is not None and is_edited and isinstance(error, EffectConflictError):
                void_unusable_answer(self.ledger, request, self.epoch, error)
            raise
        return Decision(self.ledger.effects[effect_id], False)

    def check_allowed(self, tool: Tool) -> None:
        """See to it that a fork does nothing that it may not. Raises EffectError."""
        if tool.kind == IRREVERSIBLE and not self.session_record.irreversible:
            raise EffectError(
                f"{short_repr(self.session_record.key)} is a fork, and forks may not run "
                f"irreversible tools: {tool.name}. Call it in the session that was forked, or fork "
                'with effects="allow".'
            )

    def find_existing(
        self, tool: Tool, identity: str, digest: str, call: Any = None
    ) -> Decision | None:
        """Return what to do if such an effect is there already, else None. Raises as `decide`."""
        self.ledger.refresh()
        for effect in reversed(self._conflicting(identity, digest)):
            check_same_tool(tool, effect, effect.title)
            if not self.is_ours(effect):
                raise EffectConflictError(
                    f"{effect.title} was {_done_or_started(effect)} by the related session "
                    f"{short_repr(effect.session)}: an external side effect is not repeated. "
                    "Continue in that session, or make a different call."
                )
            if effect.id in self.in_progress:
                raise EffectConflictError(f"{effect.title} is being done at this moment.")
            if effect.digest != digest:
                raise EffectConflictError(
                    f"{effect.title}: idempotency key already used with different arguments. Use "
                    "the first arguments to get the recorded result, or use another key."
                )
            if effect.status == COMMITTED:
                return Decision(effect, True, self.result(effect))
            return self._resolve_in_doubt(tool, effect, call)
        return None

    def _conflicting(self, identity: str, digest: str) -> list[Effect]:
        """Return the effects that stand; to repeat an idempotent one of others does no harm."""
        return [
            effect
            for effect in self.ledger.of(identity)
            if effect.stands
            and (self.is_ours(effect) or effect.kind != IDEMPOTENT or effect.digest != digest)
        ]

    def _resolve_in_doubt(self, tool: Tool, effect: Effect, call: Any) -> Decision | None:
        """Find out about an effect that was begun, and of which no more is known."""
        self.verify(effect, tool)
        if effect.status == COMMITTED:
            return Decision(effect, True, self.result(effect))
        if not effect.stands:
            return None
        if effect.kind == IDEMPOTENT and effect.status == UNKNOWN:
            self.ledger.refresh()
            self.ledger.check(self.epoch)
            self.in_progress[effect.id] = call
            return Decision(effect, False)
        raise EffectUnknownError(
            f"{effect.title} was begun before, and nobody knows whether it happened. Find out, and "
            f"say so: session.resolve({effect.id!r}, happened=True or False)."
        )

    def call_ended(self, effect: Effect) -> None:
        """Note that the call is over, however it went."""
        self.in_progress.pop(effect.id, None)

    # -- which there are -------------------------------------------------------------------------

    def is_ours(self, effect: Effect) -> bool:
        """Tell whether an effect is of this session's own past."""
        if effect.session == self.session_record.key:
            return True
        return any(
            effect.session == key and effect.seq <= seq for key, seq in self.session_record.lineage
        )

    def since(self, seq: int) -> Iterator[Effect]:
        """Iterate over those of this session that still stand and were begun after a record."""
        for effect in self.ledger.all_effects():
            if effect.seq > seq and effect.stands and self.is_ours(effect):
                yield effect

    def unknown(self) -> Iterator[Effect]:
        """Iterate over those of this session of which nobody knows whether they happened."""
        for effect in self.since(0):
            if effect.status != COMMITTED and effect.id not in self.in_progress:
                yield effect

    def verify_unknown(self) -> None:
        """Ask the tools about all effects of which nothing is known; what cannot be told stays."""
        for effect in list(self.unknown()):
            with suppress(EffectUnknownError):  # it stays in the list, which is shown
                self.verify(effect)


def _done_or_started(effect: Effect) -> str:
    return "done" if effect.status == COMMITTED else "begun"
