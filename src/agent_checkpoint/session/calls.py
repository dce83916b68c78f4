"""Calls of tools in a session. Owns the way of a call: may it be made, make it, record it, save.

The same steps serve functions and coroutine functions. State is captured on the caller's thread;
what waits for a disk or a server is moved off the event loop.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
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
from agent_checkpoint.session.arguments import fingerprint, in_words, recorded
from agent_checkpoint.session.current import current_task, is_nested, nesting
from agent_checkpoint.session.deed import Deed
from agent_checkpoint.session.effects import Decision
from agent_checkpoint.session.fitting import awaiting_here, settled
from agent_checkpoint.session.identity import identity_of
from agent_checkpoint.session.tools import IDEMPOTENT, Tool, tool_of
from agent_checkpoint.store.ledger import APPROVED, DENIED, PENDING, Request

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


@dataclass
class Question:
    """What an inline `approve=` function is asked."""

    tool: str
    arguments: dict[str, Any]
    task: str | None
    words: str


@dataclass
class _Call:
    """One call on its way."""

    tool: Tool
    owner: Any
    arguments: dict[str, Any]
    task: str | None
    digest: str | None = None
    identity: str | None = None
    number: int = 0
    """Which one it is of those that are alike, if it has no key."""
    decision: Decision | None = None
    deed: Deed | None = None
    request: Request | None = None
    """What somebody agreed to, if it is carried out for that."""
    began: float = 0.0
    given: Any = None
    """The arguments as they are recorded: the tool may change them."""

    @property
    def words(self) -> str:
        """What the checkpoint after it is called."""
        return in_words(self.tool.name, self.given)

    @property
    def is_replay(self) -> bool:
        return self.decision is not None and self.decision.is_replay


class Calls:
    """Runs the tools of one session."""

    def __init__(self, session: Work) -> None:
        self._session = session
        self._in_flight: list[_Call] = []
        self.finished = 0
        """How many calls have come to their end."""

    @property
    def in_flight(self) -> list[str]:
        """The names of the tools that are running."""
        return [call.tool.name for call in self._in_flight]

    def run(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a tool. Raises what it raises, and what stands in its way."""
        return self._run(self._begin(tool, *tool.bind(args, kwargs)))

    async def arun(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do as `run` does, for coroutine functions."""
        owner, arguments = tool.bind(args, kwargs)
        if tool.approve is not True and (tool.is_outside or tool.approve):
            with awaiting_here():  # what its verify= and approve= await is of this loop
                call, stopped = await to_its_end(self._begin, tool, owner, arguments)
            if stopped is not None:
                self._withdraw(call)
                raise stopped
        else:  # it may have to save the state, which is captured here
            call = self._begin(tool, owner, arguments)
        return await self._arun(call)

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
        owner = self.owner(tool) if tool.is_method else None
        call = self._begin(tool, owner, arguments_of(self._session._ledger, request), request)
        return settled(self._arun(call)) if tool.is_async else self._run(call)

    def _run(self, call: _Call) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay(call, call.decision)
        try:
            with nesting(self._session):
                result = call.tool.call(call.owner, call.arguments, call.deed)
        except BaseException as error:
            self._break(call, error)
            raise
        try:
            self._commit(call, result)
        finally:
            self._record(call, result=recorded(result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return result

    async def _arun(self, call: _Call) -> Any:
        if call.decision is not None and call.decision.is_replay:
            return self._replay(call, call.decision)
        try:
            with nesting(self._session):
                result = await call.tool.call(call.owner, call.arguments, call.deed)
        except BaseException as error:
            self._break(call, error)
            raise
        stopped: BaseException | None = None
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

    def _begin(
        self, tool: Tool, owner: Any, arguments: dict[str, Any], request: Request | None = None
    ) -> _Call:
        session = self._session
        session._check_open()
        call = _Call(tool, owner, arguments, current_task(session), began=time.time())
        if request is not None:
            call.request, call.task = request, request.task
            call.identity, call.digest = request.identity, request.digest
            self._decide(call)
            return self._let_fly(call)
        if not tool.is_outside and tool.approve is False:
            return self._let_fly(call)
        with session._saving.lock:
            call.digest = fingerprint(arguments, f"{tool.name}'s arguments")
            call.number = session._effects.number(tool, call.digest, call.task)
        call.identity = identity_of(tool, arguments, call.digest, call.task, call.number)
        try:
            self._decide(call)
        except BaseException:
            self._uncount(call)
            raise
        return self._let_fly(call)

    def _let_fly(self, call: _Call) -> _Call:
        call.given = recorded(call.arguments)
        self._in_flight.append(call)
        return call

    def _withdraw(self, call: _Call) -> None:
        """Take back a call that was let fly and is not made after all."""
        self._uncount(call)
        self._in_flight.remove(call)
        if call.deed is not None and call.decision is not None:
            effects, effect = self._session._effects, call.decision.effect
            effects.over(effect)
            if effect.kind != IDEMPOTENT:  # that may have happened in an earlier attempt
                effects.fail(effect, "the call was cancelled before it was made")

    def _decide(self, call: _Call) -> None:
        session, tool = self._session, call.tool
        identity, digest = str(call.identity), str(call.digest)
        if tool.is_outside:
            call.decision = session._effects.look(tool, identity, digest)
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
            )
        elif request is not None:
            use(session._ledger, request, session._epoch)
        if call.decision is not None and not call.is_replay:
            call.deed = Deed(call.decision.effect, session._ledger.family)

    def _agreed(self, call: _Call) -> Request | None:
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

    def _suspend(self, call: _Call, request_id: str, *, is_new: bool) -> None:
        session, tool = self._session, call.tool
        self._uncount(call)
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
            )
        raise Suspended(request_id, in_words(tool.name, call.arguments))

    def _uncount(self, call: _Call) -> None:
        self._count(call, is_over=False)

    def _count(self, call: _Call, *, is_over: bool = True) -> None:
        if call.number:
            with self._session._saving.lock:
                self._session._effects.counted(
                    call.tool, str(call.digest), call.task, call.number, is_over=is_over
                )
            call.number = 0

    def _replay(self, call: _Call, decision: Decision) -> Any:
        self._learn(decision)
        self._record(call, result=recorded(decision.result))
        self._session._save_after_call(call.words, nested=is_nested(self._session))
        return decision.result

    def _learn(self, decision: Decision) -> None:
        """Note that the state knows of an effect again that a rollback had left standing."""
        standing = self._session._meta.standing
        if decision.effect.id in standing:
            standing.remove(decision.effect.id)

    def _commit(self, call: _Call, result: Any) -> None:
        if call.decision is None:
            return
        effects = self._session._effects
        try:
            effects.commit(call.decision.effect, result)
            self._learn(call.decision)
        finally:
            effects.over(call.decision.effect)

    def _break(self, call: _Call, error: BaseException) -> None:
        """Record a call that raised; what became of its effect is found out, or stays unknown."""
        self._uncount(call)
        is_over = isinstance(error, Exception)  # else the process stops, or waits for an approval
        try:
            self._find_out(call, error)
        except CheckpointError as unknown:  # the tool's own error is the one to be raised
            _add_note(error, str(unknown))
        finally:
            if is_over:
                self._record(call, error=_in_words(error))
            else:
                self._in_flight.remove(call)
        if is_over:
            try:
                self._session._save_after_call(call.words, nested=is_nested(self._session))
            except CheckpointError as trouble:
                _add_note(error, f"and the checkpoint after it failed: {trouble}")

    def _find_out(self, call: _Call, error: BaseException) -> None:
        if call.decision is None:
            return
        effects, effect = self._session._effects, call.decision.effect
        effects.over(effect)
        if call.deed is not None and call.deed.is_not_done:
            effects.fail(effect, f"the tool says that nothing happened: {safe_repr(error)}")
        elif isinstance(error, Exception):
            effects.verify(effect, call.tool)

    def _record(self, call: _Call, **outcome: Any) -> None:
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
            self._count(call)
            self._in_flight.remove(call)
            self.finished += 1

    def owner(self, tool: Tool) -> Any:
        """Return the part of the session that has a method. Raises NotFoundError."""
        for part in self._session._live_parts().values():
            method = getattr(type(part), tool.function.__name__, None)
            if getattr(method, "tool", None) is tool:
                return type(part) if inspect.ismethod(method) else part
        raise NotFoundError(f"No part of the session has the method {show(tool.name)}.")


def _in_words(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:
        words = "its message cannot be read"
    return f"{type(error).__name__}: {words}"[:2000]


def _add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(note)
