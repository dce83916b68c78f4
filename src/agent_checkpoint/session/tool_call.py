"""Runs tool calls in a session. Owns the order: authorize, call, record the outcome, save.

Functions and coroutine functions share the steps. State is captured on the caller's thread;
blocking I/O is moved off the event loop.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import CheckpointError, NotFoundError
from agent_checkpoint.manager.async_verbs import run_to_completion
from agent_checkpoint.records import safe_repr, short_repr
from agent_checkpoint.session.current_session import current_task, is_nested, nested_calls
from agent_checkpoint.session.effects.approval_gate import require_approval
from agent_checkpoint.session.effects.approvals import arguments_of, consume_answer
from agent_checkpoint.session.effects.effect_context import EffectContext, ToolCall
from agent_checkpoint.session.effects.effects import Decision
from agent_checkpoint.session.effects.idempotency import effect_identity
from agent_checkpoint.session.tools.call_arguments import describe_error, fingerprint, recordable
from agent_checkpoint.session.tools.invoke import awaitables_on_this_loop, run_if_awaitable
from agent_checkpoint.session.tools.method_owner import find_owner, part_name
from agent_checkpoint.session.tools.tool import IDEMPOTENT, Tool, registered_tool
from agent_checkpoint.store.ledger.ledger import Request

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


class ToolRunner:
    """Runs the tools of one session."""

    def __init__(self, session: Work) -> None:
        self._session = session
        self._in_flight: list[ToolCall] = []
        self.finished = 0
        """How many calls have finished."""

    @property
    def in_flight(self) -> list[str]:
        """The names of the tools that are running."""
        return [call.tool.name for call in list(self._in_flight)]

    def owner(self, tool: Tool, part: str | None = None) -> Any:
        """Return the object that a method tool is called on. Raises NotFoundError."""
        return find_owner(self._session, tool, part)

    def run(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool. Raises what the tool raises, and CheckpointError if it may not run."""
        call = ToolCall(tool, *tool.bind(args, kwargs))
        try:
            self._begin(call)
            result = self._run(call)
            self._session._effects.release(call)
            return result
        except BaseException:
            self._release_for_retry(call)
            raise

    async def arun(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a coroutine tool, as `run` does."""
        call = ToolCall(tool, *tool.bind(args, kwargs))
        try:
            if tool.is_external or tool.approve:
                call.is_awaited = True
                with awaitables_on_this_loop():  # verify= and approve= may await objects of it
                    _, stopped = await run_to_completion(self._begin, call)
                if stopped is not None:
                    self._withdraw(call)
                    raise stopped
            else:
                self._begin(call)
            result = await self._arun(call)
            self._session._effects.release(call)
            return result
        except BaseException:
            self._release_for_retry(call)
            raise

    def carry_out(self, request: Request) -> Any:
        """Make an approved call, with the approver's edits. Raises as `run` does.

        Raises:
            NotFoundError: the tool was not imported here, or no part has the method.
        """
        tool = registered_tool(request)
        if tool is None:
            raise NotFoundError(
                f"The tool {short_repr(request.tool)} is not registered. Import the module that "
                "defines it."
            )
        owner = self.owner(tool, request.part) if tool.is_method else None
        call = ToolCall(tool, owner, arguments_of(self._session._ledger, request), request=request)
        try:
            self._begin(call)
            return run_if_awaitable(self._arun(call)) if tool.is_async else self._run(call)
        except BaseException:
            self._release_for_retry(call)
            raise

    def _release_for_retry(self, call: ToolCall) -> None:
        """Let the next identical call count as this one: no caller received its result."""
        with self._session._writer.lock:
            if call in self._in_flight:
                self._in_flight.remove(call)
            self._session._effects.release_for_retry(call, call.call_number)

    def _run(self, call: ToolCall) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay_result(call, call.decision)
        try:
            with nested_calls(self._session):
                result = call.tool.call(call.owner, call.arguments, call.context)
        except BaseException as error:
            try:
                self._settle_failed(call, error)
            finally:
                self._record_failure(call, error)
            raise
        try:
            self._commit(call, result)
        finally:
            self._record(call, result=recordable(result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return result

    async def _arun(self, call: ToolCall) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay_result(call, call.decision)
        stopped: BaseException | None = None
        try:
            with nested_calls(self._session):
                result = await call.tool.call(call.owner, call.arguments, call.context)
        except Exception as error:
            try:
                with awaitables_on_this_loop():  # verify= may await objects of it
                    _, stopped = await run_to_completion(self._settle_failed, call, error)
            finally:
                self._record_failure(call, error)
            if stopped is not None:
                raise stopped from error
            raise
        except BaseException as error:  # cancelled: no await is possible any more
            try:
                self._settle_failed(call, error)
            finally:
                self._record_failure(call, error)
            raise
        try:
            if call.context is not None:
                _, stopped = await run_to_completion(self._commit, call, result)
        finally:
            self._record(call, result=recordable(result))
        if stopped is not None:
            raise stopped
        await self._session._asave_after_call(call.words, nested=is_nested(self._session))
        return result

    # -- the steps -------------------------------------------------------------------------------

    def _begin(self, call: ToolCall) -> None:
        session, tool, request = self._session, call.tool, call.request
        session._check_open()
        call.task, call.began = current_task(session), time.time()
        if request is not None:
            call.task, call.part = request.task, request.part
            call.identity, call.digest = request.identity, request.digest
            self._authorize(call)
        elif tool.is_external or tool.approve is not False:
            call.part = part_name(session, tool, call.owner)
            given: Any = call.arguments if call.part is None else [call.part, call.arguments]
            with session._writer.lock:
                call.digest = fingerprint(given, f"{tool.name}'s arguments")
                call.call_number = session._effects.reserve_number(
                    tool, call.digest, call.task, call
                )
            number = 0 if call.call_number is None else call.call_number.number
            call.identity = effect_identity(
                tool, call.arguments, call.digest, call.task, number, part=call.part
            )
            self._authorize(call)
        call.given = recordable(call.arguments)
        self._in_flight.append(call)

    def _withdraw(self, call: ToolCall) -> None:
        """Record a call as failed that was authorized and then cancelled before it ran."""
        if call.context is not None and call.decision is not None:
            effects, effect = self._session._effects, call.decision.effect
            effects.call_ended(effect)
            if effect.kind != IDEMPOTENT:  # an earlier attempt may have succeeded
                effects.fail(effect, "the call was cancelled before it was made")

    def _authorize(self, call: ToolCall) -> None:
        session, tool = self._session, call.tool
        identity, digest = str(call.identity), str(call.digest)
        if tool.is_external:
            call.decision = session._effects.find_existing(tool, identity, digest, call)
        request = None
        if call.decision is None and tool.approve is not False:
            session._effects.check_allowed(tool)  # before asking for approval
            request = require_approval(session, call)
        if tool.is_external and call.decision is None:
            call.decision = session._effects.decide(
                tool,
                call.arguments,
                identity=identity,
                digest=digest,
                task=call.task,
                at=session._writer.head_id,
                request=request,
                part=call.part,
                call=call,
            )
        elif request is not None:
            consume_answer(session._ledger, request, session._epoch)
        if call.decision is not None and not call.is_replay:
            call.context = EffectContext(call.decision.effect, session._ledger.lineage)

    def _replay_result(self, call: ToolCall, decision: Decision) -> Any:
        self._mark_known(decision)
        self._record(call, result=recordable(decision.result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return decision.result

    def _mark_known(self, decision: Decision) -> None:
        """Record that the state contains this effect again, after a rollback had dropped it."""
        standing = self._session._record.standing
        if decision.effect.id in standing:
            standing.remove(decision.effect.id)

    def _commit(self, call: ToolCall, result: Any) -> None:
        if call.decision is None:
            return
        effects = self._session._effects
        try:
            effects.commit(call.decision.effect, result)
            self._mark_known(call.decision)
        finally:
            effects.call_ended(call.decision.effect)

    def _record_failure(self, call: ToolCall, error: BaseException) -> None:
        """Record a call that raised."""
        if not isinstance(error, Exception):
            return  # the process stops, or the session is suspended for an approval
        self._record(call, error=describe_error(error))
        try:
            self._session._save_after_call(call.words, nested=is_nested(self._session))
        except CheckpointError as trouble:
            _add_note(error, f"The checkpoint after this error failed as well: {trouble}")

    def _settle_failed(self, call: ToolCall, error: BaseException) -> None:
        """Determine the outcome of the effect of a failed call, or leave it unknown."""
        if call.decision is None:
            return
        effects, effect = self._session._effects, call.decision.effect
        effects.call_ended(effect)
        try:
            if call.context is not None and call.context.is_not_done:
                effects.fail(effect, f"the tool says that nothing happened: {safe_repr(error)}")
            elif isinstance(error, Exception):
                effects.verify(effect, call.tool)
        except CheckpointError as unknown:  # raise the tool's own error
            _add_note(error, str(unknown))

    def _record(self, call: ToolCall, **outcome: Any) -> None:
        row: dict[str, Any] = {
            "tool": call.tool.name,
            "arguments": call.given,
            **outcome,
            "ts": call.began,
            "seconds": round(time.time() - call.began, 6),
        }
        if call.task is not None:
            row["task"] = call.task
        if call.decision is not None:
            row["effect"] = call.decision.effect.id
            row["replayed"] = call.is_replay
        with self._session._writer.lock:
            self._session.calls.append(row)
            if (
                "error" not in outcome and call.call_number is not None
            ):  # the checkpoint to come knows
                self._session._record.counts.mark_used(*call.call_number)
            self._in_flight.remove(call)
            self.finished += 1


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
