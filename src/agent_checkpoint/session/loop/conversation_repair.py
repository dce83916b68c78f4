"""Repairs the conversation of an agent after a resume, a rollback or an assignment."""

from __future__ import annotations

from collections.abc import Iterable

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.loop.call_outcomes import CallOutcomes
from agent_checkpoint.session.open_calls import OpenCall
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.transcripts import dialect_for, repair
from agent_checkpoint.transcripts.draft import names_of
from agent_checkpoint.transcripts.last_turn import LastTurn
from agent_checkpoint.transcripts.report import CallOutcome


class _Lookup(NamedTuple):
    """The outcomes of calls for a repair, and the calls that it asks about."""

    outcomes: CallOutcomes
    asked: list[str]

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return the outcome of a call, or None if there is no record of it."""
        self.asked.append(call_id)
        return self.outcomes.call_outcome(call_id)


def repair_conversation(state: SessionState, scope: AgentScope, outcomes: CallOutcomes) -> None:
    """Repair a conversation, but for calls at its end, which `run_tools` runs.

    Raises StorageError.
    """
    if scope.provider is None:
        return
    messages, provider = scope.messages, scope.provider
    lookup = _Lookup(outcomes, [])
    try:
        repaired = repair(messages, provider=provider, session=lookup, keep_open=True)
        turn = LastTurn(repaired, dialect_for(provider))
        answered = _answered(scope.open_calls.calls, lookup.asked, turn)
        if repaired.changes and outcomes.withdraw_requests(answered):
            repaired = repair(messages, provider=provider, session=outcomes, keep_open=True)
    except InvalidInputError as error:
        state.add_notice(f"The conversation was not checked: {error}")
        return
    if not repaired.changes:
        return
    pairs = zip(messages, repaired)
    same = next((n for n, (old, new) in enumerate(pairs) if old is not new), len(messages))
    messages.truncate(min(same, len(repaired)))
    messages.extend(repaired[len(messages) :])
    for change in repaired.changes:
        state.add_notice(f"The conversation was repaired: {change}")


def _answered(calls: Iterable[OpenCall], asked: list[str], turn: LastTurn) -> list[OpenCall]:
    """Return the calls that a repair has asked about, but for those that it has left open."""
    blocks = turn.open_calls
    left = [name for name, call in zip(names_of(turn.calls), turn.calls) if call in blocks]
    return [call for call in calls if call.id in asked and call.id not in left]
