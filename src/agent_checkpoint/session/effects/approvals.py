"""Calls that a person has to agree to. Owns asking, answering and using an answer once.

A request outlives the process that made it: it is in the ledger, and whoever can open the store
can answer it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agent_checkpoint.core.state_codec import decode_part
from agent_checkpoint.errors import (
    UNUSABLE,
    ApprovalDeniedError,
    CheckpointError,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.session.tools.call_arguments import describe_call, encode_for_ledger
from agent_checkpoint.session.tools.tool import Tool
from agent_checkpoint.store.ledger.ledger import (
    APPROVED,
    DENIED,
    PENDING,
    PREFIX,
    UNREADABLE,
    VOID,
    Effect,
    Epoch,
    Ledger,
    Request,
)
from agent_checkpoint.store.ledger.lineage import lineages
from agent_checkpoint.store.store import Store


class Approvals:
    """The requests in a store, to be listed and answered from any process."""

    def __init__(self, store: Store) -> None:
        # A manager has its store by that name: whoever passes it means that.
        self._store: Store = getattr(store, "store", store)

    def pending(self, key: str | None = None) -> list[Request]:
        """Return what waits for an answer, of one session or of all, the oldest first.

        For a ledger that cannot be read there is one with the status `unreadable`, at the end:
        nobody can tell whose requests it has. Its `reason` says why.

        Raises:
            StorageError: the medium failed.
        """
        found, unreadable = [], []
        for family, ledger in self._ledgers():
            if isinstance(ledger, Ledger):
                found += [item for item in ledger.requests.values() if item.is_open]
            else:
                unreadable.append(_unreadable(family, ledger))
        found = [request for request in found if key in (None, request.session)]
        return [*sorted(found, key=lambda request: request.ts), *unreadable]

    def get(self, approval_id: str) -> Request:
        """Return a request, whatever became of it. Raises as `approve` does."""
        return self._find(approval_id)[1]

    def arguments(self, approval_id: str) -> dict[str, Any]:
        """Return the arguments of a call that somebody has to agree to. Raises as `approve`."""
        ledger, request = self._find(approval_id)
        return arguments_of(ledger, request)

    def approve(
        self, approval_id: str, *, edit: Mapping[str, Any] | None = None, by: str | None = None
    ) -> None:
        """Agree to a call.

        Args:
            approval_id: which.
            edit: arguments that the call is to have instead, by name.
            by: who agrees.

        Raises:
            NotFoundError: there is no such request.
            InvalidInputError: the call has no such argument.
            ConflictError: it is answered already, or too late.
            IntegrityError: its ledger is damaged, or that of another, and it is in no sound one.
        """
        parts = {}
        if edit:
            arguments = self.arguments(approval_id)
            strange = [name for name in edit if name not in arguments]
            if strange:
                raise InvalidInputError(
                    f"The call has no argument {', '.join(map(short_repr, strange))}; it has "
                    f"{', '.join(arguments)}."
                )
            parts["edited"] = encode_for_ledger({**arguments, **edit}, "The arguments")
        self._answer(approval_id, approved=True, reason=None, by=by, parts=parts)

    def deny(self, approval_id: str, reason: str = "", *, by: str | None = None) -> None:
        """Refuse a call, with a reason that the agent is told. Raises as `approve` does."""
        self._answer(approval_id, approved=False, reason=reason, by=by, parts={})

    def _answer(self, approval_id: str, **answer: Any) -> None:
        ledger, _ = self._find(approval_id)

        def guard() -> None:
            request = ledger.requests[approval_id]
            if request.status != PENDING:
                raise ConflictError(f"The request {approval_id} is {request.status} already.")
            if request.is_expired:
                raise ConflictError(f"The request {approval_id} has expired: it is asked anew.")

        ledger.append("answered", guard=guard, request=approval_id, **answer)

    def _find(self, approval_id: str) -> tuple[Ledger, Request]:
        """Return the request of an id, and its ledger; an open one if several have the id.

        An imported ledger can repeat the ids of others, but none of its requests is open.
        """
        trouble: CheckpointError | None = None
        closed: tuple[Ledger, Request] | None = None
        for _, ledger in self._ledgers():
            if not isinstance(ledger, Ledger):
                trouble = ledger
            elif approval_id in ledger.requests:
                found = ledger, ledger.requests[approval_id]
                if found[1].is_open:
                    return found
                closed = closed or found
        if closed is not None:
            return closed
        if trouble is not None:  # it may be in there
            raise trouble
        raise NotFoundError(f"There is no request {short_repr(approval_id)} in this store.")

    def _ledgers(self) -> Iterator[tuple[str, Ledger | CheckpointError]]:
        """Iterate over all ledgers, giving the reason instead of one that cannot be read."""
        for family in lineages(self._store):
            ledger = Ledger(self._store, family)
            try:
                ledger.refresh()
            except UNUSABLE as error:
                yield family, error
            else:
                yield family, ledger


def _unreadable(family: str, error: CheckpointError) -> Request:
    """Return what stands in a list for all requests of a ledger that cannot be read."""
    name, why = PREFIX + family, str(error)
    texts = dict.fromkeys(("session", "tool", "module", "identity", "digest", "at"), "")
    return Request(
        id=name,
        **texts,
        seq=0,
        ts=0.0,
        task=None,
        expires=None,
        parts={},
        words=f"the requests in {name}",
        status=UNREADABLE,
        reason=why,
    )


def find_request(ledger: Ledger, session: str, identity: str, digest: str) -> Request | None:
    """Return the request for a call of a session that can still be answered or used."""
    for request in reversed(ledger.requests_for(identity)):
        is_it = (request.session, request.digest) == (session, digest)
        if is_it and not request.is_expired and request.status in (PENDING, APPROVED, DENIED):
            return request
    return None


def new_request_id() -> str:
    """Return the id of a request that is yet to be made."""
    return "approval-" + secrets.token_hex(6)


def append_request(
    ledger: Ledger,
    request_id: str,
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    epoch: Epoch,
    identity: str,
    digest: str,
    task: str | None,
    at: str,
    part: str | None = None,
) -> None:
    """Note that somebody has to agree to a call; `at` is the checkpoint saved with it.

    Raises:
        ConflictError: the session was opened elsewhere.
        StorageError: the medium failed.
    """
    ledger.append(
        "asked",
        parts={"arguments": encode_for_ledger(dict(arguments), f"{tool.name}'s arguments")},
        fence=epoch,
        request=request_id,
        session=epoch.session,
        tool=tool.name,
        module=tool.module,
        identity=identity,
        digest=digest,
        task=task,
        at=at,
        part=part,
        expires=None if tool.expires is None else time.time() + tool.expires,
        words=describe_call(tool.name, arguments),
    )


def consume_answer(ledger: Ledger, request: Request, epoch: Epoch) -> None:
    """Use an answer up, where no effect does so.

    Raises:
        ConflictError: it was used meanwhile, or the session was opened elsewhere.
    """
    ledger.append(
        "used", guard=lambda: check_answer_usable(ledger, request), fence=epoch, request=request.id
    )


def check_answer_usable(ledger: Ledger, request: Request) -> None:
    """Refuse an answer that was used or made void meanwhile. Raises ConflictError."""
    status = ledger.requests[request.id].status
    if status not in (APPROVED, DENIED):
        raise ConflictError(f"The answer to {request.id} cannot be used any more: it is {status}.")


def void_requests(ledger: Ledger, session: str, epoch: Epoch) -> list[str]:
    """Make all requests of a session void that are not used, as a rollback does; return them."""
    ledger.refresh()
    open_ones = [
        request.id
        for request in list(ledger.requests.values())
        if request.session == session and request.status in (PENDING, APPROVED, DENIED)
    ]
    if open_ones:
        ledger.append(VOID, fence=epoch, requests=list(open_ones))
    return open_ones


def void_unusable_answer(
    ledger: Ledger, request: Request, epoch: Epoch, why: CheckpointError
) -> None:
    """Make an answer void by which nothing can be done: whoever gave it has to be asked anew.

    Raises:
        ConflictError: it was used meanwhile, or the session was opened elsewhere.
    """
    ledger.append(
        VOID,
        guard=lambda: check_answer_usable(ledger, request),
        fence=epoch,
        requests=[request.id],
        reason=f"it cannot be carried out: {why}"[:500],
    )


def denial(request: Request) -> ApprovalDeniedError:
    """Return the error that tells an agent that a call was refused."""
    why = f": {request.reason}" if request.reason else ""
    return ApprovalDeniedError(f"{request.title} was denied{why}.", request.reason or "")


def arguments_of(ledger: Ledger, record: Request | Effect) -> dict[str, Any]:
    """Return the arguments of a request or an effect; those that the approver wants, if any.

    Raises:
        InvalidInputError: they were purged.
        IntegrityError: they are none.
        StateError: they cannot be decoded here.
    """
    name = "edited" if "edited" in record.parts else "arguments"
    found = decode_value(ledger, record.parts, name)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise IntegrityError(
            f"The arguments that belong to record {record.seq} of the ledger "
            f"{short_repr(ledger.lineage, 300)} are none of a call."
        )
    return found


def decode_value(ledger: Ledger, parts: Mapping[str, JsonValue], name: str) -> Any:
    """Return a value of a record. Raises InvalidInputError if it was purged, and StateError."""
    if name not in parts:
        raise InvalidInputError("It was purged: what it was is not known any more.")
    tree = parts[name]
    return decode_part(tree, name, reader=ledger.stream.reader({name: tree})).value
