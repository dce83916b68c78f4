"""What became of effects. Owns noting it, finding it out, and undoing; runs `verify` and `undo`.

Whether an effect may be made at all is not decided here.
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
    """What is known of the effects of one session, and how it comes to be known."""

    def __init__(
        self,
        ledger: Ledger,
        session_record: SessionRecord,
        epoch: Epoch,
        owner: Callable[[Tool, str | None], Any],
    ) -> None:
        """Keep account of a session; `owner` gives the part that a method is called on."""
        self.ledger = ledger
        self.session_record = session_record
        self.epoch = epoch
        self._owner = owner

    @property
    def family(self) -> str:
        """The name of the ledger."""
        return self.ledger.lineage

    def commit(self, effect: Effect, result: Any) -> None:
        """Note that an effect was made. Also who was replaced meanwhile must say so.

        A result that cannot be kept is described.

        Raises:
            EffectConflictError: it was undone meanwhile, by another holder of the session.
            StorageError: the medium failed.
        """
        described = False
        try:
            tree = encode_for_ledger(result, "The result")
        except InvalidInputError:  # it has happened all the same
            tree, described = encode_for_ledger(recordable(result), "The result"), True
        self._append_outcome(COMMITTED, effect, described=described, parts={"result": tree})
        if effect.status != COMMITTED:
            raise EffectConflictError(
                f"{effect.title} was done, and another holder of the session has undone it before "
                f"that, so it says: it is {effect.status}. Look whether it stands."
            )

    def fail(self, effect: Effect, note: str) -> None:
        """Note that an effect was not made, if nobody knows better. Raises StorageError."""
        self._append_outcome(FAILED, effect, note=note[:500])

    def _append_outcome(self, status: str, effect: Effect, **record: Any) -> bool:
        """Add the record that says so; tell whether it did not come too late."""

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
        """Ask the tool whether an effect happened, if it can tell, and note the answer.

        Not about one of the session that this was forked from: it may be doing it right now.

        Raises:
            EffectUnknownError: asking failed.
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
                f"{effect.title} was begun before, and its verify= failed ({cause_text(error)}): "
                "nobody knows whether it happened."
            ) from error
        if outcome is None:
            self.fail(effect, "verify= says that it did not happen")
        else:
            self.commit(effect, outcome)

    def resolve(
        self, effect_id: str, *, happened: bool, result: Any = None, note: str = ""
    ) -> None:
        """Say what a person found out about an effect of which nothing was known.

        Raises:
            NotFoundError: there is no such effect.
            EffectError: it is known what became of it.
        """

        def guard() -> None:
            effect = self.ledger.effects.get(effect_id)
            if effect is None:
                raise NotFoundError(f"There is no effect {short_repr(effect_id)}.")
            if effect.status not in (UNKNOWN, UNDOING):
                raise EffectError(f"{effect.title} is known to be {effect.status} already.")

        self.ledger.refresh()
        known = getattr(self.ledger.effects.get(effect_id), "parts", {})
        parts = {}
        if happened and (result is not None or "result" not in known):  # else it was being undone
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
        """Undo an effect that can be undone.

        Raises:
            EffectError: it cannot be, here and now, or its `undo` failed: then nobody knows.
        """
        tool = registered_tool(effect)
        if tool is None or tool.undo is None:
            raise EffectError(f"{effect.title} cannot be undone here: no tool has an undo= for it.")
        if not self._append_outcome(UNDOING, effect):
            raise EffectError(f"{effect.title} cannot be undone: it is {effect.status}.")
        try:
            result = None if effect.described else self.result(effect)
            self._call_about(tool, tool.undo, effect, result=result)
        except Exception as error:
            raise EffectError(f"undo= of {effect.title} failed: {cause_text(error)}.") from error
        self._append_outcome(UNDONE, effect)

    def _call_about(
        self, tool: Tool, function: Callable[..., Any], effect: Effect, **more: Any
    ) -> Any:
        """Call a function of a tool that is about one effect. Raises what it raises."""
        arguments = tool.keyword_arguments(self.arguments(effect))
        if tool.is_method and takes_owner(function):
            arguments = {**arguments, "self": self._owner(tool, effect.part)}
        return run_if_awaitable(
            invoke_by_name(function, arguments, effect=EffectContext(effect, self.family), **more)
        )

    def arguments(self, effect: Effect) -> dict[str, Any]:
        """Return the arguments with which an effect is to be made. Raises CheckpointError."""
        return arguments_of(self.ledger, effect)

    def result(self, effect: Effect) -> Any:
        """Return what an effect gave.

        Raises:
            EffectError: that could not be kept, or was purged.
        """
        if effect.described:
            raise EffectError(
                f"{effect.title} was done, and what it returned could not be kept. Let the "
                "tool return plain data."
            )
        return (
            decode_value(self.ledger, effect.parts, "result") if "result" in effect.parts else None
        )


class _OutcomeKnownError(Exception):
    """What became of an effect is known already."""
