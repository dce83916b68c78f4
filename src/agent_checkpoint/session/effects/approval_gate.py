"""Has somebody agreed to a call? Owns what becomes of the call: made, refused, or waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_checkpoint.errors import ApprovalDeniedError, ConflictError, Suspended
from agent_checkpoint.session.effects.approvals import (
    append_request,
    arguments_of,
    consume_answer,
    denial,
    find_request,
    new_request_id,
)
from agent_checkpoint.session.effects.effect_context import ApprovalQuestion, ToolCall
from agent_checkpoint.session.tools.call_arguments import describe_call
from agent_checkpoint.session.tools.invoke import run_if_awaitable
from agent_checkpoint.session.tools.tool import check_same_tool
from agent_checkpoint.store.ledger.account import title_of
from agent_checkpoint.store.ledger.ledger import APPROVED, DENIED, PENDING, Request

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


def require_approval(session: Work, call: ToolCall) -> Request | None:
    """Return the answer to be used, or None if an inline function agreed.

    Raises:
        ApprovalDeniedError: somebody refused.
        Suspended: nobody has answered yet.
        ConflictError: the answer was used elsewhere.
    """
    tool = call.tool
    if callable(tool.approve):
        words = describe_call(tool.name, call.arguments)
        if run_if_awaitable(
            tool.approve(ApprovalQuestion(tool.name, dict(call.arguments), call.task, words))
        ):
            return None
        raise ApprovalDeniedError(f"{tool.name} was denied by the tool's approve= function.")
    ledger = session._ledger
    ledger.refresh()
    identity, digest = str(call.identity), str(call.digest)
    request = call.request or find_request(ledger, session.key, identity, digest)
    if request is not None:
        check_same_tool(tool, request, request.title)
    status = None if request is None else request.status
    if request is None:
        _suspend(session, call, new_request_id(), is_new=True)
    elif status == PENDING:
        _suspend(session, call, request.id, is_new=False)
    elif status == DENIED:
        consume_answer(ledger, request, session._epoch)
        session._record.pending = [name for name in session._record.pending if name != request.id]
        raise denial(request)
    elif status != APPROVED:
        raise ConflictError(f"The answer to {request.id} cannot be used: it is {status}.")
    else:
        call.arguments = arguments_of(ledger, request)
        session._record.pending = [name for name in session._record.pending if name != request.id]
    return request


def _suspend(session: Work, call: ToolCall, request_id: str, *, is_new: bool) -> None:
    tool, label = call.tool, f"waits for {request_id}"
    if request_id not in session._record.pending:
        session._record.pending.append(request_id)
    # The state is captured where the call is made, also if this is another thread.
    saved = (
        run_if_awaitable(session._asave(label=label))
        if call.is_awaited
        else session._save(label=label)
    )
    if is_new:
        append_request(
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
    raise Suspended(request_id, title_of(tool.name, str(call.digest)))
