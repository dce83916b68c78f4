"""Sub-agents of a session, and what they have in common with it. Owns opening and ending them.

A sub-agent has its own state, conversation, calls and tasks. They are parts of the checkpoints of
its session: one checkpoint has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.log import Log, replace_items
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    ImmutableError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    Suspended,
)
from agent_checkpoint.manager.checkpoint_parts import capture, check_text, restore_parts
from agent_checkpoint.options import Provider, check_option
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.agent_scope import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    MODEL_CALLS,
    OPEN_CALLS,
    AgentScope,
    is_within,
    path_of_place,
    qualified_part,
)
from agent_checkpoint.session.current_session import as_current, enter, leave
from agent_checkpoint.session.loop.agent_tools import AgentTools
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tasks import Tasks, copied_result
from agent_checkpoint.store.ledger.ledger_status import APPROVED, DENIED
from agent_checkpoint.store.objects.splitting import inline_tree

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent_checkpoint.session.loop.tool_calls import ToolCalls
    from agent_checkpoint.session.loop.toolbox import Tools
    from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest
    from agent_checkpoint.transcripts.report import CallOutcome


class SessionAgent:
    """An agent of a session: its state, conversation, tool calls and tasks."""

    def __init__(self, state: SessionState, scope: AgentScope) -> None:
        self._state = state
        self._scope = scope
        scope.tasks = self._tasks = Tasks(state, scope)
        scope.tools = self._tools = AgentTools(state, scope, self._tasks)
        scope.after_restore = self._tools.after_restore

    @property
    def _tool_calls(self) -> ToolCalls:
        return self._tools.tool_calls

    @property
    def tasks(self) -> Tasks:
        """The tasks; call it to list and run them."""
        return self._tasks

    @property
    def agent(self) -> Any:
        """The agent; another Stateful can be assigned."""
        return self._scope.agent

    @agent.setter
    def agent(self, agent: Any) -> None:
        _check_agent(self._state, agent, except_for=self._scope)
        self._scope.agent = agent

    @property
    def messages(self) -> Log[Any]:
        """The conversation. Assigning messages replaces its content: the Log stays the same.

        With `provider=`, the new content is repaired if the API would refuse it, such as a result
        whose call was cut off; `notices` lists the changes.
        """
        return self._scope.messages

    @messages.setter
    def messages(self, messages: Iterable[Any]) -> None:
        self.messages.replace(messages)
        self._tool_calls.repair_messages()

    @property
    def calls(self) -> Log[Any]:
        """Every tool call, with its arguments and its result or error."""
        return self._scope.calls

    @property
    def model_calls(self) -> Log[Any]:
        """Every call of `model`: tokens, cost, time, reply, and what is new in the request."""
        return self._scope.model_calls

    def subagent(
        self,
        name: str,
        *,
        agent: Any = None,
        restart: bool = False,
        provider: Provider | None = None,
    ) -> Subagent:
        """Return a sub-agent: a new one, or the saved one of this name with its state.

        Its tools are those called inside `with session.subagent(…) as child:`.

        Args:
            name: its name, unique among the sub-agents of this agent.
            agent: a Stateful; the saved state of the sub-agent is loaded into it.
            restart: start a sub-agent of this name again from nothing, even if it has finished.
            provider: the model API of its conversation; by default that of this agent.

        Raises:
            ConflictError: a sub-agent of this name is running.
            InvalidInputError: the name or the agent is invalid, or the session is closed.
            StateError: its state cannot be loaded.
        """
        state, outer = self._state, self._scope
        state.check_open()
        outer.check_open()
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise InvalidInputError(
                "The name of a sub-agent must be a non-empty string without slashes and control "
                f"characters, not {short_repr(name)}."
            )
        check_text(name, "The name of a sub-agent")
        if provider is not None:
            check_option("provider", provider, Provider)
        scope = AgentScope(agent, f"{outer.path}/{name}" if outer.path else name)
        scope.provider = provider or outer.provider
        with state.writer.lock:
            earlier = state.subagents.get(scope.path)
            if earlier is not None and earlier.thread is None:
                earlier.is_open = False  # was looked at only: this one takes its place
            if earlier is not None and earlier.is_open and not earlier.is_lost:
                raise ConflictError(
                    f"The sub-agent {short_repr(scope.path)} is already open. Wait for its end, or "
                    "use another name."
                )
            _check_agent(state, agent, except_for=earlier)
            _discard_inner(state, scope.path, restart=restart)
            child = Subagent(state, scope)
            child.resumed = child._load(earlier, restart=restart)
            if child.finished:
                scope.is_open = False
            else:
                state.subagents[scope.path] = scope
                if child.resumed:
                    child._tool_calls.after_restore()
        return child

    # -- the agent loop --------------------------------------------------------------------------

    def run_tools(
        self,
        message: Any,
        tools: Tools,
        *,
        provider: Provider | None = None,
        parallel: bool | int = False,
    ) -> list[Any]:
        """Run the tool calls of a model's message, and append the results to `messages`.

        The message is appended first, unless the conversation ends with it. Each call is made once:
        after a crash, calls that had ended give their recorded results, and calls whose outcome is
        in doubt are settled as the ledger says. What a tool raises is a result for the model, and
        so are an unknown tool, invalid arguments, and a call whose outcome is unknown.

        Args:
            message: the model's message or reply, as a dict or an object of the client library;
                `session.messages` for the calls at the end of the conversation.
            tools: functions by name, or functions and tools. Functions without `@tool` are local.
            provider: the model API; by default that of the session.
            parallel: run the calls in threads: True, or how many at once.

        Returns:
            The appended messages with the results; an empty list if there were no calls.

        Raises:
            Suspended: a call waits for an approval. The other calls have been made; call
                `run_tools` again after the answer.
            InvalidInputError: an option is invalid, or the message is not one of this provider.
            CheckpointError: a checkpoint could not be saved.
        """
        return self._tool_calls.run(message, tools, provider, parallel)

    async def arun_tools(
        self,
        message: Any,
        tools: Tools,
        *,
        provider: Provider | None = None,
        parallel: bool | int = False,
    ) -> list[Any]:
        """Run the tool calls of a model's message from asyncio; see `run_tools`."""
        return await self._tool_calls.arun(message, tools, provider, parallel)

    def model(self, send: Callable[..., Any], /, **request: Any) -> Any:
        """Call `send(**request)`, record the call in `model_calls`, and return the reply.

        The reply must be complete: a function that streams returns the final message. A `Log` in
        the request is passed as a list. Headers, API keys and clients are not recorded. The call is
        saved with the next checkpoint.

        Raises what `send` raises, which is recorded as well.

        Raises:
            InvalidInputError: `send` returned a stream or a coroutine.
        """
        return self._tools.model_calls.call(send, request)

    async def amodel(self, send: Callable[..., Any], /, **request: Any) -> Any:
        """Call a model from asyncio; `send` may be a coroutine function. See `model`."""
        return await self._tools.model_calls.acall(send, request)

    def model_request(self, index: int = -1) -> dict[str, Any]:
        """Return the whole request of a row of `model_calls`. Raises NotFoundError."""
        return self._tools.model_calls.request(index)

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return the outcome of a call without a result in the conversation; None if unrecorded.

        `transcripts.repair(…, session=session)` uses it. Raises StorageError.
        """
        return self._tool_calls.call_outcome(call_id)

    def carry_out(self) -> list[dict[str, Any]]:
        """Run the approved tool calls of this agent; return the outcome of each answered request.

        An outcome is a dict with `approval_id`, `tool`, and one of `result`, `error` or `denied`.

        Raises:
            NotFoundError: the module of a tool was not imported.
            CheckpointError: a call is refused.
        """
        self._state.check_open()
        ledger = self._state.ledger
        ledger.refresh()
        outcomes = []
        for request in list(ledger.state.requests.values()):
            is_ours = (request.session, request.subagent or "") == (
                self._state.key,
                self._scope.path,
            )
            if not is_ours or request.is_expired:
                continue
            row: dict[str, Any] = {"approval_id": request.id, "tool": request.tool}
            if request.status == APPROVED:
                outcomes.append({**row, **self._carry_out(request)})
            elif request.status == DENIED:
                outcomes.append({**row, "denied": request.reason or ""})
        return outcomes

    def _carry_out(self, request: ApprovalRequest) -> dict[str, Any]:
        try:
            with as_current(self._tools):
                return {"result": self._tools.runner.carry_out(request)}
        except (Suspended, ConflictError, NotFoundError, StorageError):
            raise
        except Exception as error:  # concerns this call only; the other calls still run
            return {"error": f"{type(error).__name__}: {error}"}


class Subagent(SessionAgent):
    """An agent inside a session. `with session.subagent(…) as child:` runs it.

    It is completed when the block exits without an exception, and failed when it raises.
    """

    resumed = False
    """Whether an earlier run of the program had started it."""

    def __init__(self, state: SessionState, scope: AgentScope) -> None:
        super().__init__(state, scope)
        self.path = scope.path
        self._entered: Any = None

    def __repr__(self) -> str:
        return f"<Subagent {self.path!r}: {self.status}>"

    @property
    def name(self) -> str:
        """The name, unique among the sub-agents of the agent around it."""
        return self.path.rpartition("/")[2]

    @property
    def messages(self) -> Log[Any]:
        """The conversation; read-only once the sub-agent has ended. Can be assigned before."""
        return self._scope.messages if self._scope.is_open else _ended(self._scope.messages)

    @messages.setter
    def messages(self, messages: Iterable[Any]) -> None:
        self.messages.replace(messages)
        self._tool_calls.repair_messages()

    @property
    def calls(self) -> Log[Any]:
        """Every tool call; read-only once the sub-agent has ended."""
        return self._scope.calls if self._scope.is_open else _ended(self._scope.calls)

    @property
    def status(self) -> str:
        """The status: in_progress, completed or failed."""
        return self._scope.status.status

    @property
    def finished(self) -> bool:
        """Whether the sub-agent is completed: it is not to be run again."""
        return self.status == COMPLETED

    @property
    def note(self) -> str:
        """The error of the last attempt, until the sub-agent is completed."""
        return self._scope.status.note

    @property
    def result(self) -> Any:
        """The result, for the agent around it and for readers of the checkpoint."""
        return self._scope.status.result

    @result.setter
    def result(self, result: Any) -> None:
        """Set the result. Raises StateError if it cannot be saved, InvalidInputError."""
        self._scope.check_open()
        self._scope.status.result = copied_result(result, self.path)

    def _load(self, earlier: AgentScope | None, *, restart: bool) -> bool:
        """Load the saved state, or that of the ended scope; return whether there is any."""
        state, scope = self._state, self._scope
        state.manager.background.flush()  # the head must contain the last capture
        head, targets = state.writer.head, scope.live_parts(every=True)
        saved = {} if head is None or self._is_dropped() else dict(head.parts)
        reader = None if head is None else state.manager.store.reader(head)
        if earlier is not None and not earlier.is_lost:  # in no checkpoint yet
            captured = capture(earlier.live_parts(), state.manager.fmt, state.manager.store.writer)
            saved, reader = {name: inline_tree(tree) for name, tree in captured.items()}, None
        found = {name: part for name, part in targets.items() if name in saved}
        status = qualified_part(scope.path, "status")
        if status not in saved:
            return False
        if restart:
            restore_parts(saved, {status: scope.status}, reader=reader)
            scope.status = type(scope.status)(run=scope.status.run + 1)
            scope.is_restarted = True
            return False
        for part, result in restore_parts(saved, found, reader=reader).items():
            state.note_mismatch(part, result)
        scope.has_model_calls = qualified_part(scope.path, MODEL_CALLS) in saved
        scope.has_open_calls = qualified_part(scope.path, OPEN_CALLS) in saved
        scope.counted_model_calls = len(scope.model_calls)
        if scope.status.status == FAILED:
            scope.status.status = IN_PROGRESS
        return True

    def _is_dropped(self) -> bool:
        """Return whether the saved one is of an earlier run of an agent around it."""
        return any(
            scope.is_restarted and not scope.is_saved and is_within(self.path, path)
            for path, scope in self._state.subagents.items()
        )

    # -- run -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        state, scope = self._state, self._scope
        state.check_open()
        if self._entered is not None:
            raise InvalidInputError(f"The sub-agent {short_repr(self.path)} was already entered.")
        if self.finished:  # for its result: calls are refused
            self._entered = enter(self._tools)
            return self
        scope.check_open()
        self._entered = enter(self._tools)
        try:
            with state.writer.lock:
                scope.thread = get_ident()
                self._save("begins")
        except BaseException:
            scope.thread = None
            leave(self._entered)
            self._entered = None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._scope.is_open:
                self._end(error)
        finally:  # last: its last checkpoint is taken inside the sub-agent
            leave(self._entered)

    def _end(self, error: BaseException | None) -> None:
        """Record the end of the block, and save it. Raises the same errors as `Session.save`."""
        state, scope = self._state, self._scope
        inside = [
            item.path
            for item in state.entered()
            if not item.is_lost and item is not scope and is_within(item.path, self.path)
        ]
        with state.writer.lock:
            scope.is_open, scope.thread = False, None
            if scope.is_lost or not state.is_open:
                return
            if isinstance(error, Exception):
                with block_forks():
                    from agent_checkpoint.session.tools.call_arguments import describe_error

                scope.status.status, scope.status.note = FAILED, describe_error(error)
            elif error is not None:
                return  # interrupted, or suspended for an approval: the session saves it
            elif inside:
                raise ConflictError(
                    f"The sub-agent {short_repr(self.path)} is not recorded as completed: its own "
                    f"sub-agents are still running: {', '.join(map(short_repr, inside))}."
                )
            else:
                scope.status.status, scope.status.note = COMPLETED, ""
                state.record.counts.forget(lambda place: path_of_place(place) == self.path)
            try:
                self._save(self.status)
            except CheckpointError:
                if error is None:
                    raise

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _save(self, what: str) -> None:
        state = self._state
        if state.every != "manual":
            with state.full_scan(self.status != IN_PROGRESS):
                state.save(label=self._scope.label(what))


def state_of(agent: SessionAgent) -> SessionState:
    """Return the shared state of a session, for operations on it in other modules."""
    return agent._state


class _EndedLog(Log[Any]):
    """The log of a sub-agent that has ended: a change would not be saved."""

    def append(self, item: Any) -> NoReturn:
        """Raise ImmutableError."""
        raise ImmutableError(
            "The sub-agent has ended, and its conversation and calls are read-only. Open it with "
            "restart=True to start again, or use another name."
        )

    def extend(self, items: Iterable[Any]) -> None:
        """Raise ImmutableError if there are items."""
        for item in items:
            self.append(item)

    def truncate(self, n: int) -> NoReturn:
        """Raise ImmutableError."""
        self.append(None)

    def replace(self, items: Iterable[Any]) -> NoReturn:
        """Raise ImmutableError."""
        self.append(items)

    def __setitem__(self, index: int, item: Any) -> NoReturn:
        self.append(item)


def _ended(log: Log[Any]) -> Log[Any]:
    ended = _EndedLog()
    replace_items(ended, log)
    return ended


def _discard_inner(state: SessionState, outer: str, *, restart: bool) -> None:
    """Drop the lost sub-agents of a sub-agent that is opened; of one that starts again, all."""
    inner = [path for path in state.subagents if path != outer and is_within(path, outer)]
    running = [scope.path for scope in state.entered() if scope.path in inner and not scope.is_lost]
    if restart and running:
        raise ConflictError(
            f"The sub-agent {short_repr(outer)} cannot start again: its own sub-agents are still "
            f"running: {', '.join(map(short_repr, running))}."
        )
    for path in inner:
        if restart or state.subagents[path].is_lost:
            state.subagents.pop(path).is_lost = True  # for good: undo does not find it


def _check_agent(state: SessionState, agent: Any, *, except_for: AgentScope | None) -> None:
    if isinstance(agent, type):
        raise InvalidInputError(f"agent is the class {agent.__name__}: pass an instance.")
    if agent is None:
        return
    if not is_stateful(agent):
        raise InvalidInputError(
            "agent has no state_dict() and load_state_dict(). Derive its class from Checkpointable."
        )
    scopes = [state.root, *state.subagents.values()]
    others = [*state.parts.values(), *(item.agent for item in scopes if item is not except_for)]
    if any(part is agent for part in others):
        raise InvalidInputError(
            "agent is already the agent or a part of this session, or of a running sub-agent. Pass "
            "another object: each agent is saved and loaded separately."
        )
