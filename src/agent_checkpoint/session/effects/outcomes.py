"""Outcomes of effects: commit, fail, verify, resolve, compensate. Runs `verify=` and `undo=`.

`effects` decides whether an effect may run at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_checkpoint.core.codec.save_policy import NO_POLICY, SavePolicy
from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import (
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    NotFoundError,
    StateError,
)
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.session.effects.approvals import arguments_of, decode_value
from agent_checkpoint.session.effects.effect_context import EffectContext
from agent_checkpoint.session.tools.call_arguments import cleaned, encode_for_ledger, recordable
from agent_checkpoint.session.tools.invoke import invoke_by_name, run_if_awaitable, takes_owner
from agent_checkpoint.session.tools.tool import Tool, registered_tool
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.store.ledger.ledger_status import (
    BEFORE,
    COMMITTED,
    FAILED,
    UNDOING,
    UNDONE,
    UNKNOWN,
)


class EffectOutcomes:
    """Records and reads the outcomes of the effects of one session."""

    def __init__(
        self,
        ledger: Ledger,
        epoch: Epoch,
        owner: Callable[[Tool, str | None], Any],
        policy: SavePolicy,
    ) -> None:
        """Manage the outcomes of a session's effects.

        `owner` returns the object on which a tool defined as a method is called; `policy` applies
        to results.
        """
        self.ledger = ledger
        self.epoch = epoch
        self._owner = owner
        self._policy = policy

    def commit(self, effect: Effect, result: Any) -> None:
        """Record an effect as committed. Not fenced: a fenced-off owner must report it too.

        A result that cannot be encoded is stored as a description.

        Raises:
            EffectConflictError: another owner of the session has compensated it meanwhile.
            StorageError: the medium failed.
        """
        described = False
        try:
            tree, _ = encode_for_ledger(result, f"{effect.tool}'s result", self._policy)
        except (InvalidInputError, UserWarning):  # the effect happened nevertheless
            tree, described = self._description(result), True
        self._append_outcome(COMMITTED, effect, described=described, parts={"result": tree})
        if effect.status != COMMITTED:
            raise EffectConflictError(
                f"{effect.title} was performed, but another owner of the session had already "
                f"recorded it as {effect.status}. Check whether the effect is still in place."
            )

    def _description(self, result: Any) -> JsonValue:
        try:
            words = recordable(result, self._policy.redactor)
            return encode_for_ledger(words, "The result", self._policy)[0]
        except (InvalidInputError, StateError):  # the function of redact= failed
            return f"<{type(result).__name__}>"

    def fail(self, effect: Effect, note: str) -> None:
        """Record an effect as failed, unless its outcome is known. Raises StorageError."""
        self._append_outcome(FAILED, effect, note=cleaned(note, self._policy.redactor)[:500])

    def _append_outcome(self, status: str, effect: Effect, **record: Any) -> bool:
        """Append an outcome; return False if the current status does not permit it."""

        def guard() -> None:
            if effect.status not in BEFORE[status]:
                raise _OutcomeKnownError

        fence = self.epoch if status == UNDOING else None
        try:
            self.ledger.append(status, guard=guard, fence=fence, effect=effect.id, **record)
        except _OutcomeKnownError:
            return False
        return True

    def verify(
        self,
        effect: Effect,
        tool: Tool | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Run `verify=` of an effect with an unknown outcome, and record the answer.

        Effects of other sessions are skipped: the parent session may be running them now.
        `arguments` are those of the call, if it is being made; the recorded ones may be redacted.

        Raises:
            EffectUnknownError: `verify=` failed.
        """
        tool = tool or registered_tool(effect)
        self.ledger.refresh()
        if effect.status != UNKNOWN or effect.session != self.epoch.session:
            return
        if tool is None or tool.verify is None:
            return
        try:
            outcome = self._call_about(tool, tool.verify, effect, arguments)
        except Exception as error:
            raise EffectUnknownError(
                f"{effect.title} was started earlier, and its verify= failed "
                f"({cause_text(error)}). The outcome is unknown."
            ) from error
        if outcome is None:
            self.fail(effect, "verify= reported that it did not happen")
        else:
            self.commit(effect, outcome)

    def undo(self, effect: Effect) -> None:
        """Compensate an effect with its tool's `undo=`.

        Raises:
            EffectError: no `undo=` is available, the status does not permit it, or `undo=` failed
                and the outcome is unknown.
        """
        tool = registered_tool(effect)
        if tool is None or tool.undo is None:
            raise EffectError(
                f"{effect.title} cannot be compensated: no registered tool has an undo= for it. "
                "Import the module that defines it."
            )
        if not self._append_outcome(UNDOING, effect):
            raise EffectError(f"{effect.title} cannot be compensated: it is {effect.status}.")
        try:
            result = None if effect.described else self.result(effect)
            self._call_about(tool, tool.undo, effect, None, result=result)
        except Exception as error:
            raise EffectError(f"undo= of {effect.title} failed: {cause_text(error)}.") from error
        self._append_outcome(UNDONE, effect)

    def _call_about(
        self,
        tool: Tool,
        function: Callable[..., Any],
        effect: Effect,
        given: Mapping[str, Any] | None,
        **more: Any,
    ) -> Any:
        """Call `verify=` or `undo=` of a tool for an effect. Raises what the function raises."""
        if not effect.is_redacted or given is None:
            given = arguments_of(self.ledger, effect)
        arguments = tool.keyword_arguments(given)
        if tool.is_method and takes_owner(function):
            arguments = {**arguments, "self": self._owner(tool, effect.part)}
        context = EffectContext(effect, self.ledger.lineage)
        return run_if_awaitable(invoke_by_name(function, arguments, effect=context, **more))

    def result(self, effect: Effect) -> Any:
        """Return the recorded result of an effect.

        Raises:
            EffectError: the result could not be encoded, or was purged.
        """
        if effect.described:
            raise EffectError(
                f"{effect.title} completed, but its result could not be encoded and is not "
                "available. Return built-in types, or types registered with register_type()."
            )
        return (
            decode_value(self.ledger, effect.parts, "result") if "result" in effect.parts else None
        )


def resolve_effect(
    ledger: Ledger,
    effect_id: str,
    *,
    happened: bool,
    result: Any = None,
    note: str = "",
    policy: SavePolicy = NO_POLICY,
) -> None:
    """Record the outcome of an effect whose outcome is unknown.

    Not fenced: a process that has the session open continues, and sees the outcome.

    Raises:
        NotFoundError: there is no such effect.
        EffectError: the outcome is already known.
        InvalidInputError: the result cannot be encoded, or the policy refuses it.
    """

    def guard() -> None:
        effect = ledger.state.effects.get(effect_id)
        if effect is None:
            raise NotFoundError(f"There is no effect {short_repr(effect_id)}.")
        if effect.status not in (UNKNOWN, UNDOING):
            raise EffectError(f"{effect.title} is already recorded as {effect.status}.")

    ledger.refresh()
    known = getattr(ledger.state.effects.get(effect_id), "parts", {})
    parts = {}
    if happened and (result is not None or "result" not in known):  # else keep the stored one
        parts = {"result": encode_for_ledger(result, "The result", policy)[0]}
    ledger.append(
        "resolved",
        guard=guard,
        effect=effect_id,
        happened=bool(happened),
        note=cleaned(note, policy.redactor),
        parts=parts,
    )


class _OutcomeKnownError(Exception):
    """The outcome of the effect is already known."""
