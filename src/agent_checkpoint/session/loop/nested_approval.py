"""A model's tool call within which another call waits for an approval.

The outer call has made a part of its changes. It is rolled back, and made again from its start
after the answer. Until it is rolled back, `torn_calls` of the session record has it: a checkpoint
that is saved meanwhile has that part, and a resumed session rolls it back, too.
"""

from __future__ import annotations

from agent_checkpoint.errors import CheckpointError, Suspended
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.effects.approvals import unused_requests
from agent_checkpoint.session.rollback.rollback_target import task_start
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tool_runner import ToolRunner


class NestedApproval:
    """The outer calls of one agent that wait."""

    def __init__(self, state: SessionState, scope: AgentScope, runner: ToolRunner) -> None:
        self._state = state
        self._scope = scope
        self._runner = runner

    @property
    def is_torn(self) -> bool:
        """Whether a call is to be rolled back."""
        return bool(self._rows())

    def _rows(self) -> list[list[str]]:
        """Return the rows of calls that are still open."""
        refs = {call.ref for call in self._scope.open_calls.calls}
        return [
            row
            for row in self._state.record.torn_calls
            if row[0] == self._scope.path and row[1] in refs
        ]

    def roll_back(self) -> None:
        """Discard what outer calls have changed, if there are any.

        Of parallel calls the first is rolled back, and so all are. A failure is a notice.
        """
        state = self._state
        found = [(task_start(state, before), row) for *row, before in self._rows()]
        targets = [(target.seq, target, row) for target, row in found if target is not None]
        if not targets:  # none, or the checkpoints before them were removed
            return
        _, target, (_, _, tool, request) = min(targets, key=lambda one: one[0])
        try:
            with as_current(self._scope.tools):
                self._runner.roll_back(tool, target, request)
        except CheckpointError as error:
            self._scope.is_interrupted = True  # so that closing saves no half of it
            state.add_notice(
                f"{tool} waits for {request}, and what it has changed before could not be rolled "
                f"back: {error}"
            )

    def forget(self, *refs: str) -> None:
        """Forget calls that have ended."""
        record = self._state.record
        with self._state.writer.lock:
            record.torn_calls = [row for row in record.torn_calls if row[1] not in refs]

    def check(self) -> None:
        """Raise Suspended if a call within an open call still has no answer: it would ask again."""
        refs = {call.ref for call in self._scope.open_calls.calls}
        for request in unused_requests(self._state.ledger, self._state.key) if refs else ():
            if request.is_open and request.within in refs:
                raise Suspended(request.id, request.title)
