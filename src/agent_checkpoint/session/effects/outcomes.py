"""Outcomes of effects: commit, fail, verify, resolve, compensate. Runs `verify=` and `undo=`.

`effects` decides whether an effect may run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.errors import (
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.effects.approvals import arguments_of, decode_value
from agent_checkpoint.session.effects.effect_context import EffectContext
from agent_checkpoint.session.session_record import SessionRecord
from agent_checkpoint.session.tools.call_arguments import encode_for_ledger, recordable
from agent_checkpoint.session.tools.invoke import invoke_by_name, run_if_awaitable, takes_owner
from agent_checkpoint.session.tools.tool import Tool, registered_tool
from agent_checkpoint.store.ledger.ledger import (
    BEFORE,
    COMMITTED,
    FAILED,
    UNDOING,
    UNDONE,
    UNKNOWN,
    Effect,
    Epoch,
    Ledger,
)


class EffectOutcomes:
    """Records and reads the outcomes of the effects of one session."""

    def __init__(
        self,
        ledger: Ledger,
        session_record: SessionRecord,
        epoch: Epoch,
        owner: Callable[[Tool, str | None], Any],
    ) -> None:
        """Manage the effects of a session; `owner` finds the object of a method tool."""
        self.ledger = ledger
        self.session_record = session_record
        self.epoch = epoch
        self._owner = owner

    @property
    def family(self) -> str:
        """The name of the ledger."""
        return self.ledger.lineage

    def commit(self, effect: Effect, result: Any) -> None:
        """Record an effect as committed. Not fenced: a replaced owner must report it as well.

        A result that cannot be encoded is stored as a description.

        Raises:
            EffectConflictError: another owner of the session compensated it meanwhile.
            StorageError: the medium failed.
        """
        described = False
        try:
            tree = encode_for_ledger(result, "The result")
        except InvalidInputError:  # the effect happened nevertheless
            tree, described = encode_for_ledger(recordable(result), "The result"), True
        self._append_outcome(COMMITTED, effect, described=described, parts={"result": tree})
        if effect.status != COMMITTED:
            raise EffectConflictError(
                f"{effect.title} was done, but another owner of the session had recorded it as "
                f"{effect.status} before. Check whether the effect is still in place."
            )

    def fail(self, effect: Effect, note: str) -> None:
        """Record an effect as failed, unless its outcome is known. Raises StorageError."""
        self._append_outcome(FAILED, effect, note=note[:500])

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

    def verify(self, effect: Effect, tool: Tool | None = None) -> None:
        """Run `verify=` of an effect with an unknown outcome, and record the answer.

        Effects of the parent session are left alone: it may be running them right now.

        Raises:
            EffectUnknownError: `verify=` failed.
        """
        tool = tool or registered_tool(effect)
        self.ledger.refresh()
        if effect.status != UNKNOWN or effect.session != self.session_record.key:
            return
        if tool is None or tool.verify is None:
            return
        try:
            outcome = self._call_about(tool, tool.verify, effect)
        except Exception as error:
            raise EffectUnknownError(
                f"{effect.title} was started before, and its verify= failed ({cause_text(error)}): "
                "the outcome is unknown."
            ) from error
        if outcome is None:
            self.fail(effect, "verify= says that it did not happen")
        else:
            self.commit(effect, outcome)

    def resolve(
        self, effect_id: str, *, happened: bool, result: Any = None, note: str = ""
    ) -> None:
        """Record the outcome of an effect whose outcome is unknown.

        Raises:
            NotFoundError: there is no such effect.
            EffectError: the outcome is known already.
        """

        def guard() -> None:
            effect = self.ledger.effects.get(effect_id)
            if effect is None:
                raise NotFoundError(f"There is no effect {short_repr(effect_id)}.")
            if effect.status not in (UNKNOWN, UNDOING):
                raise EffectError(f"{effect.title} is already recorded as {effect.status}.")

        self.ledger.refresh()
        known = getattr(self.ledger.effects.get(effect_id), "parts", {})
        parts = {}
        if happened and (result is not None or "result" not in known):  # else keep the stored one
            parts = {"result": encode_for_ledger(result, "The result")}
        self.ledger.append(
            "resolved",
            guard=guard,
            effect=effect_id,
            happened=bool(happened),
            note=note,
            parts=parts,
        )

    def undo(self, effect: Effect) -> None:
        """Compensate an effect with its tool's `undo=`.

        Raises:
            EffectError: no `undo=` is available, the status does not permit it, or `undo=` failed:
                then the outcome is unknown.
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
            self._call_about(tool, tool.undo, effect, result=result)
        except Exception as error:
            raise EffectError(f"undo= of {effect.title} failed: {cause_text(error)}.") from error
        self._append_outcome(UNDONE, effect)

    def _call_about(
        self, tool: Tool, function: Callable[..., Any], effect: Effect, **more: Any
    ) -> Any:
        """Call `verify=` or `undo=` of a tool for an effect. Raises what the function raises."""
        arguments = tool.keyword_arguments(self.arguments(effect))
        if tool.is_method and takes_owner(function):
            arguments = {**arguments, "self": self._owner(tool, effect.part)}
        return run_if_awaitable(
            invoke_by_name(function, arguments, effect=EffectContext(effect, self.family), **more)
        )

    def arguments(self, effect: Effect) -> dict[str, Any]:
        """Return the arguments of an effect. Raises CheckpointError."""
        return arguments_of(self.ledger, effect)

    def result(self, effect: Effect) -> Any:
        """Return the recorded result of an effect.

        Raises:
            EffectError: the result could not be encoded, or was purged.
        """
        if effect.described:
            raise EffectError(
                f"{effect.title} was done, but its result could not be stored. Return plain data "
                "from the tool."
            )
        return (
            decode_value(self.ledger, effect.parts, "result") if "result" in effect.parts else None
        )


class _OutcomeKnownError(Exception):
    """The outcome of the effect is known already."""
