"""Matches the tool calls of the model's last turn with the open calls of an agent.

Owns which call is the same call after a restart, an edit of the conversation or a rollback, and
where its row and its effect are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.codec.redacted_tree import redact_tree
from agent_checkpoint.core.log import raw_items
from agent_checkpoint.redaction import MASKED
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.open_calls import Before, OpenCall, OpenCalls
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.transcripts.dialect import Dialect
from agent_checkpoint.transcripts.draft import names_of
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.transcripts.last_turn import LastTurn


class CallMatching:
    """The open calls of one agent, and the turn, the rows and the effects that belong to them."""

    def __init__(self, state: SessionState, scope: AgentScope) -> None:
        self._state = state
        self._scope = scope

    def last_turn(self, dialect: Dialect) -> LastTurn:
        """Return the model's last turn. Raises InvalidInputError."""
        redactor = self._state.manager.policy.redactor
        redact = None if redactor is None else lambda source: redact_tree(source, redactor)[0]
        return LastTurn(self._scope.messages, dialect, redact)

    def open(self, turn: LastTurn, *, is_new: bool) -> OpenCalls:
        """Make the calls of a turn the open ones, if any has no result; return them."""
        known, opened = self._scope.open_calls, self.matched(turn, is_new=is_new)
        if not turn.open_calls:
            opened = OpenCalls()
        if opened != known:
            self.set(opened)
        return opened

    def set(self, opened: OpenCalls) -> None:
        """Set the open calls."""
        scope = self._scope
        with self._state.writer.lock:
            scope.has_open_calls = scope.has_open_calls or bool(opened)
            scope.open_calls.become(opened)

    def matched(self, turn: LastTurn, *, is_new: bool = False) -> OpenCalls:
        """Return the calls of a turn; those that are open already keep their refs."""
        known, calls = self._scope.open_calls, turn.calls
        if is_new or self._is_passed(turn):
            known = OpenCalls()
        elif known.before is not None and known.before.digest == turn.digest(*calls):
            pairs = zip(known.calls, calls)
            known = known.with_calls(
                [call._replace(digest=turn.digest(one)) for call, one in pairs]
            )
        at = int(calls[0].at[0]) if calls else 0
        if known.at == at:
            # The calls of a masked archive have other arguments, and so other digests.
            masked = {
                name: turn.digest(call)
                for name, call in zip(names_of(calls), calls)
                if MASKED.search(repr(plain(call.source)))
            }
            fresh = [call._replace(digest=masked.get(call.id, call.digest)) for call in known.calls]
            known = known.with_calls(fresh)
        digests, redacted = map(turn.digest, calls), map(turn.is_redacted, calls)
        return known.renewed(names_of(calls), list(digests), list(redacted), at)

    def _is_passed(self, turn: LastTurn) -> bool:
        """Whether the open calls are still where they were, and the turn comes after them."""
        known, messages = self._scope.open_calls, self._scope.messages
        if not known or not turn.calls or not known.at < turn.calls[0].at[0]:
            return False
        digests = {call.digest for call in known.calls}
        return any(turn.digest(call) in digests for call in turn.calls_in(messages[known.at]))

    def take_over(self) -> None:
        """Take over open calls from the session record, where an earlier version had them."""
        record, path = self._state.record, self._scope.path
        row = next((row for row in record.batches if row[0] == path), None)
        if row is not None:
            _, first, ledger, digest, ids = row
            calls = [OpenCall(call_id, call_id, "") for call_id in ids]
            with self._state.writer.lock:
                record.batches = [other for other in record.batches if other is not row]
            if not self._scope.open_calls:
                self.set(OpenCalls(calls, 0, Before(first, ledger, digest)))

    def rows(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the open calls that have ended, by ref."""
        opened, log = self._scope.open_calls, self._scope.calls
        refs = {call.ref for call in opened.calls}
        numbered = [(opened.ref_of(row, n), n) for n, row in enumerate(raw_items(log))]
        return {ref: log[n] for ref, n in numbered if ref is not None and ref in refs}

    def effect(self, call: OpenCall) -> Effect | None:
        """Return the effect that an open call started."""
        found, before = self._state.ledger.effects_of_call(call.ref), self._scope.open_calls.before
        if before is not None:
            found += [
                effect
                for effect in self._state.ledger.all_effects()
                if (effect.call_id, effect.subagent or "") == (call.ref, self._scope.path)
                and effect.seq > before.ledger
            ]
        return next(filter(self._state.effects.is_ours, reversed(found)), None)
