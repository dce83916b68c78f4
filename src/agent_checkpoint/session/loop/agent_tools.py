"""The tool calls and model calls of one agent, as its tools, its tasks and its session see them.

What makes the calls is created at the first one: its modules are slow to load, and a session that
only saves needs none of them.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.os_support.os_fork import block_forks

if TYPE_CHECKING:
    from agent_checkpoint.session.agent_scope import AgentScope
    from agent_checkpoint.session.current_session import OpenSession
    from agent_checkpoint.session.loop.model_calls import ModelCalls
    from agent_checkpoint.session.loop.tool_calls import ToolCalls
    from agent_checkpoint.session.session_state import SessionState
    from agent_checkpoint.session.tasks import Tasks
    from agent_checkpoint.session.tool_runner import ToolRunner
    from agent_checkpoint.workspace.workspace import Workspace


class AgentTools:
    """The tools of one agent; the agent as `current_session` returns it."""

    def __init__(self, state: SessionState, scope: AgentScope, tasks: Tasks) -> None:
        self._state = state
        self._scope = scope
        self._tasks = tasks
        self.path = scope.path
        self.add_notice = state.add_notice
        self._making = Lock()
        self._runner: ToolRunner | None = None
        self._tool_calls: ToolCalls | None = None
        self._model_calls: ModelCalls | None = None

    @property
    def session(self) -> OpenSession:
        """The session's own agent."""
        return self._state.root.tools

    @property
    def workspace(self) -> Workspace | None:
        """The workspace of the session."""
        return self._state.workspace

    def run(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool. Raises the same errors as `ToolRunner.run`."""
        return self.runner.run(tool, args, kwargs)

    async def arun(self, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a coroutine tool. Raises the same errors as `ToolRunner.run`."""
        return await self.runner.arun(tool, args, kwargs)

    def after_restore(self) -> None:
        """Continue from a restored checkpoint. Raises StorageError."""
        self.tool_calls.after_restore()

    @property
    def runner(self) -> ToolRunner:
        """Runs the tools."""
        if self._runner is None:
            with block_forks(), self._making:
                from agent_checkpoint.session.tool_runner import ToolRunner

                if self._runner is None:
                    self._runner = ToolRunner(self._state, self._scope, self._tasks)
        return self._runner

    @property
    def tool_calls(self) -> ToolCalls:
        """Runs the tool calls of the model's messages."""
        if self._tool_calls is None:
            runner = self.runner
            with block_forks(), self._making:
                from agent_checkpoint.session.loop.tool_calls import ToolCalls

                if self._tool_calls is None:
                    self._tool_calls = ToolCalls(self._state, runner, self._scope)
        return self._tool_calls

    @property
    def model_calls(self) -> ModelCalls:
        """Makes and records the calls of the model."""
        if self._model_calls is None:
            with block_forks(), self._making:
                from agent_checkpoint.session.loop.model_calls import ModelCalls

                if self._model_calls is None:
                    self._model_calls = ModelCalls(self._state, self._scope)
        return self._model_calls
