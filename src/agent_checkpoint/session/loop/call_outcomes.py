"""What is known of a model's tool call: its result or error, from its row or from the ledger.

Owns what the model is told about a call that was edited, denied, compensated or is in doubt, and
the withdrawal of approval requests of calls that get another answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_checkpoint.errors import EffectError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.effects.approvals import (
    edits_behind,
    unused_requests,
    void_requests,
)
from agent_checkpoint.session.effects.effect_context import ToolCall
from agent_checkpoint.session.loop.call_matching import CallMatching
from agent_checkpoint.session.open_calls import OpenCall
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tools.call_arguments import as_json, recordable
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect
from agent_checkpoint.store.ledger.ledger_status import COMMITTED, FAILED, UNDONE
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.transcripts.report import CallOutcome

IN_DOUBT = "Do not assume that it took effect, nor that it did not: check first."
BLOCKED = f"{IN_DOUBT} The same call is not made again until a person has recorded the outcome."
_WAITS = (
    "The call waits for a person's approval. It may still be executed when the person has approved "
    "it."
)
_COMPENSATED = "The call took effect, and the effect was compensated since."


class CallOutcomes:
    """The outcomes of the open calls of one agent."""

    def __init__(self, state: SessionState, scope: AgentScope, matching: CallMatching) -> None:
        self._state = state
        self._scope = scope
        self._matching = matching
        self.unfinished: dict[str, ToolCall] = {}
        """Calls that began in this process and have not ended, by ref: they were interrupted."""

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return what is known of a call without a result in the conversation; None if nothing.

        Only calls that `run_tools` has taken on are known. Raises StorageError.
        """
        call = self._scope.open_calls.find(call_id)
        return None if call is None else replace(self.of(call), digest=call.digest)

    def of(self, call: OpenCall) -> CallOutcome:
        """Return what is known of an open call. Raises StorageError."""
        state, row = self._state, self._matching.rows().get(call.ref)
        if row is not None:
            return self.of_row(row)
        state.ledger.refresh()
        effect = self._matching.effect(call)
        if effect is not None:
            return self.of_effect(effect)
        running = any(one.call_ref == call.ref for one in list(state.running))
        # What a local tool has done without its outcome is in the files, if they were kept.
        if running or call.ref in self.unfinished or state.has_kept_drift:
            return CallOutcome("unknown")
        is_waiting = self._unused_requests([call])
        return CallOutcome("not-done", note=_WAITS if is_waiting else "")

    def of_row(self, row: Mapping[str, Any]) -> CallOutcome:
        """Return the outcome of a call that has ended."""
        tool = row.get("tool")
        note = _edit_note({name: row["arguments"][name] for name in row.get("edited", ())})
        if "error" not in row:
            return CallOutcome("done", row.get("result"), tool, note=note)
        effect = self._effect_of(row)
        if effect is not None and effect.status == COMMITTED:  # verified, or recorded by a person
            return self.of_effect(effect)
        text = str(row["error"])
        if effect is not None and effect.status not in (FAILED, UNDONE):
            text += f" The outcome is unknown. {BLOCKED}"
        return CallOutcome("done", text, tool, is_error=True, note=note)

    def _effect_of(self, row: Mapping[str, Any]) -> Effect | None:
        """Return the effect of a call that has ended; `redact=` may have changed its id."""
        found = self._state.ledger.state.effects.get(str(row.get("effect")))
        ref = self._scope.open_calls.ref_of(row)
        started = [] if found or ref is None else self._state.ledger.effects_of_call(ref)
        return started[-1] if started else found

    def of_effect(self, effect: Effect) -> CallOutcome:
        """Return the outcome of a call by the effect that it started."""
        state = self._state
        note = _edit_note(
            recordable(edits_behind(state.ledger, effect), state.manager.policy.redactor)
        )
        if effect.status == COMMITTED:
            try:
                result = state.effects.outcomes.result(effect)
            except EffectError as error:
                return CallOutcome("done", str(error), effect.tool, note=note)
            return CallOutcome("done", recordable(as_json(result)), effect.tool, note=note)
        if effect.status == UNDONE:
            return CallOutcome("done", _COMPENSATED, effect.tool, is_error=True, note=note)
        if effect.status == FAILED:
            return CallOutcome("not-done", None, effect.tool)
        return CallOutcome("unknown", None, effect.tool, note=note)

    def withdraw_requests(self, calls: list[OpenCall]) -> bool:
        """Void the approval requests of calls that get another answer; return if there are any.

        The model is told that such a call was not executed, so no approval may execute it later.
        """
        state, unused = self._state, self._unused_requests(calls)
        reason = "the conversation went on without the call"
        withdrawn = void_requests(state.ledger, unused, state.effects.epoch, reason)
        with state.writer.lock:
            state.record.pending = [name for name in state.record.pending if name not in withdrawn]
        for request in unused:
            state.add_notice(
                f"The approval request {request.id} ({request.title}) was withdrawn: {reason}, and "
                "the model is told that it was not executed."
            )
        return bool(withdrawn)

    def _unused_requests(self, calls: list[OpenCall]) -> list[ApprovalRequest]:
        """Return the approval requests of open calls, and within them, that were not used."""
        refs = {call.ref for call in calls}
        return [
            request
            for request in unused_requests(self._state.ledger, self._state.key)
            if not refs.isdisjoint((request.call_ref or request.call_id, request.within))
        ]


def _edit_note(edits: Mapping[str, Any]) -> str:
    """Return what the model is told about arguments that a person changed; empty if none."""
    if not edits:
        return ""
    values = json.dumps(plain(edits), ensure_ascii=False, default=short_repr)
    return f"A person approved this call with other arguments than yours: {values} were used."
