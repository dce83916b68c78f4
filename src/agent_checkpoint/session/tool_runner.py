"""Runs tool calls in a session. Owns the order: authorize, call, record the outcome, save.

Functions and coroutine functions share the steps. State is captured on the caller's thread;
blocking I/O is moved off the event loop.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

from agent_checkpoint import telemetry
from agent_checkpoint.errors import (
    ApprovalDeniedError,
    CheckpointError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    Suspended,
)
from agent_checkpoint.manager.async_verbs import await_future, run_to_completion
from agent_checkpoint.records import Checkpoint, safe_repr, short_repr
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import (
    current_task,
    enclosing_calls,
    is_nested,
    nested_calls,
)
from agent_checkpoint.session.effects.approvals import (
    append_request,
    arguments_of,
    call_arguments,
    consume_answer,
    denial,
    edits_of,
    find_request,
    new_request_id,
)
from agent_checkpoint.session.effects.effect_context import (
    ApprovalQuestion,
    Decision,
    EffectContext,
    ToolCall,
)
from agent_checkpoint.session.effects.idempotency import call_digest, effect_identity
from agent_checkpoint.session.open_calls import OpenCall, row_ref
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tasks import Tasks
from agent_checkpoint.session.tools.call_arguments import (
    as_json,
    describe_call,
    describe_error,
    recordable,
)
from agent_checkpoint.session.tools.effect_kinds import behaviour_of
from agent_checkpoint.session.tools.invoke import awaitables_on_this_loop, run_if_awaitable
from agent_checkpoint.session.tools.method_owner import part_name
from agent_checkpoint.session.tools.recorded_calls import recorded_error
from agent_checkpoint.session.tools.tool import Tool, check_same_tool, registered_tool
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest
from agent_checkpoint.store.ledger.ledger_status import APPROVED, DENIED, PENDING, title_of


class ToolRunner:
    """Runs the tools of one agent."""

    def __init__(self, state: SessionState, scope: AgentScope, tasks: Tasks) -> None:
        self._state = state
        self._scope = scope
        self._tasks = tasks
        self.path = scope.path
        self._redactor = state.manager.policy.redactor

    def run(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool. Raises what the tool raises, and CheckpointError if the call is refused."""
        return self.run_call(ToolCall(tool, *tool.bind(args, kwargs)))

    def run_call(self, call: ToolCall) -> Any:
        """Make a call. Raises the same errors as `run`."""
        row = self._recorded_row(call)
        if row is not None:
            return self._answer(call, row)
        try:
            call.began = time.time()  # before a wait for other calls that begin at the same time
            self._state.save_outside_changes(self._state.writer.write)
            self._begin(call)
            result = self._run(call)
            self._state.effects.call_numbers.release(call)
            return result
        except BaseException:
            self._release_for_retry(call)
            raise

    async def arun(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a coroutine tool. Raises the same errors as `run`."""
        return await self.arun_call(ToolCall(tool, *tool.bind(args, kwargs)))

    async def arun_call(self, call: ToolCall) -> Any:
        """Make a call from asyncio; a function blocks the event loop meanwhile.

        Raises the same errors as `run`.
        """
        row = self._recorded_row(call)
        if row is not None:
            return self._answer(call, row)
        try:
            call.began = time.time()
            outside = self._state.save_outside_changes(self._state.writer.submit)
            if outside is not None:
                await await_future(outside)
            if call.tool.is_external or call.tool.approve:
                call.is_awaited = True
                with awaitables_on_this_loop():  # verify= and approve= may await objects of it
                    _, stopped = await run_to_completion(self._begin, call)
                if stopped is not None:
                    self._withdraw(call)
                    raise stopped
            else:
                self._begin(call)
            result = await self._arun(call)
            self._state.effects.call_numbers.release(call)
            return result
        except BaseException:
            self._release_for_retry(call)
            raise

    def _recorded_row(self, call: ToolCall) -> Mapping[str, Any] | None:
        """Return the recorded row that answers a call, if the session is a replay."""
        replay = self._state.replay
        if replay is None:
            return None
        self._state.check_open()
        self._scope.check_open()
        given = recordable(call.arguments, self._redactor)
        return replay.tool(self.path, call.tool.name, given)

    def _answer(self, call: ToolCall, recorded: Mapping[str, Any]) -> Any:
        """Return the recorded result of a call, or raise its error; save as after the call."""
        row = dict(recorded)
        if call.call_ref is not None:  # random in each run; `run_tools` finds the row by it
            row.update(call_id=call.call_id, call_ref=call.call_ref)
        call.given = row["arguments"]
        with self._state.writer.lock:
            self._scope.calls.append(row)
            self._scope.finished_calls += 1
            call.row = row
        self._save(call)
        if self._state.replay is not None:
            self._state.replay.saved()
        if "error" in row:
            raise recorded_error(str(row["error"]))
        return row.get("result")

    def carry_out(self, request: ApprovalRequest) -> Any:
        """Run an approved call, with the approver's edits.

        Raises the same errors as `run`.

        Raises:
            NotFoundError: the tool is not imported in this process, or no part has the method.
        """
        tool = registered_tool(request)
        if tool is None:
            raise NotFoundError(
                f"The tool {short_repr(request.tool)} is not registered. Import the module that "
                "defines it."
            )
        owner = self._state.owner(tool, request.part) if tool.is_method else None
        call = ToolCall(tool, owner, arguments_of(self._state.ledger, request), request=request)
        before = self._scope.open_calls.before
        call.called, call.call_id, call.call_ref = request.called, request.call_id, request.call_ref
        if call.call_ref is None and before is not None and request.seq <= before.ledger:
            call.call_id = None  # an open call may have the same id
        try:
            call.began = time.time()
            self._state.save_outside_changes(self._state.writer.write)
            self._begin(call)
            return run_if_awaitable(self._arun(call)) if tool.is_async else self._run(call)
        except BaseException:
            self._release_for_retry(call)
            raise

    def _release_for_retry(self, call: ToolCall) -> None:
        """Give the call number to the next identical call: no caller received the result."""
        state = self._state
        with state.writer.lock:
            if call in state.running:
                state.running.remove(call)
            state.effects.release_for_retry(call)

    def _run(self, call: ToolCall) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay_result(call, call.decision)
        try:
            with nested_calls(self._scope.tools, call), self._measured(call):
                result = call.tool.call(call.owner, call.arguments, call.context)
                if call.is_from_record:  # such as that of a decorated coroutine function
                    result = run_if_awaitable(result)
                _check_finished(call.name, result)
        except BaseException as error:
            try:
                self._settle_failed(call, error)
            finally:
                self._record_failure(call, error)
            raise
        try:
            self._commit(call, result)
        finally:
            self._record(call, result=result)
        self._save(call)
        return result

    async def _arun(self, call: ToolCall) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay_result(call, call.decision)
        stopped: BaseException | None = None
        try:
            with nested_calls(self._scope.tools, call), self._measured(call):
                result = call.tool.call(call.owner, call.arguments, call.context)
                if inspect.isawaitable(result):
                    result = await result
                _check_finished(call.name, result)
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
            self._record(call, result=result)
        if stopped is not None:
            raise stopped
        if call.is_saved and self.is_due():
            await self._state.asave(label=self._scope.label(call.words))
        return result

    def _measured(self, call: ToolCall) -> AbstractContextManager[Any]:
        return telemetry.operation(
            "tool",
            key=self._state.key,
            tool=call.name,
            call_id=call.call_id,
            agent=self.path,
        )

    # -- the steps -------------------------------------------------------------------------------

    def _begin(self, call: ToolCall) -> None:
        call.redactor = self._redactor
        state, tool, request = self._state, call.tool, call.request
        state.check_open()
        self._scope.check_open()
        if state.replay is not None:
            state.replay.check_live()
        call.subagent = self.path
        call.task = current_task(self._scope.tools) or self._tasks.only_one_in_progress()
        if request is not None:
            call.task, call.part = request.task, request.part
            call.identity, call.digest = request.identity, request.digest
            self._authorize(call)
        elif tool.is_external or tool.approve is not False:
            call.part = part_name(state.live_parts(), tool, call.owner)
            given: Any = call.arguments if call.part is None else [call.part, call.arguments]
            with state.writer.lock:
                call.digest = call_digest(
                    given, f"{tool.name}'s arguments", self._redactor, state.ledger.state
                )
                number, others = self._numbers_of_attempts(call)
                call.call_number = state.effects.call_numbers.reserve(
                    tool,
                    call.digest,
                    self._scope.place(call.task),
                    call,
                    number=number,
                    others=others,
                )
            number = 0 if call.call_number is None else call.call_number.number
            call.identity = effect_identity(
                tool,
                call.arguments,
                call.digest,
                self._scope.place(call.task),
                number,
                part=call.part,
                redactor=self._redactor,
                ledger=state.ledger.state,
            )
            self._authorize(call)
        call.given = recordable(call.arguments, self._redactor)
        with state.writer.lock:  # not while the session is rolled back
            state.running.append(call)

    def _numbers_of_attempts(self, call: ToolCall) -> tuple[int | None, list[int]]:
        """Return the call number of an earlier attempt at a call, and those of equal open calls."""
        numbers = {
            effect.call_ref: effect.number
            for one in self._scope.open_calls.calls
            for effect in self._state.ledger.effects_of_call(one.ref)
            if (effect.tool, effect.digest) == (call.tool.name, call.digest)
            and self._state.effects.is_ours(effect)
        }
        own = numbers.pop(call.call_ref, None)
        return own, [number for number in numbers.values() if number is not None]

    def roll_back(self, tool: str, target: Checkpoint, request_id: str) -> None:
        """Roll this agent back to before a call within which another one waits for an approval.

        Raises the same errors as `Rollback.run`.
        """
        label = f"{tool} waits for {request_id}"
        self._tasks.roll_back(target, label=label, what=f"The call of {tool}")

    def _withdraw(self, call: ToolCall) -> None:
        """Record a call as failed that was authorized and then cancelled before it ran."""
        if call.context is not None and call.decision is not None:
            effects, effect = self._state.effects, call.decision.effect
            effects.call_ended(effect)
            if not behaviour_of(effect.kind).is_repeatable:  # an earlier attempt may have succeeded
                effects.outcomes.fail(effect, "the call was cancelled before it ran")

    def _authorize(self, call: ToolCall) -> None:
        state, tool = self._state, call.tool
        effects = state.effects
        if tool.is_external:
            call.decision = effects.find_existing(call)
        request = None
        if call.decision is None and tool.approve is not False:
            effects.check_allowed(call)  # before asking for approval
            request = self._require_approval(call)
        if tool.is_external and call.decision is None:
            call.decision = effects.decide(call, at=state.writer.head_id, request=request)
        elif request is not None:
            consume_answer(state.ledger, request, effects.epoch)
        if call.decision is not None and not call.is_replay:
            call.context = EffectContext(call.decision.effect, state.ledger.lineage)

    def _require_approval(self, call: ToolCall) -> ApprovalRequest | None:
        """Return the approved request to consume, or None if an `approve=` function approved.

        Raises:
            ApprovalDeniedError: the request was denied.
            Suspended: the request has no answer yet; the session is saved.
            ConflictError: the answer was already used.
        """
        tool, state = call.tool, self._state
        if callable(tool.approve):
            words = describe_call(call.name, call.arguments)
            question = ApprovalQuestion(call.name, dict(call.arguments), call.task, words)
            if run_if_awaitable(tool.approve(question)):
                return None
            raise ApprovalDeniedError(f"{call.name} was denied by its approve= function.")
        ledger = state.ledger
        ledger.refresh()
        request = call.request or find_request(ledger, state.key, call.identity, call.digest)
        if request is None:
            self._suspend(call, new_request_id(), is_new=True)
        # A copy: the call uses this answer, or none if it is revoked meanwhile.
        request = replace(request, parts=dict(request.parts))
        check_same_tool(tool, request, request.title)
        if request.status == PENDING:
            self._suspend(call, request.id, is_new=False)
        is_approved = request.status == APPROVED
        if is_approved:
            call.arguments = call_arguments(ledger, request, call.arguments)
            call.edited = list(edits_of(ledger, request))
        elif request.status == DENIED:
            consume_answer(ledger, request, state.effects.epoch)
        else:
            raise ConflictError(
                f"The approval request {request.id} is {request.status} and cannot be used."
            )
        with state.writer.lock:
            state.record.pending = [name for name in state.record.pending if name != request.id]
        if not is_approved:
            raise denial(request)
        return request

    def _suspend(self, call: ToolCall, request_id: str, *, is_new: bool) -> NoReturn:
        state, label = self._state, self._scope.label(f"waits for {request_id}")
        with state.writer.lock:
            if request_id not in state.record.pending:
                state.record.pending.append(request_id)
        outer = next(
            (one for one in enclosing_calls(self._scope.tools) if isinstance(one, ToolCall)), None
        )
        call.within = None if outer is None else outer.call_ref
        if outer is not None and call.within is not None and state.every == "tool":
            # A checkpoint would have a part of its changes. `run_tools` rolls it back.
            outer.is_torn, saved = True, state.writer.head_id
            with state.writer.lock:
                row = [self.path, call.within, outer.name, request_id, outer.before]
                state.record.torn_calls.append(row)
        elif call.is_awaited:  # state is captured on the thread of the call
            saved = run_if_awaitable(state.asave(label=label, if_changed=True))
        else:  # a program that polls for the answer adds no checkpoint each time
            saved = state.save(label=label, if_changed=True)
        if is_new:
            append_request(state.ledger, request_id, call, epoch=state.effects.epoch, at=saved)
        telemetry.count("paused", key=state.key, checkpoint=saved)
        raise Suspended(request_id, title_of(call.name, call.digest))

    def is_due(self, saved: int | None = None) -> bool:
        """Return whether to save after the last call, or after all since the first `saved`."""
        every, finished = self._state.every, self._scope.finished_calls
        if is_nested(self._scope.tools) or every in ("task", "manual"):
            return False
        before = finished - 1 if saved is None else saved
        return every == "tool" or finished // int(every) > before // int(every)

    def _save(self, call: ToolCall) -> None:
        if call.is_saved and self.is_due():
            self._state.save(label=self._scope.label(call.words))

    def _replay_result(self, call: ToolCall, decision: Decision) -> Any:
        self._mark_known(decision)
        self._record(call, result=decision.result)
        self._save(call)
        return decision.result

    def _mark_known(self, decision: Decision) -> None:
        """Record that the state contains this effect again, after a rollback had dropped it."""
        with self._state.writer.lock:  # a sub-agent beside may be rolled back
            standing = self._state.record.standing
            if decision.effect.id in standing:
                standing.remove(decision.effect.id)

    def _commit(self, call: ToolCall, result: Any) -> None:
        if call.decision is None:
            return
        effects = self._state.effects
        try:
            effects.outcomes.commit(call.decision.effect, result)
            self._mark_known(call.decision)
        finally:
            effects.call_ended(call.decision.effect)

    def _record_failure(self, call: ToolCall, error: BaseException) -> None:
        """Record a call that raised."""
        if not isinstance(error, Exception):
            return  # the process stops, or the session is suspended for an approval
        self._record(call, error=describe_error(error, self._redactor))
        try:
            self._save(call)
        except CheckpointError as trouble:
            _add_note(error, f"The checkpoint after this error failed as well: {trouble}")

    def _settle_failed(self, call: ToolCall, error: BaseException) -> None:
        """Determine the outcome of the effect of a failed call, or leave it unknown."""
        if call.decision is None:
            return
        outcomes, effect = self._state.effects.outcomes, call.decision.effect
        self._state.effects.call_ended(effect)
        try:
            if call.context is not None and call.context.is_not_done:
                why = f"the tool reported that nothing happened: {safe_repr(error)}"
                outcomes.fail(effect, why)
            elif isinstance(error, Exception):
                outcomes.verify(effect, call.tool, call.arguments)
        except CheckpointError as unknown:  # raise the tool's own error
            _add_note(error, str(unknown))

    def record_refused(
        self, opened: OpenCall, tool: str, arguments: Any, error: str
    ) -> dict[str, Any]:
        """Record a call of a model that cannot be made; return its row."""
        row: dict[str, Any] = {
            "tool": tool,
            "arguments": recordable(arguments, self._redactor),
            "error": error,
        }
        row.update(ts=time.time(), seconds=0.0, call_id=opened.id, call_ref=row_ref(opened.ref))
        task = current_task(self._scope.tools) or self._tasks.only_one_in_progress()
        with self._state.writer.lock:
            self._scope.calls.append(row if task is None else {**row, "task": task})
            self._scope.finished_calls += 1
        return row

    def _record(self, call: ToolCall, **outcome: Any) -> None:
        if "result" in outcome:
            result = outcome["result"]
            told = result if call.call_id is None else as_json(result)
            outcome["result"] = recordable(told, self._redactor)
        row: dict[str, Any] = {
            "tool": call.name,
            "arguments": call.given,
            **outcome,
            "ts": call.began,
            "seconds": round(time.time() - call.began, 6),
        }
        if call.task is not None:
            row["task"] = call.task
        if call.call_id is not None:
            row["call_id"] = call.call_id
        if call.call_ref is not None:
            row["call_ref"] = row_ref(call.call_ref)
        if call.edited:
            row["edited"] = call.edited
        if call.decision is not None:
            row["effect"] = call.decision.effect.id
            row["replayed"] = call.is_replay
        state = self._state
        with state.writer.lock:
            state.running.remove(call)
            state.has_unsaved_calls = True
            if call.is_abandoned:
                call.is_saved = False
                return
            self._scope.calls.append(row)
            if "error" not in outcome and call.call_number is not None:
                # The next checkpoint contains the result of this call.
                state.record.counts.mark_used(*call.call_number)
            self._scope.finished_calls += 1
            call.row = row


def _check_finished(name: str, result: Any) -> None:
    """Refuse a result that has not run yet. Raises InvalidInputError."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        what, advice = "an awaitable", "Declare the tool with async def."
    elif inspect.isgenerator(result) or inspect.isasyncgen(result):
        what, advice = "a generator", "Return a list."
    else:
        return
    raise InvalidInputError(
        f"{name} returned {what}, which has not run, so that its outcome cannot be recorded. "
        f"{advice}"
    )


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
