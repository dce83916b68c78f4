"""External side effects of a session. Owns the rules: run, replay the result, or refuse.

A committed effect of this session's own history is replayed, never repeated. An effect of a
related session (fork or parent) is a conflict: it belongs to another history. An effect with an
unknown outcome is verified, or a person resolves it.
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
    """What to do with a call: run the effect, or replay its recorded result."""

    effect: Effect
    is_replay: bool
    result: Any = None


class Effects(EffectOutcomes):
    """The effects of one session, and the decision about new ones."""

    def __init__(
        self,
        ledger: Ledger,
        session_record: SessionRecord,
        epoch: Epoch,
        owner: Callable[[Tool, str | None], Any],
    ) -> None:
        """Manage the effects of a session; `owner` finds the object of a method tool."""
        super().__init__(ledger, session_record, epoch, owner)
        self.in_progress: dict[str, Any] = {}
        """The calls that are running now, by effect id."""
        self._call_numbers = CallNumbers()

    # -- call numbers ----------------------------------------------------------------------------

    def reserve_number(
        self, tool: Tool, digest: str, task: str | None, call: Any
    ) -> CallNumber | None:
        """Reserve the number of a call among identical ones; None if the tool has a key."""
        return self._call_numbers.reserve(self.session_record, tool, digest, task, call)

    def release_for_retry(self, call: Any, call_number: CallNumber | None) -> None:
        """Let the next identical call repeat this one: no caller received its result."""
        for effect_id in [name for name, other in self.in_progress.copy().items() if other is call]:
            self.in_progress.pop(effect_id, None)
        self._call_numbers.release_for_retry(self.session_record, call, call_number)

    def release(self, call: Any) -> None:
        """Release the number of a call that has returned."""
        self._call_numbers.release(call)

    # -- run, replay or refuse -------------------------------------------------------------------

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
        """Decide about a call. If the effect is to run, its `started` record is durable.

        Args:
            tool: the tool.
            arguments: the arguments of the call, with the approver's edits.
            identity: the identity of the effect; see `effect_identity`.
            digest: the digest of the requested arguments.
            task: the current task.
            at: the id of the head.
            request: the approved request, which is consumed.
            part: the part whose method is called.
            call: the call that runs the effect.

        Raises:
            EffectConflictError: the idempotency key was used with different arguments, or a
                related session has the effect.
            EffectUnknownError: the outcome of an earlier attempt is unknown.
            EffectError: irreversible tools are not allowed in this fork.
            InvalidInputError: `key=` failed on the approver's arguments; the answer is void.
            ConflictError: the session was opened elsewhere.
        """
        edited_identity = None
        if request is not None and tool.key is not None:
            try:
                edited_identity = effect_identity(tool, arguments, digest, task, part=part)
            except InvalidInputError as error:
                void_unusable_answer(self.ledger, request, self.epoch, error)
                raise
        existing = self.find_existing(tool, identity, digest, call)
        if existing is not None:
            return existing
        self.check_allowed(tool)
        effect_id = secrets.token_hex(8)

        def guard() -> None:
            names = (
                [identity]
                if edited_identity in (None, identity)
                else [identity, str(edited_identity)]
            )
            taken = [effect for name in names for effect in self._conflicting(name, digest)]
            if taken:
                raise EffectConflictError(
                    f"{taken[-1].title} was {_done_or_started(taken[-1])} by the session "
                    f"{short_repr(taken[-1].session)}: an external side effect is not repeated."
                )
            if request is not None:
                check_answer_usable(self.ledger, request)

        compensated = [effect for effect in self.ledger.of(identity) if effect.status == UNDONE]
        parts = {"arguments": encode_for_ledger(dict(arguments), f"{tool.name}'s arguments")}
        self.in_progress[effect_id] = call  # before it is visible: another thread would verify it
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
                also=edited_identity if edited_identity != identity else None,
                digest=digest,
                task=task,
                at=at,
                part=part,
                words=describe_call(tool.name, arguments),
                generation=len(compensated),
                request=None if request is None else request.id,
            )
        except BaseException as error:
            self.in_progress.pop(effect_id, None)
            is_edited = request is not None and edited_identity not in (None, identity)
            if request is not None and is_edited and isinstance(error, EffectConflictError):
                void_unusable_answer(self.ledger, request, self.epoch, error)
            raise
        return Decision(self.ledger.effects[effect_id], False)

    def check_allowed(self, tool: Tool) -> None:
        """Refuse an irreversible tool in a fork that may not run it. Raises EffectError."""
        if tool.kind == IRREVERSIBLE and not self.session_record.irreversible:
            raise EffectError(
                f"{short_repr(self.session_record.key)} is a fork, and forks may not run "
                f"irreversible tools: {tool.name}. Call it in the session that was forked, or fork "
                'with effects="allow".'
            )

    def find_existing(
        self, tool: Tool, identity: str, digest: str, call: Any = None
    ) -> Decision | None:
        """Return the decision if the effect exists already, else None. Raises as `decide`."""
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
                raise EffectConflictError(f"{effect.title} is running in another call.")
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
        """Return the effects that prevent a new one; another session's idempotent one does not."""
        return [
            effect
            for effect in self.ledger.of(identity)
            if effect.stands
            and (self.is_ours(effect) or effect.kind != IDEMPOTENT or effect.digest != digest)
        ]

    def _resolve_in_doubt(self, tool: Tool, effect: Effect, call: Any) -> Decision | None:
        """Verify an effect whose outcome is unknown, and decide."""
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
            f"{effect.title} was started before, and its outcome is unknown. Check it, and record "
            f"it with session.resolve({effect.id!r}, happened=True or False)."
        )

    def call_ended(self, effect: Effect) -> None:
        """Mark the call of an effect as ended, whatever its outcome."""
        self.in_progress.pop(effect.id, None)

    # -- queries ---------------------------------------------------------------------------------

    def is_ours(self, effect: Effect) -> bool:
        """Tell whether an effect belongs to this session's history."""
        if effect.session == self.session_record.key:
            return True
        return any(
            effect.session == key and effect.seq <= seq for key, seq in self.session_record.lineage
        )

    def since(self, seq: int) -> Iterator[Effect]:
        """Iterate over effects of this history in force that started after a ledger record."""
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
            with suppress(EffectUnknownError):  # it stays unknown, and a notice reports it
                self.verify(effect)


def _done_or_started(effect: Effect) -> str:
    return "done" if effect.status == COMMITTED else "started"
