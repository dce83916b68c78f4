"""Approval requests: created by a session, answered by a person, consumed once.

A request is stored in the effect ledger, so it outlives the process; any process that can open
the store can answer it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_checkpoint.core.codec.save_policy import NO_POLICY, SavePolicy
from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.core.state_diff import same
from agent_checkpoint.errors import (
    UNUSABLE,
    ApprovalDeniedError,
    CheckpointError,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.redaction import MASKED, PLACEHOLDER
from agent_checkpoint.session.effects.effect_context import ToolCall
from agent_checkpoint.session.tools.call_arguments import cleaned, describe_call, encode_for_ledger
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest, Effect
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.store.ledger.ledger_status import (
    APPROVED,
    DENIED,
    PENDING,
    REDACTED,
    UNREADABLE,
    USED,
    VOID,
)
from agent_checkpoint.store.ledger.lineage import lineages
from agent_checkpoint.store.store_argument import store_for

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent_checkpoint.store.store_argument import StoreLike


class Approvals:
    """Lists and answers the approval requests of a store, from any process."""

    def __init__(self, store: StoreLike | None = None) -> None:
        """Open the requests of a store.

        Args:
            store: a path, a store URL, a Backend or a CheckpointManager; by default, the default
                store. Answers have the policy (`redact=`, `pickles=`) of a manager.

        Raises:
            InvalidInputError: `store` is not a store.
        """
        self._store, self._owns_store = store_for(store)
        self._policy = store.policy if isinstance(store, CheckpointManager) else NO_POLICY

    def close(self) -> None:
        """Close the store, if it was opened by path or URL."""
        if self._owns_store:
            self._store.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def pending(self, key: str | None = None) -> list[ApprovalRequest]:
        """Return the requests without an answer, of one session or of all sessions, oldest first.

        A ledger that cannot be read is listed at the end as one request with the status
        `unreadable`, whatever `key` is; its `reason` contains the error.

        Raises:
            StorageError: the medium failed.
        """
        pending, unreadable = [], []
        for family, ledger in self._ledgers():
            if isinstance(ledger, Ledger):
                pending += [item for item in ledger.state.requests.values() if item.is_open]
            else:
                unreadable.append(_unreadable(family, ledger))
        pending = [request for request in pending if key in (None, request.session)]
        return [*sorted(pending, key=lambda request: request.ts), *unreadable]

    def get(self, approval_id: str) -> ApprovalRequest:
        """Return a request, whatever its status. Raises the same errors as `approve`."""
        return self._find(approval_id)[1]

    def arguments(self, approval_id: str) -> dict[str, Any]:
        """Return the arguments of the requested call, which may be redacted.

        Raises the same errors as `approve`.
        """
        ledger, request = self._find(approval_id)
        return shown_arguments(ledger, request)

    def approve(
        self, approval_id: str, *, edit: Mapping[str, Any] | None = None, by: str | None = None
    ) -> None:
        """Approve a call.

        Args:
            approval_id: the id of the request.
            edit: arguments to replace, by name.
            by: the approver.

        Raises:
            NotFoundError: there is no such request.
            InvalidInputError: the call has no such argument.
            ConflictError: the request was already answered, or has expired.
            IntegrityError: a ledger is damaged, and no readable one has the request.
        """
        parts = {}
        if edit:
            arguments = self.arguments(approval_id)
            unknown = [name for name in edit if name not in arguments]
            if unknown:
                raise InvalidInputError(
                    f"The call has no argument {', '.join(map(short_repr, unknown))}; it has "
                    f"{', '.join(arguments)}."
                )
            if self.get(approval_id).is_redacted and PLACEHOLDER.search(repr(dict(edit))):
                raise InvalidInputError(
                    "An edited argument contains a placeholder of redact=, which the tool would "
                    "get as it is. Replace the whole value, or do not edit it."
                )
            parts["edited"], count = encode_for_ledger(
                {**arguments, **edit}, "The arguments", self._policy
            )
            if count:
                raise InvalidInputError(
                    "An edited argument contains a value that redact= matches, so it cannot be "
                    "stored for the call. Approve without it, and call the tool with it."
                )
        self._answer(approval_id, approved=True, reason=None, by=by, parts=parts)

    def deny(self, approval_id: str, reason: str = "", *, by: str | None = None) -> None:
        """Deny a call; the agent gets the reason. Raises the same errors as `approve`."""
        self._answer(approval_id, approved=False, reason=reason, by=by, parts={})

    def revoke(self, approval_id: str, *, by: str | None = None) -> None:
        """Revoke an answer that was not used yet; the request waits for an answer again.

        Args:
            approval_id: the id of the request.
            by: the name of the person who revokes the answer.

        Raises:
            NotFoundError: there is no such request.
            ConflictError: there is no answer, or it was already used or voided.
            IntegrityError: a ledger is damaged, and no readable one has the request.
        """
        ledger, request = self._find(approval_id)

        def guard() -> None:
            if request.status == PENDING:
                raise ConflictError(f"The request {approval_id} has no answer to revoke.")
            if not request.is_answered:
                raise ConflictError(
                    f"The answer to {approval_id} cannot be revoked: it is already "
                    f"{request.status}."
                )

        # Versions that do not know `reopen` treat the request as void: they never use the answer.
        who = "" if by is None else f" by {cleaned(by, self._policy.redactor)}"
        reason = f"the earlier answer ({request.answer}) was revoked{who}"
        ledger.append(VOID, guard=guard, requests=[approval_id], reason=reason[:500], reopen=True)

    def _answer(self, approval_id: str, **answer: Any) -> None:
        ledger, _ = self._find(approval_id)
        for name in ("reason", "by"):
            if isinstance(answer[name], str):
                answer[name] = cleaned(answer[name], self._policy.redactor)

        def guard() -> None:
            request = ledger.state.requests[approval_id]
            if request.status != PENDING:
                raise ConflictError(f"The request {approval_id} is already {request.status}.")
            if request.is_expired:
                raise ConflictError(
                    f"The request {approval_id} has expired. The next call creates a new request."
                )

        ledger.append("answered", guard=guard, request=approval_id, **answer)

    def _find(self, approval_id: str) -> tuple[Ledger, ApprovalRequest]:
        """Return a request and its ledger. If several ledgers have the id, prefer an open request.

        An imported ledger can repeat ids, but none of its requests is open.
        """
        unreadable: CheckpointError | None = None
        closed: tuple[Ledger, ApprovalRequest] | None = None
        for _, ledger in self._ledgers():
            if not isinstance(ledger, Ledger):
                unreadable = ledger
            elif approval_id in ledger.state.requests:
                match = ledger, ledger.state.requests[approval_id]
                if match[1].is_open:
                    return match
                closed = closed or match
        if closed is not None:
            return closed
        if unreadable is not None:  # the unreadable ledger may contain it
            raise unreadable
        raise NotFoundError(
            f"There is no approval request {short_repr(approval_id)} in this store."
        )

    def _ledgers(self) -> Iterator[tuple[str, Ledger | CheckpointError]]:
        """Iterate over all ledgers, with the error in place of an unreadable one."""
        for family in lineages(self._store):
            ledger = Ledger(self._store, family)
            try:
                ledger.refresh()
            except UNUSABLE as error:
                yield family, error
            else:
                yield family, ledger


def _unreadable(family: str, error: CheckpointError) -> ApprovalRequest:
    """Return the placeholder for the requests of an unreadable ledger."""
    name, why = PREFIX + family, str(error)
    texts: dict[str, Any] = dict.fromkeys(
        ("session", "tool", "module", "identity", "digest", "at"), ""
    )
    return ApprovalRequest(
        id=name,
        **texts,
        seq=0,
        ts=0.0,
        task=None,
        called=None,
        expires=None,
        parts={},
        words=f"the requests in {name}",
        status=UNREADABLE,
        reason=why,
    )


def find_request(
    ledger: Ledger, session: str, identity: str, digest: str
) -> ApprovalRequest | None:
    """Return the request of a call that can still be answered or consumed."""
    for request in reversed(ledger.state.requests_of.get(identity, {}).values()):
        is_it = (request.session, request.digest) == (session, digest)
        if is_it and not request.is_expired and request.status in (PENDING, APPROVED, DENIED):
            return request
    return None


def new_request_id() -> str:
    """Return a new random request id."""
    return "approval-" + secrets.token_hex(6)


def append_request(
    ledger: Ledger,
    request_id: str,
    call: ToolCall,
    *,
    epoch: Epoch,
    at: str,
) -> None:
    """Append an approval request to the ledger; `at` is the checkpoint saved with it.

    Raises:
        ConflictError: another process has opened the session.
        StorageError: the medium failed.
    """
    tool = call.tool
    ledger.append(
        "asked",
        parts=arguments_part(call),
        fence=epoch,
        request=request_id,
        session=epoch.session,
        tool=tool.name,
        module=tool.module,
        identity=call.identity,
        digest=call.digest,
        task=call.task,
        at=at,
        part=call.part,
        expires=None if tool.expires is None else time.time() + tool.expires,
        words=describe_call(call.name, call.arguments, call.redactor),
        **call.members,
    )


def consume_answer(ledger: Ledger, request: ApprovalRequest, epoch: Epoch) -> None:
    """Consume an answer for a call without an external side effect.

    Raises:
        ConflictError: the answer was used meanwhile, or another process has opened the session.
    """
    ledger.append(
        "used", guard=lambda: check_answer_usable(ledger, request), fence=epoch, request=request.id
    )


def check_answer_usable(ledger: Ledger, request: ApprovalRequest) -> None:
    """Refuse an answer that was used, voided, revoked or replaced meanwhile.

    Raises ConflictError.
    """
    current = ledger.state.requests[request.id]
    if not current.is_answered:
        raise ConflictError(
            f"The answer to approval request {request.id} cannot be used: the request is already "
            f"{current.status}."
        )
    if current.answer_seq != request.answer_seq:
        raise ConflictError(
            f"The answer to approval request {request.id} was replaced by another one. Call again."
        )


def unused_requests(ledger: Ledger, session: str) -> list[ApprovalRequest]:
    """Return the requests of a session that wait for an answer, or whose answer was not used."""
    ledger.refresh()
    return [
        request
        for request in list(ledger.state.requests.values())
        if request.session == session and request.status in (PENDING, APPROVED, DENIED)
    ]


def void_requests(
    ledger: Ledger, requests: Iterable[ApprovalRequest], epoch: Epoch, reason: str | None = None
) -> list[str]:
    """Void unused requests, as a rollback does; return their ids."""
    ids = [request.id for request in requests]
    if ids:
        why: dict[str, Any] = {} if reason is None else {"reason": reason}
        ledger.append(VOID, fence=epoch, requests=list(ids), **why)
    return ids


def void_unusable_answer(
    ledger: Ledger, request: ApprovalRequest, epoch: Epoch, why: CheckpointError
) -> None:
    """Void an answer whose call cannot run; the next call creates a new request.

    Raises:
        ConflictError: the answer was used meanwhile, or another process has opened the session.
    """
    ledger.append(
        VOID,
        guard=lambda: check_answer_usable(ledger, request),
        fence=epoch,
        requests=[request.id],
        reason=f"the approved call cannot run: {why}"[:500],
    )


def denial(request: ApprovalRequest) -> ApprovalDeniedError:
    """Return the error for a denied call, with the approver's reason."""
    why = f": {request.reason}" if request.reason else ""
    return ApprovalDeniedError(f"{request.title} was denied{why}.", request.reason or "")


def arguments_of(ledger: Ledger, record: ApprovalRequest | Effect) -> dict[str, Any]:
    """Return the arguments of a request or an effect, with the approver's edits.

    Raises:
        InvalidInputError: the arguments were purged or redacted.
        IntegrityError: the stored value is not a dict of arguments.
        StateError: the arguments cannot be decoded in this process.
    """
    if record.is_redacted:
        raise InvalidInputError(
            f"The recorded arguments of {record.title} are redacted, so the call cannot run from "
            "the record. Call the tool again with the real arguments."
        )
    return shown_arguments(ledger, record)


def call_arguments(
    ledger: Ledger, request: ApprovalRequest, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of an approved call that is made again with the same arguments.

    They are the recorded ones, with the approver's edits. If they are redacted, the given arguments
    that the approver did not edit are used. Raises the same errors as `arguments_of`.
    """
    if not request.is_redacted:
        return arguments_of(ledger, request)
    if "edited" not in request.parts:
        return given
    edited, recorded = (_decode(ledger, request, name) for name in ("edited", REDACTED))
    return {
        name: given[name] if name in given and value == recorded.get(name) else value
        for name, value in edited.items()
    }


def edits_of(ledger: Ledger, request: ApprovalRequest) -> dict[str, Any]:
    """Return the arguments that the approver changed, with the new values.

    Raises the same errors as `arguments_of`.
    """
    if "edited" not in request.parts:
        return {}
    name = REDACTED if request.is_redacted else "arguments"
    given = _decode(ledger, request, name) if name in request.parts else {}
    return {
        name: value
        for name, value in _decode(ledger, request, "edited").items()
        if name not in given or not same(value, given[name])
    }


def edits_behind(ledger: Ledger, effect: Effect) -> dict[str, Any]:
    """Return the edits of the request that an effect was approved by.

    Raises the same errors as `arguments_of`.
    """
    request = _request_behind(ledger, effect)
    return {} if request is None else edits_of(ledger, request)


def has_masked_edits(ledger: Ledger, effect: Effect) -> bool:
    """Return whether an effect was approved with edits that a masked archive does not have.

    Raises the same errors as `arguments_of`.
    """
    request = _request_behind(ledger, effect)
    if request is None or "edited" not in request.parts:
        return False
    return MASKED.search(repr(_decode(ledger, request, "edited"))) is not None


def _request_behind(ledger: Ledger, effect: Effect) -> ApprovalRequest | None:
    requests = [
        request
        for request in ledger.state.requests_of.get(effect.identity, {}).values()
        if (request.session, request.digest) == (effect.session, effect.digest)
        and request.status == USED
        and request.answer_seq < effect.seq
    ]
    return requests[-1] if requests else None


def arguments_part(call: ToolCall) -> dict[str, JsonValue]:
    """Return the arguments of a call for the ledger; redacted ones under another name.

    So no version of this library runs a call with placeholders: older ones report such arguments
    as purged.

    Raises:
        InvalidInputError: the arguments cannot be encoded.
    """
    policy = SavePolicy(redactor=call.redactor)
    tree, count = encode_for_ledger(call.arguments, f"{call.tool.name}'s arguments", policy)
    return {REDACTED if count else "arguments": tree}


def shown_arguments(ledger: Ledger, record: ApprovalRequest | Effect) -> dict[str, Any]:
    """Return the arguments for display: they may be redacted.

    Raises the same errors as `arguments_of`.
    """
    names = ("edited", "arguments", REDACTED)
    return _decode(ledger, record, next((n for n in names if n in record.parts), "arguments"))


def _decode(ledger: Ledger, record: ApprovalRequest | Effect, name: str) -> dict[str, Any]:
    arguments = decode_value(ledger, record.parts, name)
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise IntegrityError(
            f"Record {record.seq} of the ledger {short_repr(ledger.lineage, 300)} has invalid call "
            "arguments."
        )
    return arguments


def decode_value(ledger: Ledger, parts: Mapping[str, JsonValue], name: str) -> Any:
    """Decode one value of a ledger record.

    Raises:
        InvalidInputError: the value was purged.
        StateError: the value cannot be decoded.
    """
    if name not in parts:
        raise InvalidInputError(f"The value {name!r} was purged from the ledger.")
    tree = parts[name]
    return decode_part(tree, name, reader=ledger.stream.reader({name: tree})).value
