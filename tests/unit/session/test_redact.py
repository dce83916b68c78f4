"""`redact=` of a session: calls, labels, the ledger and approvals, and that effects still work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    CheckpointManager,
    EffectConflictError,
    EffectUnknownError,
    InvalidInputError,
    Session,
    Suspended,
    tool,
)
from tests.agents import Agent
from tests.secrets_of_each_kind import SECRETS, places

TOKEN = SECRETS["github-token"]
GONE = "[redacted:github-token]"


class Lost(BaseException):
    """The process ends in the middle of a call."""


class Outside:
    """A service that counts what it is asked."""

    def __init__(self, name: str, **options: Any) -> None:
        self.done: list[Any] = []
        self.dies = False
        options = {"effect": "irreversible", **options}

        @tool(name=name, **options)
        def push(token: str, what: str = "code") -> str:
            self.done.append((token, what))
            if self.dies:
                raise Lost
            return f"pushed {what} with {token}"

        self.push = push


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


def in_store(manager: CheckpointManager, secret: str = TOKEN) -> bool:
    return places(manager, secret) != []


def test_everything_of_a_session(stores: CheckpointManager) -> None:
    @tool(name="show it")
    def show(token: str, *, client: Any = None) -> "list[str]":
        return [token]

    @tool(name="break it")
    def fail(token: str) -> None:
        raise ValueError("x" * 1980 + token)  # cut in the middle of the secret

    agent = Agent()
    agent.memory = [TOKEN]
    with Session("k", agent=agent, store=stores, redact="secrets") as session:
        session.messages.append({"role": "user", "content": f"use {TOKEN}"})
        (task,) = session.tasks(["one"])
        with task:
            task.note, task.result = TOKEN, [TOKEN]
            assert show(TOKEN) == [TOKEN]
            show(
                "x" * 30 + TOKEN, client=type("C", (), {"__repr__": lambda _: "y" * 180 + TOKEN})()
            )
            with pytest.raises(ValueError, match="ghp_"):
                fail(TOKEN)
        session.save(label=f"after {TOKEN}", tags=[TOKEN])
        assert session.messages[0]["content"] == f"use {TOKEN}"
        assert session.calls[0]["result"] == [TOKEN]
        assert agent.memory == [TOKEN]
        assert any("redact= replaced" in notice for notice in session.notices)
        labels = [row["label"] for row in session.history()]
        assert f"show it(token='{GONE}', client=None)" in labels
        assert f"after {GONE}" in labels
        assert sum(row.get("redacted", 0) for row in session.history()) > 0
    for piece in (TOKEN, TOKEN[:20], TOKEN[:12]):
        assert not in_store(stores, piece)
    with Session("k", agent=Agent(), store=stores) as session:
        assert session.messages[0]["content"] == f"use {GONE}"
        assert session.agent.memory == [GONE]
        assert session.calls[0]["arguments"]["token"] == GONE


def test_a_session_redacts_as_its_manager_does(tmp_path: Path) -> None:
    with (
        CheckpointManager(backend="sqlite", path=tmp_path / "store", redact="secrets") as manager,
        Session("k", store=manager) as session,
    ):
        assert session.manager is manager
        session.messages.append(TOKEN)
        branch = session.fork("b")
        branch.messages.append(TOKEN)
        branch.save()
        session.save()
        assert not in_store(manager)


def test_names_of_sessions_and_tasks(stores: CheckpointManager) -> None:
    with pytest.raises(InvalidInputError, match="redact= matches"):
        Session(TOKEN, store=stores, redact="secrets")
    session = Session("k", store=stores, redact="secrets")
    with session, pytest.raises(InvalidInputError, match="A task id contains"):
        list(session.tasks([f"push with {TOKEN}"]))


# -- effects -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"key": lambda what, **_: what}, {"key": lambda token, **_: token}]
)
def test_an_effect_with_a_secret_is_found_again(
    stores: CheckpointManager, options: "dict[str, Any]"
) -> None:
    outside = Outside("push again", **options)
    with Session("k", store=stores, redact="secrets") as session:
        outside.push(TOKEN)
        head = session.history()[-1]["id"]
        session.rollback(to=head, effects="warn")
        assert outside.push(TOKEN) == f"pushed code with {GONE}"  # the recorded result
        assert len(outside.done) == 1
    assert outside.done == [(TOKEN, "code")]  # the tool got the real one
    assert not in_store(stores)


def test_other_arguments_under_the_same_key_are_a_conflict(stores: CheckpointManager) -> None:
    outside = Outside("push with key", key=lambda what, **_: what)
    with Session("k", store=stores, redact="secrets"):
        outside.push(TOKEN)
        with pytest.raises(EffectConflictError, match="different arguments"):
            outside.push(TOKEN[:-1] + "Z")
    assert len(outside.done) == 1


def test_the_digest_of_a_secret_cannot_be_computed_from_the_store(
    stores: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_checkpoint.session.tools.call_arguments import fingerprints

    outside = Outside("push digest")
    with Session("k", store=stores, redact=r"pin \d+") as session:
        outside.push("pin 1234")
        (effect,) = session.effects
    arguments = {"token": "pin 1234", "what": "code"}
    assert effect.digest not in fingerprints(arguments, "x")
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of another user, quite long")
    assert effect.digest not in fingerprints(arguments, "x", with_keyed=True)


def test_a_digest_without_secrets_is_as_before(stores: CheckpointManager) -> None:
    outside = Outside("push plain")
    with Session("k", store=stores) as session:
        outside.push("plain")
        (before,) = session.effects
    with Session("l", store=stores, redact="secrets") as session:
        outside.push("plain")
        (after,) = session.effects
    assert before.digest == after.digest


@pytest.mark.parametrize("first", [None, "secrets"])
@pytest.mark.parametrize("options", [{}, {"key": lambda token, **_: token}])
def test_adding_or_removing_the_option_repeats_no_effect(
    stores: CheckpointManager, first: Any, options: "dict[str, Any]"
) -> None:
    outside = Outside("push switched", **options)
    outside.dies = True
    with pytest.raises(Lost), Session("k", store=stores, redact=first):
        outside.push(TOKEN)
    outside.dies = False
    second = None if first else "secrets"
    with Session("k", store=stores, redact=second) as session:
        with pytest.raises(EffectUnknownError):
            outside.push(TOKEN)
        session.resolve(session.effects[0].id, happened=True, result="yes")
        assert outside.push(TOKEN) == "yes"
    assert len(outside.done) == 1


def test_an_effect_recorded_under_another_secret_is_not_repeated(
    stores: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside("push elsewhere")
    outside.dies = True
    with pytest.raises(Lost), Session("k", store=stores, redact="secrets"):
        outside.push(TOKEN)
    outside.dies = False
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of another machine, quite long")
    with Session("k", store=stores, redact="secrets"):
        with pytest.raises(EffectConflictError, match="AGENT_CHECKPOINT_SECRET"):
            outside.push(TOKEN)
        outside.push("plain")  # has no secret, so it is another call
    assert [token for token, _ in outside.done] == [TOKEN, "plain"]


def test_verify_gets_the_real_arguments_of_the_call(stores: CheckpointManager) -> None:
    asked: list[str] = []

    def verify(token: str, **_: Any) -> "str | None":
        asked.append(token)
        return "found"

    outside = Outside("push verified", verify=verify)
    outside.dies = True
    with pytest.raises(Lost), Session("k", store=stores, redact="secrets"):
        outside.push(TOKEN)
    outside.dies = False
    with Session("k", store=stores, redact="secrets") as session:
        assert asked == []  # not from the record, whose arguments are redacted
        assert session.effects[0].status == "unknown"
        assert outside.push(TOKEN) == "found"
    assert asked == [TOKEN]
    assert len(outside.done) == 1


def test_a_compensation_from_a_redacted_record_is_refused(stores: CheckpointManager) -> None:
    undone: list[str] = []
    outside = Outside(
        "push undoable", effect="reversible", undo=lambda token, **_: undone.append(token)
    )
    with Session("k", store=stores, redact="secrets") as session:
        start = session.save()
        outside.push(TOKEN)
        from agent_checkpoint import RollbackRefusedError

        with pytest.raises(RollbackRefusedError, match="redacted"):
            session.rollback(to=start, effects="compensate")
    assert undone == []


def test_the_outcome_is_recorded_even_if_the_function_fails(stores: CheckpointManager) -> None:
    outside = Outside("push and fail")

    def redact(text: str) -> str:
        if "pushed" in text:
            raise ZeroDivisionError
        return text

    with Session("k", store=stores, redact=redact, every="manual") as session:
        outside.push("plain")
        (effect,) = session.effects
        assert (effect.status, effect.described) == ("committed", True)
        session.calls.truncate(0)


# -- approvals -----------------------------------------------------------------------------------


def ask(outside: Outside, *arguments: str) -> str:
    with pytest.raises(Suspended) as caught:
        outside.push(*arguments)
    return caught.value.approval_id


def test_an_approved_call_runs_when_it_is_made_again(stores: CheckpointManager) -> None:
    outside = Outside("push approved", approve=True)
    with Session("k", store=stores, redact="secrets") as session:
        request = ask(outside, TOKEN)
        assert session.approvals.arguments(request) == {"token": GONE, "what": "code"}
        assert GONE in session.approvals.get(request).words
    assert not in_store(stores)
    Approvals(stores.store).approve(request)
    with Session("k", store=stores, redact="secrets") as session:
        (outcome,) = session.carry_out()
        assert "redacted" in outcome["error"]
        assert "Call the tool again" in outcome["error"]
        assert outside.done == []
        assert outside.push(TOKEN) == f"pushed code with {TOKEN}"
    assert outside.done == [(TOKEN, "code")]


def test_edits_of_an_approver_apply_to_the_real_arguments(stores: CheckpointManager) -> None:
    outside = Outside("push edited", approve=True)
    with Session("k", store=stores, redact="secrets") as session:
        request = ask(outside, TOKEN)
        with pytest.raises(InvalidInputError, match="placeholder"):
            session.approvals.approve(request, edit={"token": f"{GONE}x"})
        with pytest.raises(InvalidInputError, match="redact= matches"):
            session.approvals.approve(request, edit={"what": TOKEN})
        session.approvals.approve(request, edit={"what": "docs"}, by=TOKEN)
        outside.push(TOKEN)
    assert outside.done == [(TOKEN, "docs")]
    assert not in_store(stores)


def test_reasons_are_redacted(stores: CheckpointManager) -> None:
    outside = Outside("push denied", approve=True)
    with Session("k", store=stores, redact="secrets") as session:
        session.approvals.deny(ask(outside, "plain"), f"never with {TOKEN}")
    assert not in_store(stores)


def test_the_notice_counts_one_value(tmp_path: Path) -> None:
    with Session("one", store=tmp_path / "one", redact="secrets") as session:
        session.messages.append({"role": "user", "content": f"use {TOKEN}"})
        session.save()
        (notice,) = session.notices
    assert notice.startswith("redact= replaced 1 value by placeholders in the saved checkpoints.")


def test_an_interrupted_task_goes_back_to_its_start(tmp_path: Path) -> None:
    """Card numbers look like the times in checkpoint ids."""
    agent, options = Agent(), {"redact": r"(?<![0-9])[0-9]{13,19}(?![0-9])"}
    manager = CheckpointManager()
    with pytest.raises(Lost), Session("job", store=manager, agent=agent, **options) as session:
        for task in session.tasks(["pay"]):
            with task:
                agent.memory.append("4111111111111111")
                session.save()
                raise Lost
    again = Agent()
    with Session("job", store=manager, agent=again, **options) as session:
        (task,) = session.tasks(["pay"])
        with task:
            assert again.memory == []
        assert session.notices == []
    assert not in_store(manager, "4111111111111111")
