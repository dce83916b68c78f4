"""External side effects of a session. Owns the rules: run, replay the result, or refuse.

A committed effect of this session's own history is replayed, never repeated. An effect of a
related session (fork or parent) is a conflict: it belongs to another history. An effect with an
unknown outcome is verified, or resolved by a person.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress

from agent_checkpoint.errors import (
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    Hint,
    InvalidInputError,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.effects.approvals import (
    arguments_part,
    check_answer_usable,
    edits_behind,
    has_masked_edits,
    void_unusable_answer,
)
from agent_checkpoint.session.effects.effect_context import Decision, ToolCall
from agent_checkpoint.session.effects.idempotency import CallNumbers, effect_identity
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_record import SessionRecord
from agent_checkpoint.session.tools.call_arguments import describe_call
from agent_checkpoint.session.tools.effect_kinds import behaviour_of
from agent_checkpoint.session.tools.tool import check_same_tool
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect
from agent_checkpoint.store.ledger.ledger_status import COMMITTED, UNDONE, UNKNOWN


class Effects:
    """The effects of one session, and the decision about new ones."""

    def __init__(self, outcomes: EffectOutcomes, record: SessionRecord) -> None:
        self.outcomes = outcomes
        self.ledger, self.epoch = outcomes.ledger, outcomes.epoch
        self.record = record
        self.in_progress: dict[str, ToolCall] = {}
        """The calls that are running now, by effect id."""
        self.call_numbers = CallNumbers(record)

    def release_for_retry(self, call: ToolCall) -> None:
        """Give the call number to the next identical call: no caller received the result."""
        for effect_id in [name for name, other in self.in_progress.copy().items() if other is call]:
            self.in_progress.pop(effect_id, None)
        self.call_numbers.release_for_retry(call, call.call_number)

    # -- run, replay or refuse -------------------------------------------------------------------

    def decide(
        self, call: ToolCall, *, at: str, request: ApprovalRequest | None = None
    ) -> Decision:
        """Decide about a call for which `find_existing` found nothing.

        If the effect is to run, its `started` record is already durable.

        Args:
            call: the call, with the arguments that the approver edited.
            at: the id of the head.
            request: the approved request, which is consumed.

        Raises:
            EffectConflictError: the idempotency key was used with different arguments, or a
                related session has the effect.
            EffectUnknownError: the outcome of an earlier attempt is unknown.
            EffectError: irreversible tools are not allowed in this fork.
            InvalidInputError: `key=` failed on the approver's arguments; the answer is void.
            ConflictError: another process has opened the session.
        """
        tool, also = call.tool, None
        if request is not None and tool.key is not None:
            try:
                edited = effect_identity(
                    tool,
                    call.arguments,
                    call.digest,
                    call.task,
                    part=call.part,
                    redactor=call.redactor,
                    ledger=self.ledger.state,
                )
            except InvalidInputError as error:
                void_unusable_answer(self.ledger, request, self.epoch, error)
                raise
            also = None if edited == call.identity else edited
        self.check_allowed(call)
        if request is not None:  # an approval may have taken days
            self.ledger.refresh()
        effect_id = secrets.token_hex(8)

        def guard() -> None:
            names = [name for name in (call.identity, also) if name is not None]
            taken = [effect for name in names for effect in self._conflicting(name, call.digest)]
            if taken:
                raise EffectConflictError(
                    f"{taken[-1].title} was already {_past_action(taken[-1])} by the session "
                    f"{short_repr(taken[-1].session)}. External side effects are not repeated."
                )
            if request is not None:
                check_answer_usable(self.ledger, request)

        earlier = self.ledger.effects_of(call.identity)
        parts = arguments_part(call)
        self.in_progress[effect_id] = call  # before it is visible: another thread would verify it
        try:
            self.ledger.append(
                "started",
                parts=parts,
                fence=self.epoch,
                guard=guard,
                effect=effect_id,
                session=self.record.key,
                epoch=self.epoch.number,
                kind=tool.kind,
                tool=tool.name,
                module=tool.module,
                identity=call.identity,
                also=also,
                digest=call.digest,
                task=call.task,
                at=at,
                part=call.part,
                words=describe_call(call.name, call.arguments, call.redactor),
                generation=sum(effect.status == UNDONE for effect in earlier),
                request=None if request is None else request.id,
                number=None if call.call_number is None else call.call_number.number,
                **call.members,
            )
        except BaseException as error:
            self.in_progress.pop(effect_id, None)
            if isinstance(error, EffectConflictError):  # another call was faster
                existing = self.find_existing(call)
                if existing is not None:
                    return existing
            if request is not None and also and isinstance(error, EffectConflictError):
                void_unusable_answer(self.ledger, request, self.epoch, error)
            raise
        return Decision(self.ledger.state.effects[effect_id], False)

    def check_allowed(self, call: ToolCall) -> None:
        """Refuse an irreversible tool in a fork that may not run it. Raises EffectError."""
        if call.tool.behaviour.is_final and not self.record.irreversible:
            raise EffectError(
                f"{short_repr(self.record.key)} is a fork, and forks may not run "
                f"irreversible tools: {call.name}. Call it in the parent session, or fork with "
                'effects="allow".'
            )

    def find_existing(self, call: ToolCall) -> Decision | None:
        """Return the decision for an effect that already exists, else None.

        Raises the same errors as `decide`.
        """
        self.ledger.refresh()
        for effect in reversed(self._conflicting(call.identity, call.digest)):
            check_same_tool(call.tool, effect, effect.title)
            if not self.is_ours(effect):
                raise EffectConflictError(
                    f"{effect.title} was already {_past_action(effect)} by the related session "
                    f"{short_repr(effect.session)}. External side effects are not repeated. "
                    "Continue in that session, or call the tool with other arguments or another "
                    "idempotency key."
                )
            if effect.id in self.in_progress:
                raise EffectConflictError(f"{effect.title} is running in another call.")
            if effect.digest != call.digest:
                raise EffectConflictError(
                    f"{effect.title}: idempotency key already used with different arguments. Use "
                    "the first arguments to get the recorded result, or use another key."
                )
            given, edits = call.arguments, edits_behind(self.ledger, effect)
            call.arguments, call.edited = {**given, **edits}, list(edits)
            if effect.status == COMMITTED:
                return Decision(effect, True, self.outcomes.result(effect))
            decision = self._resolve_in_doubt(effect, call)
            if decision is None:  # the next attempt needs an answer of its own
                call.arguments, call.edited = given, []
            return decision
        self._check_secret(call)
        return None

    def _check_secret(self, call: ToolCall) -> None:
        """Refuse a call that may have been made under another secret, which hides it.

        Raises:
            EffectConflictError: a call of the tool was recorded under another secret.
        """
        _, _, mine = call.identity.partition(".")
        for effect in self.ledger.all_effects() if mine else ():
            _, _, other = effect.identity.partition(".")
            if other not in ("", mine) and effect.tool == call.tool.name and effect.stands:
                raise EffectConflictError(
                    f"{effect.title} was recorded with redacted arguments under another secret, so "
                    "it is unknown whether this is the same call. Set AGENT_CHECKPOINT_SECRET to "
                    "the secret of that process, or give the tool a key= without secrets."
                )

    def _conflicting(self, identity: str, digest: str) -> list[Effect]:
        """Return the existing effects that prevent a new one.

        An idempotent effect of another session with equal arguments does not.
        """
        return [
            effect
            for effect in self.ledger.effects_of(identity)
            if effect.stands
            and (
                self.is_ours(effect)
                or not behaviour_of(effect.kind).is_repeatable
                or effect.digest != digest
            )
        ]

    def _resolve_in_doubt(self, effect: Effect, call: ToolCall) -> Decision | None:
        """Verify an effect whose outcome is unknown, and decide."""
        if not has_masked_edits(self.ledger, effect):  # else the arguments of the call are unknown
            self.outcomes.verify(effect, call.tool, call.arguments)
            if effect.status == COMMITTED:
                return Decision(effect, True, self.outcomes.result(effect))
            if not effect.stands:
                return None
            if behaviour_of(effect.kind).is_repeatable and effect.status == UNKNOWN:
                self.ledger.refresh()
                self.ledger.check(self.epoch)
                self.in_progress[effect.id] = call
                return Decision(effect, False)
        raise EffectUnknownError(
            f"{effect.title} was started earlier, and its outcome is unknown.",
            hint=Hint(
                "Check it, and record it with "
                f"session.resolve({effect.id!r}, happened=True or False).",
                "resolve",
                effect=effect.id,
            ),
        )

    def call_ended(self, effect: Effect) -> None:
        """Mark the call of an effect as ended, whatever its outcome."""
        self.in_progress.pop(effect.id, None)

    # -- queries ---------------------------------------------------------------------------------

    def is_ours(self, effect: Effect) -> bool:
        """Return whether an effect belongs to this session's history."""
        if effect.session == self.record.key:
            return True
        return any(effect.session == key and effect.seq <= seq for key, seq in self.record.lineage)

    def since(self, seq: int) -> Iterator[Effect]:
        """Iterate over effects of this history that remain and started after a ledger record."""
        for effect in self.ledger.all_effects():
            if effect.seq > seq and effect.stands and self.is_ours(effect):
                yield effect

    def unknown(self) -> Iterator[Effect]:
        """Iterate over effects of this history whose outcome is unknown."""
        for effect in self.since(0):
            if effect.status != COMMITTED and effect.id not in self.in_progress:
                yield effect

    def verify_unknown(self) -> None:
        """Run `verify=` for all effects with an unknown outcome; failures leave them unknown."""
        for effect in list(self.unknown()):
            with suppress(EffectUnknownError):  # the outcome stays unknown, and a notice reports it
                self.outcomes.verify(effect)


def _past_action(effect: Effect) -> str:
    return "performed" if effect.status == COMMITTED else "started"
