"""Calls of tools in a session. Owns the way of a call: may it be made, make it, record it, save.

The same steps serve functions and coroutine functions. State is captured on the caller's thread;
what waits for a disk or a server is moved off the event loop.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import (
    ApprovalDeniedError,
    CheckpointError,
    ConflictError,
    NotFoundError,
    Suspended,
)
from agent_checkpoint.manager.aio import to_its_end
from agent_checkpoint.records import safe_repr, show
from agent_checkpoint.session.approvals import (
    arguments_of,
    ask,
    denied,
    find_request,
    new_request_id,
    use,
)
from agent_checkpoint.session.arguments import error_words, fingerprint, in_words, recorded
from agent_checkpoint.session.current import current_task, is_nested, nesting
from agent_checkpoint.session.deed import Call, Deed, Question
from agent_checkpoint.session.effects import Decision
from agent_checkpoint.session.fitting import awaiting_here, settled
from agent_checkpoint.session.identity import identity_of
from agent_checkpoint.session.tools import IDEMPOTENT, Tool, check_same_tool, tool_of
from agent_checkpoint.store.ledger import APPROVED, DENIED, PENDING, Request

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


class Calls:
    """Runs the tools of one session."""

    def __init__(self, session: Work) -> None:
        self._session = session
        self._in_flight: list[Call] = []
        self.finished = 0
        """How many calls have come to their end."""

    @property
    def in_flight(self) -> list[str]:
        """The names of the tools that are running."""
        return [call.tool.name for call in list(self._in_flight)]

    def run(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool. Raises what it raises, and what stands in its way."""
        call = Call(tool, *tool.bind(args, kwargs))
        try:
            self._begin(call)
            result = self._run(call)
            self._session._effects.release(call)
            return result
        except BaseException:
            self._give_back(call)
            raise

    async def arun(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do as `run` does, for coroutine functions."""
        call = Call(tool, *tool.bind(args, kwargs))
        try:
            if tool.approve is not True and (tool.is_outside or tool.approve):
                with awaiting_here():  # what its verify= and approve= await is of this loop
                    _, stopped = await to_its_end(self._begin, call)
                if stopped is not None:
                    self._withdraw(call)
                    raise stopped
            else:  # it may have to save the state, which is captured here
                self._begin(call)
            result = await self._arun(call)
            self._session._effects.release(call)
            return result
        except BaseException:
            self._give_back(call)
            raise

    def carry_out(self, request: Request) -> Any:
        """Make a call that somebody agreed to, as they want it. Raises as `run` does.

        Raises:
            NotFoundError: its tool was not imported here, or nothing has the method.
        """
        tool = tool_of(request)
        if tool is None:
            raise NotFoundError(
                f"There is no tool {show(request.tool)} here: import the module that defines it."
            )
        owner = self.owner(tool, request.part) if tool.is_method else None
        call = Call(tool, owner, arguments_of(self._session._ledger, request), request=request)
        try:
            self._begin(call)
            return settled(self._arun(call)) if tool.is_async else self._run(call)
        except BaseException:
            self._give_back(call)
            raise

    def _give_back(self, call: Call) -> None:
        """Have the next call alike be taken for this one, whose result has reached nobody."""
        with self._session._saving.lock:
            if call in self._in_flight:
                self._in_flight.remove(call)
            self._session._effects.give_back(call, call.slot)

    def _run(self, call: Call) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay(call, call.decision)
        try:
            with nesting(self._session):
                result = call.tool.call(call.owner, call.arguments, call.deed)
        except BaseException as error:
            try:
                self._find_out(call, error)
            finally:
                self._break(call, error)
            raise
        try:
            self._commit(call, result)
        finally:
            self._record(call, result=recorded(result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return result

    async def _arun(self, call: Call) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay(call, call.decision)
        stopped: BaseException | None = None
        try:
            with nesting(self._session):
                result = await call.tool.call(call.owner, call.arguments, call.deed)
        except Exception as error:
            try:
                with awaiting_here():  # as its verify= does
                    _, stopped = await to_its_end(self._find_out, call, error)
            finally:
                self._break(call, error)
            if stopped is not None:
                raise stopped from error
            raise
        except BaseException as error:  # nothing can be awaited any more
            try:
                self._find_out(call, error)
            finally:
                self._break(call, error)
            raise
        try:
            if call.deed is not None:
                _, stopped = await to_its_end(self._commit, call, result)
        finally:
            self._record(call, result=recorded(result))
        if stopped is not None:
            raise stopped
        await self._session._asave_after_call(call.words, nested=is_nested(self._session))
        return result

    # -- the steps -------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        session, tool, request = self._session, call.tool, call.request
        session._check_open()
        call.task, call.began = current_task(session), time.time()
        if request is not None:
            call.task, call.part = request.task, request.part
            call.identity, call.digest = request.identity, request.digest
            self._decide(call)
        elif tool.is_outside or tool.approve is not False:
            call.part = self._part_of(tool, call.owner)
            given: Any = call.arguments if call.part is None else [call.part, call.arguments]
            with session._saving.lock:
                call.digest = fingerprint(given, f"{tool.name}'s arguments")
                call.slot = session._effects.number(tool, call.digest, call.task, call)
            number = 0 if call.slot is None else call.slot.number
            call.identity = identity_of(
                tool, call.arguments, call.digest, call.task, number, part=call.part
            )
            self._decide(call)
        call.given = recorded(call.arguments)
        self._in_flight.append(call)

    def _withdraw(self, call: Call) -> None:
        """Take back a call that was let fly and is not made after all."""
        if call.deed is not None and call.decision is not None:
            effects, effect = self._session._effects, call.decision.effect
            effects.over(effect)
            if effect.kind != IDEMPOTENT:  # that may have happened in an earlier attempt
                effects.fail(effect, "the call was cancelled before it was made")

    def _decide(self, call: Call) -> None:
        session, tool = self._session, call.tool
        identity, digest = str(call.identity), str(call.digest)
        if tool.is_outside:
            call.decision = session._effects.look(tool, identity, digest, call)
        request = None
        if call.decision is None and tool.approve is not False:
            request = self._agreed(call)
        if tool.is_outside and call.decision is None:
            call.decision = session._effects.decide(
                tool,
                call.arguments,
                identity=identity,
                digest=digest,
                task=call.task,
                at=session._saving.head_id,
                request=request,
                part=call.part,
                call=call,
            )
        elif request is not None:
            use(session._ledger, request, session._epoch)
        if call.decision is not None and not call.is_replay:
            call.deed = Deed(call.decision.effect, session._ledger.family)

    def _agreed(self, call: Call) -> Request | None:
        """Return the answer to be used, or None if an inline function agreed.

        Raises:
            ApprovalDeniedError: somebody refused.
            Suspended: nobody has answered yet.
            ConflictError: the answer was used elsewhere.
        """
        session, tool = self._session, call.tool
        if callable(tool.approve):
            words = in_words(tool.name, call.arguments)
            if settled(tool.approve(Question(tool.name, dict(call.arguments), call.task, words))):
                return None
            raise ApprovalDeniedError(f"{words} was denied by the tool's approve= function.")
        ledger = session._ledger
        ledger.refresh()
        identity, digest = str(call.identity), str(call.digest)
        request = call.request or find_request(ledger, session.key, identity, digest)
        if request is not None:
            check_same_tool(tool, request, request.words)
        status = None if request is None else request.status
        if request is None:
            self._suspend(call, new_request_id(), is_new=True)
        elif status == PENDING:
            self._suspend(call, request.id, is_new=False)
        elif status == DENIED:
            use(ledger, request, session._epoch)
            session._meta.pending = [name for name in session._meta.pending if name != request.id]
            raise denied(request)
        elif status != APPROVED:
            raise ConflictError(f"The answer to {request.id} cannot be used: it is {status}.")
        else:
            call.arguments = arguments_of(ledger, request)
            session._meta.pending = [name for name in session._meta.pending if name != request.id]
        return request

    def _suspend(self, call: Call, request_id: str, *, is_new: bool) -> None:
        session, tool = self._session, call.tool
        if request_id not in session._meta.pending:
            session._meta.pending.append(request_id)
        saved = session._save(label=f"waits for {request_id}")
        if is_new:
            ask(
                session._ledger,
                request_id,
                tool,
                call.arguments,
                epoch=session._epoch,
                identity=str(call.identity),
                digest=str(call.digest),
                task=call.task,
                at=saved,
                part=call.part,
            )
        raise Suspended(request_id, in_words(tool.name, call.arguments))

    def _replay(self, call: Call, decision: Decision) -> Any:
        self._learn(decision)
        self._record(call, result=recorded(decision.result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return decision.result

    def _learn(self, decision: Decision) -> None:
        """Note that the state knows of an effect again that a rollback had left standing."""
        standing = self._session._meta.standing
        if decision.effect.id in standing:
            standing.remove(decision.effect.id)

    def _commit(self, call: Call, result: Any) -> None:
        if call.decision is None:
            return
        effects = self._session._effects
        try:
            effects.commit(call.decision.effect, result)
            self._learn(call.decision)
        finally:
            effects.over(call.decision.effect)

    def _break(self, call: Call, error: BaseException) -> None:
        """Record a call that raised."""
        if not isinstance(error, Exception):
            return  # the process stops, or waits for an approval
        self._record(call, error=error_words(error))
        try:
            self._session._save_after_call(call.words, nested=is_nested(self._session))
        except CheckpointError as trouble:
            _add_note(error, f"and the checkpoint after it failed: {trouble}")

    def _find_out(self, call: Call, error: BaseException) -> None:
        """Find out what became of the effect of a call that raised, or leave it unknown."""
        if call.decision is None:
            return
        effects, effect = self._session._effects, call.decision.effect
        effects.over(effect)
        try:
            if call.deed is not None and call.deed.is_not_done:
                effects.fail(effect, f"the tool says that nothing happened: {safe_repr(error)}")
            elif isinstance(error, Exception):
                effects.verify(effect, call.tool)
        except CheckpointError as unknown:  # the tool's own error is the one to be raised
            _add_note(error, str(unknown))

    def _record(self, call: Call, **outcome: Any) -> None:
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
        with self._session._saving.lock:
            self._session.calls.append(row)
            if "error" not in outcome and call.slot is not None:  # the checkpoint to come knows
                self._session._meta.counts.count(*call.slot)
            self._in_flight.remove(call)
            self.finished += 1

    def owner(self, tool: Tool, part: str | None = None) -> Any:
        """Return the part of the session that a method was called on; None is any, if only one.

        Raises:
            NotFoundError: there is none, or several have the method.
        """
        found: dict[int, Any] = {}
        for name, item in self._session._live_parts().items():
            method = getattr(type(item), tool.function.__name__, None)
            of_class = inspect.ismethod(method)
            if getattr(method, "tool", None) is tool and (of_class or part in (None, name)):
                one = type(item) if of_class else item
                found[id(one)] = one
        if len(found) == 1:
            return next(iter(found.values()))
        which = "Several parts" if found else f"The part {show(part)}" if part else "No part"
        raise NotFoundError(
            f"{which} of the session can be what the method {show(tool.name)} was called on: pass "
            "that object as agent= or in parts=, by the name that it had."
        )

    def _part_of(self, tool: Tool, owner: Any) -> str | None:
        """Return the name of the part that a method is called on; None if the tool is none."""
        if not tool.is_method:
            return None
        parts = self._session._live_parts()
        return next((name for name, part in parts.items() if part is owner), "")


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
