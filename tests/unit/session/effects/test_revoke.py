"""An answer can be revoked until it is used; a call uses the answer that it read, or none."""

from collections.abc import Callable
from typing import Any

import pytest

from agent_checkpoint import (
    ApprovalDeniedError,
    CheckpointManager,
    ConflictError,
    NotFoundError,
    Session,
    Suspended,
    tool,
)
from agent_checkpoint.session.effects.approvals import Approvals
from agent_checkpoint.store.ledger.ledger_state import LedgerState


class Mailer:
    """A tool that needs approval, and what it sent."""

    def __init__(self, effect: str = "irreversible") -> None:
        self.sent: list[str] = []
        self.before_start: Callable[[], Any] = lambda: None

        def identity(to: str, body: str) -> str:
            self.before_start()
            return to

        @tool(effect=effect, name="mail", key=identity, approve=True)
        def mail(to: str, body: str) -> str:
            self.sent.append(body)
            return f"sent {body}"

        self.mail = mail

    def ask(self) -> str:
        with pytest.raises(Suspended) as caught:
            self.mail("ann", "Hello")
        return caught.value.approval_id


@pytest.mark.parametrize("effect", ["local", "irreversible"])
def test_a_revoked_approval_is_not_used(manager: CheckpointManager, effect: str) -> None:
    mailer = Mailer(effect)
    with Session("work", store=manager) as session:
        name = mailer.ask()
        session.approvals.approve(name, edit={"body": "Bye"}, by="ann")
        session.approvals.revoke(name, by="bob")
        request = session.approvals.get(name)
        assert (request.status, request.answer, request.by) == ("pending", None, None)
        assert request.reason == "the earlier answer (approved) was revoked by bob"
        assert session.approvals.arguments(name) == {"to": "ann", "body": "Hello"}
        assert [item.id for item in session.approvals.pending()] == [name]
        assert session.carry_out() == []
        assert mailer.ask() == name  # the same request waits again
        assert mailer.sent == []


def test_another_answer_may_follow(manager: CheckpointManager) -> None:
    mailer = Mailer()
    with Session("work", store=manager) as session:
        name = mailer.ask()
        session.approvals.deny(name, "no")
        session.approvals.revoke(name)
        session.approvals.approve(name)
        assert mailer.mail("ann", "Hello") == "sent Hello"
        session.approvals.get(name)
    with Session("other", store=manager) as session:
        name = mailer.ask()
        session.approvals.approve(name, edit={"body": "Bye"})
        session.approvals.revoke(name)
        session.approvals.deny(name, "no")
        with pytest.raises(ApprovalDeniedError, match="no"):
            mailer.mail("ann", "Hello")
    assert mailer.sent == ["Hello"]


def test_what_cannot_be_revoked(manager: CheckpointManager) -> None:
    mailer = Mailer()
    with Session("work", store=manager) as session:
        name = mailer.ask()
        with pytest.raises(ConflictError, match="has no answer to revoke"):
            session.approvals.revoke(name)
        session.approvals.approve(name)
        mailer.mail("ann", "Hello")
        with pytest.raises(ConflictError, match="already used"):
            session.approvals.revoke(name)
        with pytest.raises(NotFoundError):
            session.approvals.revoke("approval-none")


def test_a_rollback_voids_a_reopened_request_too(manager: CheckpointManager) -> None:
    mailer = Mailer()
    with Session("work", store=manager) as session:
        name = mailer.ask()
        session.approvals.approve(name)
        session.approvals.revoke(name)
        session.rollback(to="@1")
        assert session.approvals.get(name).status == "void"
        with pytest.raises(ConflictError, match="already void"):
            session.approvals.revoke(name)


@pytest.mark.parametrize("again", [False, True])
def test_an_answer_that_is_replaced_during_the_call_is_not_used(
    manager: CheckpointManager, again: bool
) -> None:
    mailer = Mailer()
    with Session("work", store=manager) as session:
        name = mailer.ask()
        session.approvals.approve(name, edit={"body": "Bye"})
        answers = Approvals(manager)

        def replace() -> None:
            if answers.get(name).is_answered and answers.arguments(name)["body"] == "Bye":
                if calls:  # the arguments of the first answer were read
                    answers.revoke(name)
                    if again:
                        answers.approve(name, edit={"body": "Something else"})
                calls.append(1)

        calls: list[int] = []
        mailer.before_start = replace
        with pytest.raises(ConflictError, match="replaced" if again else "already pending"):
            mailer.mail("ann", "Hello")
        assert mailer.sent == []
        mailer.before_start = lambda: None
        if again:
            assert mailer.mail("ann", "Hello") == "sent Something else"


def test_earlier_versions_see_a_void_request(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ignore the member `reopen`, so that they never use a revoked answer."""
    mailer = Mailer()
    with Session("work", store=manager) as session:
        name = mailer.ask()
        session.approvals.approve(name)
        session.approvals.revoke(name)
        session.approvals.approve(name)

    def void(state: LedgerState, seq: int, record: dict[str, Any]) -> None:  # of version 0.1
        for known in record["requests"]:
            state.requests[known].status = "void"

    monkeypatch.setattr(LedgerState, "_void", void)
    assert Approvals(manager).get(name).status == "void"
