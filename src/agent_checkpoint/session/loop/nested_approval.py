"""A model's tool call within which another call waits for an approval.

The outer call has made a part of its changes. It is rolled back, and made again from its start
after the answer.
"""

from __future__ import annotations

from typing import NamedTuple

from agent_checkpoint.errors import CheckpointError, Suspended
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tool_runner import ToolRunner


class _Torn(NamedTuple):
    """The outer call."""

    tool: str
    before: Checkpoint
    """The checkpoint before the call."""
    suspended: Suspended


class NestedApproval:
    """The outer calls of one agent that wait, and what they wait for."""

    def __init__(self, state: SessionState, scope: AgentScope, runner: ToolRunner) -> None:
        self._state = state
        self._scope = scope
        self._runner = runner
        self._torn: _Torn | None = None
        self._waits_for: Suspended | None = None

    @property
    def is_torn(self) -> bool:
        """Whether a call of this run is to be rolled back."""
        return self._torn is not None

    def begin_run(self) -> None:
        """Forget the calls of an earlier run, but not what they wait for."""
        self._torn = None

    def forget(self) -> None:
        """Forget what calls wait for: another checkpoint was restored."""
        self._waits_for = None

    def add(self, tool: str, before: Checkpoint, suspended: Suspended) -> None:
        """Add an outer call; of parallel ones the first is rolled back, and so all are."""
        if self._torn is None or before.seq < self._torn.before.seq:
            self._torn = _Torn(tool, before, suspended)

    def roll_back(self) -> None:
        """Discard what the outer call has changed, if there is one."""
        torn = self._torn
        if torn is None:
            return
        try:
            with as_current(self._runner):
                self._runner.roll_back(torn.tool, torn.before, torn.suspended)
            self._waits_for = torn.suspended
        except CheckpointError as error:
            self._scope.is_interrupted = True  # so that closing saves no half of it
            self._state.add_notice(
                f"{torn.tool} waits for {torn.suspended.approval_id}, and what it has changed "
                f"before could not be rolled back: {error}"
            )

    def check(self, before: set[str]) -> None:
        """Raise Suspended if a call within an open call still has no answer: it would ask again.

        `before` has the refs of the calls that were open already.
        """
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is None or not any(one.ref in before for one in self._scope.open_calls.calls):
            return
        self._state.ledger.refresh()
        request = self._state.ledger.state.requests.get(waits_for.approval_id)
        if request is not None and request.is_open:
            self._waits_for = waits_for
            raise Suspended(request.id, waits_for.words)
