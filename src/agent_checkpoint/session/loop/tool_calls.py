"""Runs the tool calls of a model's message, each once, and appends the results.

The part `open_calls` has the calls of the model's last turn until their results are in the
conversation. Each has a ref, by which a resumed session finds its row and its effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from agent_checkpoint.errors import (
    ApprovalDeniedError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    Suspended,
)
from agent_checkpoint.manager.async_verbs import run_to_completion
from agent_checkpoint.options import Provider
from agent_checkpoint.records import short_repr
from agent_checkpoint.redaction import MASKED, PLACEHOLDER
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import as_current, is_nested
from agent_checkpoint.session.effects.effect_context import ToolCall
from agent_checkpoint.session.loop.call_matching import CallMatching
from agent_checkpoint.session.loop.call_outcomes import BLOCKED, IN_DOUBT, CallOutcomes
from agent_checkpoint.session.loop.conversation_repair import repair_conversation
from agent_checkpoint.session.loop.nested_approval import NestedApproval
from agent_checkpoint.session.loop.parallel_calls import (
    PlannedCall,
    Schedule,
    arun_parallel,
    label_of,
    run_parallel,
    workers_of,
)
from agent_checkpoint.session.loop.toolbox import BoundTool, Tools, toolbox
from agent_checkpoint.session.open_calls import OpenCall, OpenCalls
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tool_runner import ToolRunner
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.session.tools.invoke import awaitables_on_this_loop, run_if_awaitable
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.transcripts import dialect_for
from agent_checkpoint.transcripts.dialect import Dialect
from agent_checkpoint.transcripts.draft import Block
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.transcripts.last_turn import LastTurn
from agent_checkpoint.transcripts.mending import answer_for
from agent_checkpoint.transcripts.report import CallOutcome

_EXPECTED = (
    "run_tools takes a message of the model, such as the reply of session.model(), or "
    "session.messages for the calls at the end of the conversation"
)
_INCOMPLETE = (
    "The reply ended before this call was complete, so its arguments are not known. The call was "
    "not made and had no effect. Make it again if it is needed."
)
_REDACTED = (
    "The arguments of this call were redacted when the session was saved, and it is now resumed. "
    "The call was not made and had no effect. Make it again, with the real values, if it is needed."
)


class _Run:
    """One run over the calls of a message."""

    def __init__(self, turn: LastTurn, calls: dict[OpenCall, Block]) -> None:
        self.turn = turn
        self.calls = calls
        self.to_make: list[PlannedCall] = []
        self.outcomes: dict[OpenCall, CallOutcome] = {}
        self.suspended: Suspended | None = None
        self.label: str | None = None
        """The label of the checkpoint to save before the first call; None if there is none."""


class ToolCalls:
    """Runs the tool calls of the messages of one agent."""

    def __init__(self, state: SessionState, runner: ToolRunner, scope: AgentScope) -> None:
        self._state = state
        self._runner = runner
        self._scope = scope
        self._matching = CallMatching(state, scope)
        self._outcomes = CallOutcomes(state, scope, self._matching)
        self._nested = NestedApproval(state, scope, runner)
        self._is_running = False
        self._loaded = 0
        """How many messages were loaded from a checkpoint; the last may be part of a stream."""
        self._loaded_refs: set[str] = set()
        """The open calls that were loaded: messages may have been inserted before them since."""
        self._unsaved_reply = False
        """Whether the save of the reply before its first call has failed, or is still to come."""

    # -- run -------------------------------------------------------------------------------------

    def run(
        self, message: Any, tools: Tools, provider: Provider | None, parallel: bool | int
    ) -> list[Any]:
        """Run the calls of a message; see `Session.run_tools`."""
        with self._running():
            workers = workers_of(parallel)
            run = self._begin(message, tools, provider)
            if run.label is not None:
                self._state.save(label=run.label)
                self._unsaved_reply = False
            if parallel is not False and len(run.to_make) > 1:
                left = Schedule(run.to_make, workers, self._scope, self._runner)
                run_parallel(left, partial(self._run_one, run), self._state.save)
            else:
                for call in run.to_make:
                    self._run_one(run, call)
            return self._end(run)

    async def arun(
        self, message: Any, tools: Tools, provider: Provider | None, parallel: bool | int
    ) -> list[Any]:
        """Run the calls of a message from asyncio; see `Session.arun_tools`."""
        with self._running():
            workers = workers_of(parallel)
            run = self._begin(message, tools, provider)
            if run.label is not None:
                await self._state.asave(label=run.label)
                self._unsaved_reply = False
            if parallel is not False and len(run.to_make) > 1:
                left = Schedule(run.to_make, workers, self._scope, self._runner)
                make = partial(self._arun_one, run)
                await arun_parallel(
                    left, make, self._state.asave, waits=lambda: self._nested.is_torn
                )
            else:
                for call in run.to_make:
                    await self._arun_one(run, call)
            return self._end(run)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._state.check_open()
        if self._is_running:
            raise InvalidInputError(
                "run_tools is already running for this agent. A tool with a loop of its own needs "
                "a sub-agent: session.subagent(name)."
            )
        self._is_running, self._scope.is_interrupted = True, False
        try:
            with as_current(self._scope.tools):
                yield
        except BaseException as error:
            is_stopped = not isinstance(error, (Exception, Suspended))
            self._scope.is_interrupted = is_stopped and self._abandon_unfinished()
            if isinstance(error, Suspended):
                self._nested.roll_back()
            raise
        finally:
            self._is_running = False

    def _abandon_unfinished(self) -> bool:
        """Ignore what calls that are still running record later; return whether there are any.

        Their rows would be taken for those of a later batch, which may have the same ids.
        """
        unfinished = self._outcomes.unfinished
        with self._state.writer.lock:
            ended = [call_ref for call_ref, made in unfinished.items() if made.row is not None]
            for call_ref in ended:
                del unfinished[call_ref]
            for made in unfinished.values():
                made.is_abandoned = True
        return bool(unfinished)

    def _begin(self, message: Any, tools: Tools, provider: Provider | None) -> _Run:
        """Append the message if it is new, and find the calls to make."""
        name = provider or self._scope.provider
        if name is None:
            raise InvalidInputError(
                'run_tools needs a provider, such as provider="anthropic", here or in Session(…).'
            )
        dialect, known = dialect_for(name), toolbox(tools)
        is_new = self._append(message, dialect)
        turn = self._matching.last_turn(dialect)
        if message is not self._scope.messages and dialect.is_cut_off(plain(message)):
            turn.mark_cut_off()
        before = {call.ref for call in self._scope.open_calls.calls}
        opened = self._matching.open(turn, is_new=is_new)
        if before.isdisjoint(call.ref for call in opened.calls):
            self._outcomes.unfinished.clear()  # calls that are not open any more
        if before:
            self._nested.check()
        open_blocks = turn.open_calls
        numbered = zip(opened.calls, turn.calls)
        run = _Run(turn, {call: block for call, block in numbered if block in open_blocks})
        rows = self._matching.rows() if before else {}  # new calls have none
        for call, block in run.calls.items():
            if call.ref in rows:
                run.outcomes[call] = self._outcomes.of_row(rows[call.ref])
            elif (effect := self._effect_of_lost_call(run, call, block, known)) is not None:
                run.outcomes[call] = self._outcomes.of_effect(effect)
            else:
                is_seen = call.ref in before
                self._prepare(run, call, block, dialect, known, is_seen=is_seen)
        # The model's decision is durable before it takes effect.
        self._unsaved_reply |= is_new or any(call.ref not in before for call in run.calls)
        if self._unsaved_reply and self._state.every == "tool" and not is_nested(self._scope.tools):
            names = ", ".join(str(block.name) for block in run.calls.values())
            run.label = self._scope.label(label_of([f"reply: {names}"]) if names else "reply")
        return run

    def _append(self, message: Any, dialect: Dialect) -> bool:
        """Append a message of the model unless the conversation ends with it."""
        messages = self._scope.messages
        if message is None or isinstance(message, (str, bytes, int, float)):
            raise InvalidInputError(f"{_EXPECTED}, not {short_repr(message)}.")
        reply = [] if message is messages else dialect.reply(message)
        turn = self._matching.last_turn(dialect)
        # A reply may repeat a turn that has its results: ids of calls are not unique.
        if not reply or (not turn.results and turn.ends_with(reply)):
            return False
        if reply == [plain(one) for one in messages[-len(reply) :]]:  # the user's, or all of it
            return False
        if any(dialect.read(one, 0).role not in ("model", "call") for one in reply):
            raise InvalidInputError(f"{_EXPECTED}.")
        self._answer_abandoned(turn)
        messages.extend(reply)
        return True

    def _answer_abandoned(self, turn: LastTurn) -> None:
        """Append what is known of calls that were interrupted: another reply follows them."""
        refs = {call.ref for call in self._scope.open_calls.calls}
        opened, blocks = self._matching.matched(turn), turn.open_calls
        if not blocks or not any(call.ref in refs for call in opened.calls):
            return  # run_tools has not taken them on
        pairs = [pair for pair in zip(opened.calls, turn.calls) if pair[1] in blocks]
        self._outcomes.withdraw_requests([call for call, _ in pairs])
        answers = [(block, answer_for(self._outcomes.of(call))) for call, block in pairs]
        self._scope.messages.extend(turn.result_messages(answers))

    def _prepare(
        self,
        run: _Run,
        call: OpenCall,
        block: Block,
        dialect: Dialect,
        known: Mapping[str, BoundTool],
        *,
        is_seen: bool,
    ) -> None:
        """Add a call to those to make, or its error to the outcomes."""
        name, error = str(block.name), None
        arguments: Any = {}
        try:
            arguments = dialect.arguments(block)
            if not isinstance(arguments, dict):
                error = "The arguments are not an object."
        except ValueError as invalid:
            error = f"The arguments cannot be decoded: {invalid}."
        if name not in known:
            names = ", ".join(known) or "none"
            error = f"There is no tool {short_repr(name)}. The tools are: {names}."
        elif call.ref in self._outcomes.unfinished and known[name].tool.kind == "local":
            error = f"The call was interrupted. Its outcome is unknown. {IN_DOUBT}"
        elif error is None and self._is_redacted(run, call, block):
            error = _REDACTED
        elif error is None:
            is_doubtful = not (arguments or is_seen)
            if not block.complete or (is_doubtful and self._is_partial(run, block, known[name])):
                error = _INCOMPLETE
        self._outcomes.unfinished.pop(call.ref, None)
        if error is None:
            run.to_make.append(PlannedCall(call, name, arguments, known[name]))
        else:
            self._refuse(run, call, name, arguments, error)

    def _effect_of_lost_call(
        self, run: _Run, call: OpenCall, block: Block, known: Mapping[str, BoundTool]
    ) -> Effect | None:
        """Return the effect of a call that cannot be made again, if it was begun.

        Its arguments are placeholders, or a new version of the program lacks the tool.
        """
        if str(block.name) in known and not self._is_redacted(run, call, block):
            return None
        self._state.ledger.refresh()
        return self._matching.effect(call)

    def _is_redacted(self, run: _Run, call: OpenCall, block: Block) -> bool:
        """Whether a call was loaded with placeholders: no tool may get them.

        They are of `redact=`, or of a masked archive. Those of a function have no known form.
        """
        if block.at[0] >= self._loaded and call.ref not in self._loaded_refs:
            return False
        if call.ref in self._scope.open_calls.redacted and not run.turn.is_redacted(block):
            return True
        kind = MASKED if self._state.manager.policy.redactor is None else PLACEHOLDER
        return kind.search(repr(plain(block.source))) is not None

    def _is_partial(self, run: _Run, block: Block, found: BoundTool) -> bool:
        """Whether the arguments of a call may be empty because they have not arrived.

        The end of a loaded conversation may be a snapshot of a stream.
        """
        is_last = block is run.turn.calls[-1] and block.at[0] < self._loaded
        return is_last and len(found.tool.signature.parameters) > len(found.owner)

    def _end(self, run: _Run) -> list[Any]:
        """Append the results: no call is open any more."""
        if run.suspended is not None:
            raise run.suspended
        answers = [(block, answer_for(run.outcomes[call])) for call, block in run.calls.items()]
        messages = run.turn.result_messages(answers)
        self._scope.messages.extend(messages)
        self._matching.set(OpenCalls())
        return messages

    # -- one call --------------------------------------------------------------------------------

    def _run_one(self, run: _Run, call: PlannedCall, *, is_saved: bool = True) -> None:
        """Make a call. What the tool raises is the outcome of the call."""
        with self._outcome(run, call, is_saved) as made:
            if made is not None and made.tool.is_async:
                run_if_awaitable(self._runner.arun_call(made))
            elif made is not None:
                self._runner.run_call(made)

    async def _arun_one(self, run: _Run, call: PlannedCall, *, is_saved: bool = True) -> None:
        """Make a call from asyncio; a function runs in a thread if other calls run meanwhile."""
        with self._outcome(run, call, is_saved) as made:
            if made is not None and (made.tool.is_async or is_saved):
                await self._runner.arun_call(made)
            elif made is not None:
                with awaitables_on_this_loop():
                    _, stopped = await run_to_completion(self._runner.run_call, made)
                if stopped is not None:
                    raise stopped

    @contextmanager
    def _outcome(self, run: _Run, call: PlannedCall, is_saved: bool) -> Iterator[ToolCall | None]:
        """Yield the call to make; set its outcome from its row, or from what is raised.

        A call that the tool has ended has a row. Without one, the session has refused the call.
        """
        (tool, owner), opened = call.found, call.opened
        try:
            bound = tool.bind(owner, call.arguments)
        except TypeError as error:
            self._refuse(run, opened, call.name, call.arguments, f"Invalid arguments: {error}.")
            yield None
            return
        called = None if call.name == tool.name else call.name
        made = ToolCall(tool, *bound, called=called, call_id=opened.id, call_ref=opened.ref)
        made.is_saved, made.before = is_saved, self._state.writer.head_id
        self._outcomes.unfinished[opened.ref] = made
        try:
            yield made
        except Suspended as suspended:
            if made.is_torn:
                raise
            run.suspended = run.suspended or suspended
        except Exception as error:
            self._outcomes.unfinished.pop(opened.ref, None)
            if made.row is None and isinstance(error, EffectUnknownError):
                # Not recorded: a person may record the outcome at any time. The hint is for people.
                text = f"{error.with_hint()} {BLOCKED}"
                run.outcomes[opened] = CallOutcome("done", text, call.name, is_error=True)
            elif made.row is None and isinstance(error, (EffectError, InvalidInputError)):
                self._refuse(run, opened, call.name, call.arguments, describe_error(error))
                if isinstance(error, ApprovalDeniedError) and self._runner.is_due():
                    label = self._scope.label(f"denied: {call.name}")
                    self._state.save(label=label)  # the answer is used up
            elif made.row is None or "error" not in made.row:  # the session failed, not the tool
                raise
        self._outcomes.unfinished.pop(opened.ref, None)
        if made.row is not None:
            self._nested.forget(opened.ref)
            run.outcomes[opened] = self._outcomes.of_row(made.row)

    def _refuse(self, run: _Run, call: OpenCall, name: str, arguments: Any, error: str) -> None:
        row = self._runner.record_refused(call, name, arguments, error)
        self._nested.forget(call.ref)
        run.outcomes[call] = self._outcomes.of_row(row)

    # -- what is known ---------------------------------------------------------------------------

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return what is known of a call; see `Session.call_outcome`."""
        return self._outcomes.call_outcome(call_id)

    def repair_messages(self) -> None:
        """Repair the conversation, but for calls at its end, which `run_tools` runs."""
        repair_conversation(self._state, self._scope, self._outcomes)

    def after_restore(self) -> None:
        """Continue from a restored checkpoint: nothing is interrupted, the conversation is valid.

        Raises StorageError.
        """
        if self._nested.is_torn:
            self._nested.roll_back()  # which restores a checkpoint
        self._outcomes.unfinished.clear()
        self._unsaved_reply = self._scope.is_interrupted = False
        self._matching.take_over()
        self.repair_messages()
        self._loaded = len(self._scope.messages)
        self._loaded_refs = {call.ref for call in self._scope.open_calls.calls}
