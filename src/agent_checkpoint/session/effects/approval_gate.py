"""Checks whether a call is approved. Owns the decision: run, deny, or suspend."""

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
    """Return the approved request to consume, or None if an `approve=` function approved.

    Raises:
        ApprovalDeniedError: the request was denied.
        Suspended: the request has no answer yet; the session is saved.
        ConflictError: the answer was already used.
    """
    tool = call.tool
    if callable(tool.approve):
        words = describe_call(tool.name, call.arguments)
        if run_if_awaitable(
            tool.approve(ApprovalQuestion(tool.name, dict(call.arguments), call.task, words))
        ):
            return None
        raise ApprovalDeniedError(f"{tool.name} was denied by its approve= function.")
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
        raise ConflictError(f"The approval request {request.id} is {status} and cannot be used.")
    else:
        call.arguments = arguments_of(ledger, request)
        session._record.pending = [name for name in session._record.pending if name != request.id]
    return request


def _suspend(session: Work, call: ToolCall, request_id: str, *, is_new: bool) -> None:
    tool, label = call.tool, f"waits for {request_id}"
    if request_id not in session._record.pending:
        session._record.pending.append(request_id)
    # State is captured on the thread of the call, which may be another one.
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
