"""Runs the tool calls of a model's message, each once, and appends the results.

The part `open_calls` has the calls of the model's last turn until their results are in the
conversation. Each has a ref, by which a resumed session finds its row and its effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.redacted_tree import redact_tree
from agent_checkpoint.core.log import raw_items
from agent_checkpoint.errors import (
    ApprovalDeniedError,
    CheckpointError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    Suspended,
)
from agent_checkpoint.manager.async_verbs import run_to_completion
from agent_checkpoint.options import Provider
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.redaction import MASKED, PLACEHOLDER
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import as_current, is_nested
from agent_checkpoint.session.effects.approvals import (
    edits_behind,
    unused_requests,
    void_requests,
)
from agent_checkpoint.session.effects.effect_context import ToolCall
from agent_checkpoint.session.loop.toolbox import BoundTool, Tools, toolbox
from agent_checkpoint.session.open_calls import Before, OpenCall, OpenCalls
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tool_runner import ToolRunner
from agent_checkpoint.session.tools.call_arguments import as_json, describe_error, recordable
from agent_checkpoint.session.tools.invoke import awaitables_on_this_loop, run_if_awaitable
from agent_checkpoint.store.ledger.ledger_state import (
    COMMITTED,
    FAILED,
    UNDONE,
    ApprovalRequest,
    Effect,
)
from agent_checkpoint.transcripts import dialect_for, repair
from agent_checkpoint.transcripts.dialect import Dialect
from agent_checkpoint.transcripts.draft import Block, names_of
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.transcripts.last_turn import LastTurn
from agent_checkpoint.transcripts.mending import answer_for
from agent_checkpoint.transcripts.report import CallOutcome

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

_MAX_WORKERS = 32
_MAX_LABEL = 120
_EXPECTED = (
    "run_tools takes a message of the model, such as the reply of session.model(), or "
    "session.messages for the calls at the end of the conversation"
)
_IN_DOUBT = "Do not assume that it took effect, nor that it did not: check first."
_BLOCKED = f"{_IN_DOUBT} The same call is not made again until a person has recorded the outcome."
_INCOMPLETE = (
    "The reply ended before this call was complete, so its arguments are not known. The call was "
    "not made and had no effect. Make it again if it is needed."
)
_REDACTED = (
    "The arguments of this call were redacted when the session was saved, and it is now resumed. "
    "The call was not made and had no effect. Make it again, with the real values, if it is needed."
)
_WAITS = (
    "The call waits for a person's approval. It may still be executed when the person has approved "
    "it."
)
_COMPENSATED = "The call took effect, and the effect was compensated since."


class _Call(NamedTuple):
    """A call to make."""

    opened: OpenCall
    name: str
    arguments: dict[str, Any]
    found: BoundTool

    @property
    def is_asked(self) -> bool:
        """Whether a person is asked first."""
        return self.found.tool.approve is not False

    @property
    def is_local(self) -> bool:
        """Whether the call changes state and files: no checkpoint may be taken meanwhile."""
        return self.found.tool.kind == "local"


class _Lookup(NamedTuple):
    """The outcomes of calls for a repair, and the calls that it asks about."""

    tool_calls: ToolCalls
    asked: list[str]

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return the outcome of a call, or None if there is no record of it."""
        self.asked.append(call_id)
        return self.tool_calls.call_outcome(call_id)


class _Torn(NamedTuple):
    """A call within which another one waits for an approval: it is made again from its start."""

    tool: str
    before: Checkpoint
    """The checkpoint before the call."""
    suspended: Suspended


class _Run:
    """One run over the calls of a message."""

    def __init__(self, turn: LastTurn, calls: dict[OpenCall, Block]) -> None:
        self.turn = turn
        self.calls = calls
        self.to_make: list[_Call] = []
        self.outcomes: dict[OpenCall, CallOutcome] = {}
        self.suspended: Suspended | None = None
        self.label: str | None = None
        """The label of the checkpoint to save before the first call; None if there is none."""


class _Schedule:
    """The order of parallel calls, and when to save between them."""

    def __init__(self, calls: list[_Call], scope: AgentScope, runner: ToolRunner) -> None:
        self.asked = [call for call in calls if call.is_asked]
        """The calls that wait for a person, who is asked before other calls run: the session is
        saved with the question."""
        self._others = [call for call in calls if not call.is_asked]
        self._scope, self._runner = scope, runner
        self._saved = scope.finished_calls
        self._order = calls
        self._ended: list[_Call] = []
        """The calls that have ended since the last save."""

    @property
    def has_more(self) -> bool:
        """Whether calls are left to begin."""
        return bool(self._others)

    def take(self, n: int) -> list[_Call]:
        """Return the next `n` calls to begin."""
        taken, self._others = self._others[:n], self._others[n:]
        return taken

    def due(self, ended: list[_Call], running: Iterable[_Call]) -> str | None:
        """Return the label if a save is due while these calls are running; else None."""
        self._ended += ended
        if any(call.is_local for call in running) or not self._runner.is_due(self._saved):
            return None
        self._saved, step, self._ended = self._scope.finished_calls, self._ended, []
        return self._scope.label(_label(call.name for call in self._order if call in step))


class ToolCalls:
    """Runs the tool calls of the messages of one agent."""

    def __init__(self, state: SessionState, runner: ToolRunner, scope: AgentScope) -> None:
        self._state = state
        self._runner = runner
        self._scope = scope
        self._is_running = False
        self._loaded = 0
        """How many messages were loaded from a checkpoint; the last may be part of a stream."""
        self._unfinished: dict[str, ToolCall] = {}
        """Calls that began in this process and have not ended, by ref: they were interrupted."""
        self._torn: _Torn | None = None
        self._waits_for: Suspended | None = None
        """The approval that a call within an open call waits for."""
        self._unsaved_reply = False
        """Whether the save of the reply before its first call has failed, or is still to come."""

    # -- run -------------------------------------------------------------------------------------

    def run(
        self, message: Any, tools: Tools, provider: Provider | None, parallel: bool | int
    ) -> list[Any]:
        """Run the calls of a message; see `Session.run_tools`."""
        with self._running():
            _check_parallel(parallel)
            run = self._begin(message, tools, provider)
            if run.label is not None:
                self._state.save(label=run.label)
                self._unsaved_reply = False
            if parallel is not False and len(run.to_make) > 1:
                self._run_parallel(run, _workers(parallel))
            else:
                for call in run.to_make:
                    self._run_one(run, call)
            return self._end(run)

    async def arun(
        self, message: Any, tools: Tools, provider: Provider | None, parallel: bool | int
    ) -> list[Any]:
        """Run the calls of a message from asyncio; see `Session.arun_tools`."""
        with self._running():
            _check_parallel(parallel)
            run = self._begin(message, tools, provider)
            if run.label is not None:
                await self._state.asave(label=run.label)
                self._unsaved_reply = False
            if parallel is not False and len(run.to_make) > 1:
                await self._arun_parallel(run, _workers(parallel))
            else:
                for call in run.to_make:
                    await self._arun_one(run, call)
            return self._end(run)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._state.check_open()
        if self._is_running:
            raise InvalidInputError(
                "run_tools is already running in this session. A tool with a loop of its own needs "
                "a session of its own."
            )
        self._is_running, self._scope.is_interrupted, self._torn = True, False, None
        try:
            with as_current(self._runner):
                yield
        except BaseException as error:
            is_stopped = not isinstance(error, (Exception, Suspended))
            self._scope.is_interrupted = is_stopped and self._abandon_unfinished()
            if self._torn is not None and not is_stopped:
                self._roll_back(self._torn)
            raise
        finally:
            self._is_running = False

    def _roll_back(self, torn: _Torn) -> None:
        """Discard what a call has changed before a call within it asked for an approval."""
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

    def _abandon_unfinished(self) -> bool:
        """Ignore what calls that are still running record later; return whether there are any.

        Their rows would be taken for those of a later batch, which may have the same ids.
        """
        with self._state.writer.lock:
            ended = [call_id for call_id, made in self._unfinished.items() if made.row is not None]
            for call_id in ended:
                del self._unfinished[call_id]
            for made in self._unfinished.values():
                made.is_abandoned = True
        return bool(self._unfinished)

    def _begin(self, message: Any, tools: Tools, provider: Provider | None) -> _Run:
        """Append the message if it is new, and find the calls to make."""
        name = provider or self._scope.provider
        if name is None:
            raise InvalidInputError(
                'run_tools needs a provider, such as provider="anthropic", here or in Session(…).'
            )
        dialect, known = dialect_for(name), toolbox(tools)
        is_new = self._append(message, dialect)
        turn = self._last_turn(dialect)
        if message is not self._scope.messages and dialect.is_cut_off(plain(message)):
            turn.mark_cut_off()
        before = {call.ref for call in self._scope.open_calls.calls}
        opened = self._open(turn, is_new=is_new)
        if before.isdisjoint(call.ref for call in opened.calls):
            self._unfinished.clear()  # calls that are not open any more
        self._check_waiting(before)
        open_blocks = turn.open_calls
        numbered = zip(opened.calls, turn.calls)
        run = _Run(turn, {call: block for call, block in numbered if block in open_blocks})
        rows = self._rows() if before else {}  # new calls have none
        for call, block in run.calls.items():
            if call.ref in rows:
                run.outcomes[call] = self._recorded(rows[call.ref])
            elif self._is_redacted(block) and (effect := self._effect(call)) is not None:
                run.outcomes[call] = self._effect_outcome(effect)
            else:
                is_seen = call.ref in before
                self._prepare(run, call, block, dialect, known, is_seen=is_seen)
        # The model's decision is durable before it takes effect.
        self._unsaved_reply |= is_new or any(call.ref not in before for call in run.calls)
        if self._unsaved_reply and self._state.every == "tool" and not is_nested(self._runner):
            names = ", ".join(str(block.name) for block in run.calls.values())
            run.label = self._scope.label(_label([f"reply: {names}"]) if names else "reply")
        return run

    def _check_waiting(self, before: set[str]) -> None:
        """Raise Suspended if a call within an open call still has no answer: it would ask again."""
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is None or not any(one.ref in before for one in self._scope.open_calls.calls):
            return
        self._state.ledger.refresh()
        request = self._state.ledger.state.requests.get(waits_for.approval_id)
        if request is not None and request.is_open:
            self._waits_for = waits_for
            raise Suspended(request.id, waits_for.words)

    def _append(self, message: Any, dialect: Dialect) -> bool:
        """Append a message of the model unless the conversation ends with it."""
        messages = self._scope.messages
        if message is None or isinstance(message, (str, bytes, int, float)):
            raise InvalidInputError(f"{_EXPECTED}, not {short_repr(message)}.")
        reply = [] if message is messages else dialect.reply(message)
        turn = self._last_turn(dialect)
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
        opened, blocks = self._matched(turn), turn.open_calls
        if not blocks or not any(call.ref in refs for call in opened.calls):
            return  # run_tools has not taken them on
        pairs = [pair for pair in zip(opened.calls, turn.calls) if pair[1] in blocks]
        self._withdraw_requests([call for call, _ in pairs])
        answers = [(block, answer_for(self._outcome_of(call))) for call, block in pairs]
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
        elif call.ref in self._unfinished and known[name].tool.kind == "local":
            error = f"The call was interrupted. Its outcome is unknown. {_IN_DOUBT}"
        elif error is None and self._is_redacted(block):
            error = _REDACTED
        elif error is None:
            is_doubtful = not (arguments or is_seen)
            if not block.complete or (is_doubtful and self._is_partial(run, block, known[name])):
                error = _INCOMPLETE
        self._unfinished.pop(call.ref, None)
        if error is None:
            run.to_make.append(_Call(call, name, arguments, known[name]))
        else:
            self._refuse(run, call, name, arguments, error)

    def _is_redacted(self, block: Block) -> bool:
        """Whether a call was loaded with placeholders: no tool may get them.

        They are of `redact=`, or of a masked archive.
        """
        if block.at[0] >= self._loaded:
            return False
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
        self._set(OpenCalls())
        return messages

    # -- one call --------------------------------------------------------------------------------

    def _run_one(self, run: _Run, call: _Call, *, is_saved: bool = True) -> None:
        """Make a call. What the tool raises is the outcome of the call."""
        with self._outcome(run, call, is_saved) as made:
            if made is not None and made.tool.is_async:
                run_if_awaitable(self._runner.arun_call(made))
            elif made is not None:
                self._runner.run_call(made)

    async def _arun_one(self, run: _Run, call: _Call, *, is_saved: bool = True) -> None:
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
    def _outcome(self, run: _Run, call: _Call, is_saved: bool) -> Iterator[ToolCall | None]:
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
        made = ToolCall(tool, *bound, call_id=opened.id, call_ref=opened.ref, is_saved=is_saved)
        self._unfinished[opened.ref], before = made, self._state.writer.head
        try:
            yield made
        except Suspended as suspended:
            if made.is_torn and before is not None:
                if self._torn is None or before.seq < self._torn.before.seq:
                    self._torn = _Torn(call.name, before, suspended)
                raise
            run.suspended = run.suspended or suspended
        except Exception as error:
            self._unfinished.pop(opened.ref, None)
            if made.row is None and isinstance(error, EffectUnknownError):
                # Not recorded: a person may record the outcome at any time. The hint is for people.
                text = f"{error.with_hint()} {_BLOCKED}"
                run.outcomes[opened] = CallOutcome("done", text, call.name, is_error=True)
            elif made.row is None and isinstance(error, (EffectError, InvalidInputError)):
                self._refuse(run, opened, call.name, call.arguments, describe_error(error))
                if isinstance(error, ApprovalDeniedError) and self._runner.is_due():
                    self._state.save(label=f"denied: {call.name}")  # the answer is used up
            elif made.row is None or "error" not in made.row:  # the session failed, not the tool
                raise
        self._unfinished.pop(opened.ref, None)
        if made.row is not None:
            run.outcomes[opened] = self._recorded(made.row)

    def _refuse(self, run: _Run, call: OpenCall, name: str, arguments: Any, error: str) -> None:
        row = self._runner.record_refused(call, name, arguments, error)
        run.outcomes[call] = self._recorded(row)

    # -- in parallel -----------------------------------------------------------------------------

    # A checkpoint while a local call is running would hold a part of its changes, and the call
    # would be made again on top of them. So checkpoints are taken between calls, on this thread.

    def _run_parallel(self, run: _Run, workers: int) -> None:
        with block_forks():
            from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

        left = _Schedule(run.to_make, self._scope, self._runner)
        for call in left.asked:
            self._run_one(run, call)
        running: dict[Future[None], _Call] = {}
        with ThreadPoolExecutor(workers) as pool:
            while left.has_more or running:
                for call in left.take(workers - len(running)):
                    make = partial(self._run_one, run, call, is_saved=False)
                    running[pool.submit(copy_context().run, make)] = call
                done = wait(running, return_when=FIRST_COMPLETED).done
                ended = [running.pop(future) for future in done]
                for future in done:
                    future.result()
                label = left.due(ended, running.values())
                if label is not None:
                    self._state.save(label=label)

    async def _arun_parallel(self, run: _Run, workers: int) -> None:
        with block_forks():
            import asyncio

        left = _Schedule(run.to_make, self._scope, self._runner)
        for call in left.asked:
            await self._arun_one(run, call)
        running: dict[asyncio.Future[None], _Call] = {}
        try:
            while left.has_more or running:
                for call in left.take(workers - len(running)):
                    make = self._arun_one(run, call, is_saved=False)
                    running[asyncio.ensure_future(make)] = call
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = [running.pop(task) for task in done]
                for task in done:
                    task.result()
                label = left.due(ended, running.values())
                if label is not None:
                    await self._state.asave(label=label)
        finally:
            cancelled: asyncio.CancelledError | None = None
            while not all(task.done() for task in running):  # also if it is cancelled again
                for task in running if self._torn is None or cancelled else ():
                    task.cancel()
                try:
                    await asyncio.wait(running)
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                raise cancelled

    # -- outcomes --------------------------------------------------------------------------------

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return what is known of a call without a result in the conversation; None if nothing.

        Only calls that `run_tools` has taken on are known. Raises StorageError.
        """
        call = self._scope.open_calls.find(call_id)
        return None if call is None else replace(self._outcome_of(call), digest=call.digest)

    def _outcome_of(self, call: OpenCall) -> CallOutcome:
        state, row = self._state, self._rows().get(call.ref)
        if row is not None:
            return self._recorded(row)
        state.ledger.refresh()
        effect = self._effect(call)
        if effect is not None:
            return self._effect_outcome(effect)
        running = any(one.call_ref == call.ref for one in list(state.running))
        # What a local tool has done without its outcome is in the files, if they were kept.
        if running or call.ref in self._unfinished or state.has_kept_drift:
            return CallOutcome("unknown")
        is_waiting = self._unused_requests([call])
        return CallOutcome("not-done", note=_WAITS if is_waiting else "")

    def repair_messages(self) -> None:
        """Repair the conversation, but for calls at its end, which `run_tools` runs."""
        if self._scope.provider is None:
            return
        messages, provider = self._scope.messages, self._scope.provider
        lookup = _Lookup(self, [])
        try:
            repaired = repair(messages, provider=provider, session=lookup, keep_open=True)
            answered = self._answered(lookup.asked, LastTurn(repaired, dialect_for(provider)))
            if repaired.changes and self._withdraw_requests(answered):
                repaired = repair(messages, provider=provider, session=self, keep_open=True)
        except InvalidInputError as error:
            self._state.add_notice(f"The conversation was not checked: {error}")
            return
        if not repaired.changes:
            return
        pairs = zip(messages, repaired)
        same = next((n for n, (old, new) in enumerate(pairs) if old is not new), len(messages))
        messages.truncate(min(same, len(repaired)))
        messages.extend(repaired[len(messages) :])
        for change in repaired.changes:
            self._state.add_notice(f"The conversation was repaired: {change}")

    def _answered(self, asked: list[str], turn: LastTurn) -> list[OpenCall]:
        """Return the calls that a repair has asked about, but for those that it has left open."""
        blocks = turn.open_calls
        left = [name for name, call in zip(names_of(turn.calls), turn.calls) if call in blocks]
        calls = self._scope.open_calls.calls
        return [call for call in calls if call.id in asked and call.id not in left]

    def _withdraw_requests(self, calls: list[OpenCall]) -> bool:
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

    def after_restore(self) -> None:
        """Continue from a restored checkpoint: nothing is interrupted, the conversation is valid.

        Raises StorageError.
        """
        self._unfinished.clear()
        self._waits_for = None
        self._unsaved_reply = self._scope.is_interrupted = False
        self._take_over()
        self.repair_messages()
        self._loaded = len(self._scope.messages)

    def _recorded(self, row: Mapping[str, Any]) -> CallOutcome:
        """Return the outcome of a call that has ended."""
        tool = row.get("tool")
        note = _edit_note({name: row["arguments"][name] for name in row.get("edited", ())})
        if "error" not in row:
            return CallOutcome("done", row.get("result"), tool, note=note)
        effect = self._state.ledger.state.effects.get(str(row.get("effect")))
        if effect is not None and effect.status == COMMITTED:  # verified, or recorded by a person
            return self._effect_outcome(effect)
        text = str(row["error"])
        if effect is not None and effect.status not in (FAILED, UNDONE):
            text += f" The outcome is unknown. {_BLOCKED}"
        return CallOutcome("done", text, tool, is_error=True, note=note)

    def _effect_outcome(self, effect: Effect) -> CallOutcome:
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

    def _effect(self, call: OpenCall) -> Effect | None:
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

    # -- the open calls --------------------------------------------------------------------------

    def _last_turn(self, dialect: Dialect) -> LastTurn:
        redactor = self._state.manager.policy.redactor
        redact = None if redactor is None else lambda source: redact_tree(source, redactor)[0]
        return LastTurn(self._scope.messages, dialect, redact)

    def _open(self, turn: LastTurn, *, is_new: bool) -> OpenCalls:
        """Make the calls of a turn the open ones, if any has no result; return them."""
        known, opened = self._scope.open_calls, self._matched(turn, is_new=is_new)
        if not turn.open_calls:
            opened = OpenCalls()
        if opened != known:
            self._set(opened)
        return opened

    def _matched(self, turn: LastTurn, *, is_new: bool = False) -> OpenCalls:
        """Return the calls of a turn; those that are open already keep their refs."""
        known, calls = self._scope.open_calls, turn.calls
        if is_new or self._is_passed(turn):
            known = OpenCalls()
        elif known.before is not None and known.before.digest == turn.digest(*calls):
            pairs = zip(known.calls, calls)
            known = replace(
                known, calls=[call._replace(digest=turn.digest(one)) for call, one in pairs]
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
            known = replace(known, calls=fresh)
        return known.renewed(names_of(calls), [turn.digest(call) for call in calls], at)

    def _is_passed(self, turn: LastTurn) -> bool:
        """Whether the open calls are still where they were, and the turn comes after them."""
        known, messages = self._scope.open_calls, self._scope.messages
        if not known or not turn.calls or not known.at < turn.calls[0].at[0]:
            return False
        digests = {call.digest for call in known.calls}
        return any(turn.digest(call) in digests for call in turn.calls_in(messages[known.at]))

    def _set(self, opened: OpenCalls) -> None:
        scope = self._scope
        with self._state.writer.lock:
            scope.has_open_calls = scope.has_open_calls or bool(opened)
            scope.open_calls.become(opened)

    def _take_over(self) -> None:
        """Take over open calls from the session record, where an earlier version had them."""
        record, path = self._state.record, self._scope.path
        row = next((row for row in record.batches if row[0] == path), None)
        if row is not None:
            _, first, ledger, digest, ids = row
            calls = [OpenCall(call_id, call_id, "") for call_id in ids]
            with self._state.writer.lock:
                record.batches = [other for other in record.batches if other is not row]
            if not self._scope.open_calls:
                self._set(OpenCalls(calls, 0, Before(first, ledger, digest)))

    def _rows(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the open calls that have ended, by ref."""
        opened, log = self._scope.open_calls, self._scope.calls
        refs = {call.ref for call in opened.calls}
        numbered = [(opened.ref_of(row, n), n) for n, row in enumerate(raw_items(log))]
        return {ref: log[n] for ref, n in numbered if ref is not None and ref in refs}


def _check_parallel(parallel: bool | int) -> None:
    """Check an option. Raises InvalidInputError if it is not a bool or a positive number."""
    if not isinstance(parallel, int) or (parallel is not False and parallel < 1):
        raise InvalidInputError(
            f"parallel must be True, False or a number of workers, not {short_repr(parallel)}."
        )


def _workers(parallel: bool | int) -> int:
    return _MAX_WORKERS if parallel is True else int(parallel)


def _edit_note(edits: Mapping[str, Any]) -> str:
    """Return what the model is told about arguments that a person changed; empty if none."""
    if not edits:
        return ""
    values = json.dumps(plain(edits), ensure_ascii=False, default=short_repr)
    return f"A person approved this call with other arguments than yours: {values} were used."


def _label(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
