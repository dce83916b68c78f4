"""Calls that a person has to agree to: asked once, answered anywhere, used once."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from agent_checkpoint import (
    ApprovalDeniedError,
    CheckpointManager,
    ConflictError,
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    NotFoundError,
    Session,
    Suspended,
    tool,
)
from agent_checkpoint.session.effects.approvals import Approvals
from tests.agents import Agent
from tests.unit.session.stores import DURABLE, Killed, killed, manager_on, statuses


class Outside:
    def __init__(self, kind: str = "irreversible", keyed: bool = True, **options: Any) -> None:
        self.done: list[Any] = []
        options.setdefault("approve", True)
        if keyed:
            options["key"] = lambda to, **_: to

        @tool(effect=kind, name="mail", **options)
        def mail(to: str, body: str = "Hello") -> str:
            self.done.append((to, body))
            return f"mail {len(self.done)} to {to}: {body}"

        self.mail = mail

    def ask(self, *args: str) -> str:
        """Call it, and return the id of the request."""
        with pytest.raises(Suspended) as caught:
            self.mail(*args)
        return caught.value.approval_id


KINDS = ["local", "read", "idempotent", "irreversible"]


# -- asking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyed", [True, False])
def test_asked_answered_and_made(manager: CheckpointManager, kind: str, keyed: bool) -> None:
    outside = Outside(kind, keyed)
    with Session("work", store=manager) as session:
        name = outside.ask("ann")
        assert outside.ask("ann") == name  # one request, however often it is tried
        assert outside.done == []
        session.approvals.approve(name)
        assert outside.mail("ann") == "mail 1 to ann: Hello"
        assert session.approvals.get(name).status == "used"
        assert session.approvals.pending() == []
    assert outside.done == [("ann", "Hello")]


def test_suspended_is_no_exception(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory), pytest.raises(Suspended) as caught, suppress(Exception):
        outside.mail("ann")
    assert not isinstance(caught.value, Exception)
    assert caught.value.approval_id in str(caught.value)


def test_no_task_fails_by_it(manager: CheckpointManager) -> None:
    outside = Outside()
    with suppress(Suspended), Session("work", store=manager) as session:
        for task in session.tasks(["send", "rest"], retries=3):
            with task:
                outside.mail("ann")
    with Session("work", store=manager) as session:
        assert [task.status for task in session.tasks] == ["in_progress", "pending"]
        (request,) = session.approvals.pending("work")
        assert request.task == "send"
        session.approvals.approve(request.id)
        for task in session.tasks(["send", "rest"]):
            with task:
                if task.id == "send":
                    assert outside.mail("ann") == "mail 1 to ann: Hello"
        assert [task.status for task in session.tasks] == ["completed", "completed"]


def test_the_list_of_what_is_pending(manager: CheckpointManager) -> None:
    outside = Outside()
    for key in ("two", "one"):
        with Session(key, store=manager) as session:
            outside.ask("ann", key)
            head = session.head
    found = Approvals(manager)
    assert [request.session for request in found.pending()] == ["two", "one"]  # oldest first
    (request,) = found.pending("one")
    assert request.tool == "mail"
    assert request.words == "mail(to='ann', body='one')"
    assert request.at == head
    assert request.is_open
    assert found.arguments(request.id) == {"to": "ann", "body": "one"}
    assert found.pending("three") == []


def test_the_request_is_of_the_checkpoint(memory: CheckpointManager) -> None:
    outside, agent = Outside(), Agent()
    with Session("work", store=memory, agent=agent, every="manual") as session:
        agent.count = 7
        outside.ask("ann")
        assert memory.state_dict("work")["agent"]["count"] == 7
        assert session.history()[0]["label"].startswith("waits for approval-")


def test_nothing_is_asked_that_the_effect_refuses(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory):
        pass
    memory.fork("work", "branch")
    with Session("branch", store=memory) as branch:
        with pytest.raises(EffectError, match="fork"):
            outside.mail("ann")
        assert branch.approvals.pending() == []
    assert outside.done == []


# -- answering -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", DURABLE)
def test_answered_by_another_process(backend: str, tmp_path: Path) -> None:
    outside = Outside()
    with manager_on(backend, tmp_path) as manager, Session("work", store=manager):
        name = outside.ask("ann")
    with manager_on(backend, tmp_path) as manager:
        Approvals(manager.store).approve(name, by="eve")
        assert Approvals(manager.store).get(name).by == "eve"
    with manager_on(backend, tmp_path) as manager, Session("work", store=manager):
        assert outside.mail("ann") == outside.mail("ann") == "mail 1 to ann: Hello"
    assert len(outside.done) == 1


def test_answered_while_the_session_is_open(manager: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=manager):
        Approvals(manager.store).approve(outside.ask("ann"))
        assert outside.mail("ann") == "mail 1 to ann: Hello"


@pytest.mark.parametrize("first", ["approve", "deny"])
@pytest.mark.parametrize("second", ["approve", "deny"])
def test_the_first_answer_counts(memory: CheckpointManager, first: str, second: str) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        name = outside.ask("ann")
        getattr(session.approvals, first)(name)
        with pytest.raises(ConflictError, match="already"):
            getattr(session.approvals, second)(name)
        assert session.approvals.get(name).status in ("approved", "denied")


@pytest.mark.parametrize("verb", ["approve", "deny", "get", "arguments"])
def test_there_must_be_such_a_request(memory: CheckpointManager, verb: str) -> None:
    with Session("work", store=memory) as session, pytest.raises(NotFoundError, match="'none'"):
        getattr(session.approvals, verb)("none")


def test_denied_with_a_reason_and_then_asked_anew(manager: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=manager) as session:
        name = outside.ask("ann")
        session.approvals.deny(name, "too rude", by="eve")
        with pytest.raises(ApprovalDeniedError, match=r"mail \[.*\] was denied: too rude") as e:
            outside.mail("ann")
        assert e.value.reason == "too rude"
        assert outside.ask("ann") != name
        assert statuses(session) == []
        assert session._state.in_flight == []
    assert outside.done == []


def test_denied_without_a_reason(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        session.approvals.deny(outside.ask("ann"))
        with pytest.raises(ApprovalDeniedError, match=r"denied\.$"):
            outside.mail("ann")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyed", [True, False])
def test_changed_arguments_need_a_new_request(
    memory: CheckpointManager, kind: str, keyed: bool
) -> None:
    outside = Outside(kind, keyed)
    with Session("work", store=memory) as session:
        name = outside.ask("ann", "Hello")
        session.approvals.approve(name)
        assert outside.ask("ann", "Hello!") != name
        assert outside.done == []
        assert outside.mail("ann", "Hello") == "mail 1 to ann: Hello"


def test_an_answer_is_for_its_own_session(memory: CheckpointManager) -> None:
    outside = Outside("idempotent")
    with Session("work", store=memory):
        name = outside.ask("ann")
    memory.fork("work", "branch")
    with Session("branch", store=memory) as branch:
        branch.approvals.approve(name)
        assert outside.ask("ann") != name


# -- edited --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyed", [True, False])
def test_the_approver_may_change_the_arguments(
    manager: CheckpointManager, kind: str, keyed: bool
) -> None:
    outside = Outside(kind, keyed)
    with Session("work", store=manager) as session:
        session.approvals.approve(outside.ask("ann", "Hey"), edit={"body": "Dear Ann"})
        assert outside.mail("ann", "Hey") == "mail 1 to ann: Dear Ann"
        assert session.calls[-1]["arguments"] == {"to": "ann", "body": "Dear Ann"}
    assert outside.done == [("ann", "Dear Ann")]


@pytest.mark.parametrize("keyed", [True, False])
def test_what_was_asked_for_gives_the_result_again(manager: CheckpointManager, keyed: bool) -> None:
    outside = Outside(keyed=keyed)
    with killed("work", manager):
        name = outside.ask("ann", "Hey")
        Approvals(manager.store).approve(name, edit={"to": "bob", "body": "Dear Bob"})
        assert outside.mail("ann", "Hey") == "mail 1 to bob: Dear Bob"
        raise Killed
    with Session("work", store=manager) as session:
        if keyed:
            assert outside.mail("ann", "Hey") == "mail 1 to bob: Dear Bob"
            with pytest.raises(EffectConflictError):
                outside.mail("bob", "something else")
        assert session.effects[0].words == "mail(to='bob', body='Dear Bob')"
    assert len(outside.done) == 1


def test_an_edit_into_what_was_done_already_is_refused(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        session.approvals.approve(outside.ask("bob"))
        outside.mail("bob")
        session.approvals.approve(outside.ask("ann"), edit={"to": "bob"})
        with pytest.raises(EffectConflictError, match="not repeated"):
            outside.mail("ann")
    assert len(outside.done) == 1


def test_an_edit_names_arguments_of_the_call(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        name = outside.ask("ann")
        with pytest.raises(InvalidInputError, match=r"no argument 'cc'; it has to, body"):
            session.approvals.approve(name, edit={"cc": "eve"})
        assert session.approvals.get(name).is_open


# -- expiry --------------------------------------------------------------------------------------


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the clock forward by an hour."""
    usual = time.time
    return lambda: monkeypatch.setattr(time, "time", lambda: usual() + 3600)


def test_a_request_expires(manager: CheckpointManager, an_hour_later: Callable[[], None]) -> None:
    outside = Outside(expires=1800)
    with Session("work", store=manager) as session:
        name = outside.ask("ann")
        an_hour_later()
        assert session.approvals.pending() == []
        with pytest.raises(ConflictError, match="expired"):
            session.approvals.approve(name)
        assert outside.ask("ann") != name


def test_an_answer_expires(memory: CheckpointManager, an_hour_later: Callable[[], None]) -> None:
    outside = Outside(expires=1800)
    with Session("work", store=memory) as session:
        name = outside.ask("ann")
        session.approvals.approve(name)
        an_hour_later()
        assert session.carry_out() == []
        assert outside.ask("ann") != name
    assert outside.done == []


# -- void ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["none", "approve", "deny"])
def test_a_rollback_makes_requests_void(manager: CheckpointManager, answer: str) -> None:
    outside = Outside()
    with Session("work", store=manager) as session:
        start = session.save()
        name = outside.ask("ann")
        if answer != "none":
            getattr(session.approvals, answer)(name)
        report = session.rollback(to=start)
        assert report.void == [name]
        assert session.approvals.get(name).status == "void"
        assert session.approvals.pending() == []
        assert session.carry_out() == []
        with pytest.raises(ConflictError, match="void"):
            session.approvals.approve(name)
        assert outside.ask("ann") != name
    assert outside.done == []


def test_undoing_the_rollback_brings_no_answer_back(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        start = session.save()
        name = outside.ask("ann")
        session.approvals.approve(name)
        session.rollback(to=start)
        session.undo()
        assert outside.ask("ann") != name


def test_a_rollback_leaves_the_requests_of_others(memory: CheckpointManager) -> None:
    outside = Outside("idempotent")
    with Session("work", store=memory) as session:
        start = session.save()
        memory.fork("work", "branch")
        with Session("branch", store=memory):
            name = outside.ask("ann")
        session.rollback(to=start)
        assert [request.id for request in session.approvals.pending()] == [name]


# -- used once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "read"])
def test_an_answer_to_a_local_call_is_used_once(manager: CheckpointManager, kind: str) -> None:
    outside = Outside(kind)
    with Session("work", store=manager) as session:
        name = outside.ask("ann")
        session.approvals.approve(name)
        outside.mail("ann")
        assert outside.ask("ann") != name
    assert len(outside.done) == 1


def test_also_if_the_tool_fails(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", approve=True, key=lambda: 1)
    def act() -> None:
        raise TimeoutError

    with Session("work", store=memory) as session:
        with pytest.raises(Suspended) as caught:
            act()
        session.approvals.approve(caught.value.approval_id)
        with pytest.raises(TimeoutError):
            act()
        assert session.carry_out() == []
        with pytest.raises(EffectUnknownError):
            act()


@pytest.mark.parametrize("how", ["call", "carry_out"])
@pytest.mark.parametrize("kind", KINDS)
def test_also_by_threads_that_come_at_once(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    from agent_checkpoint.session import tool_runner

    outside, barrier = Outside(kind), Barrier(2)
    original = tool_runner.call_arguments

    def call_arguments(*args: Any) -> Any:  # both have found the answer, and neither has used it
        with suppress(Exception):
            barrier.wait(0.2)
        return original(*args)

    def run() -> None:
        with suppress(ConflictError, EffectConflictError, Suspended):
            outside.mail("ann") if how == "call" else session.carry_out()

    with Session("work", store=memory) as session:
        session.approvals.approve(outside.ask("ann"))
        monkeypatch.setattr(tool_runner, "call_arguments", call_arguments)
        threads = [Thread(target=run) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert session._state.in_flight == []
    assert len(outside.done) == 1


@pytest.mark.parametrize("how", ["call", "carry_out"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_becomes_void_at_the_last_moment_is_not_used(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch, kind: str, how: str
) -> None:
    from agent_checkpoint.session import tool_runner

    outside, original = Outside(kind), tool_runner.call_arguments

    def call_arguments(*args: Any) -> Any:
        session.rollback(to=start)
        return original(*args)

    with Session("work", store=memory) as session:
        start = session.save()
        session.approvals.approve(outside.ask("ann"))
        monkeypatch.setattr(tool_runner, "call_arguments", call_arguments)
        with pytest.raises(ConflictError, match="void"):
            outside.mail("ann") if how == "call" else session.carry_out()
        assert statuses(session) == []
    assert outside.done == []


# -- carried out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyed", [True, False])
def test_carry_out_makes_the_calls(manager: CheckpointManager, kind: str, keyed: bool) -> None:
    outside = Outside(kind, keyed)
    with Session("work", store=manager) as session:
        names = [outside.ask("ann"), outside.ask("bob"), outside.ask("eve"), outside.ask("joe")]
    answers = Approvals(manager.store)
    answers.approve(names[0])
    answers.deny(names[1], "no")
    answers.approve(names[2], edit={"body": "Dear Eve"})
    with Session("work", store=manager) as session:
        assert session.carry_out() == [
            {"approval_id": names[0], "tool": "mail", "result": "mail 1 to ann: Hello"},
            {"approval_id": names[1], "tool": "mail", "denied": "no"},
            {"approval_id": names[2], "tool": "mail", "result": "mail 2 to eve: Dear Eve"},
        ]
        assert [row.get("result") for row in session.carry_out()] == [None]
        assert [row["tool"] for row in session.calls] == ["mail", "mail"]
        if kind not in ("local", "read"):
            assert outside.mail("ann") == "mail 1 to ann: Hello"
    assert len(outside.done) == 2


def test_carry_out_within_tasks_without_a_key(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with suppress(Suspended), Session("work", store=manager) as session:
        for task in session.tasks(["send"]):
            with task:
                outside.mail("ann")
    with Session("work", store=manager) as session:
        session.approvals.approve(session.approvals.pending()[0].id)
        assert session.carry_out()[0]["result"] == "mail 1 to ann: Hello"
        assert session.calls[-1]["task"] == "send"
        for task in session.tasks(["send"]):
            with task:
                assert outside.mail("ann") == "mail 1 to ann: Hello"
                assert outside.ask("ann")  # another one is another question
    assert len(outside.done) == 1


def test_what_is_carried_out_in_another_task_is_of_the_task_that_asked(
    memory: CheckpointManager,
) -> None:
    outside = Outside(keyed=False)
    with Session("work", store=memory) as session:
        for task in session.tasks(["send", "rest"]):
            with suppress(Suspended), task:
                if task.id == "send":
                    outside.mail("ann")
                session.approvals.approve(session.approvals.pending()[0].id)
                session.carry_out()
        assert [row["task"] for row in session.calls] == ["send"]
        assert [effect.task for effect in session.effects] == ["send"]


def test_carry_out_of_a_coroutine(manager: CheckpointManager) -> None:
    @tool(effect="irreversible", approve=True, key=lambda to: to)
    async def mail(to: str) -> str:
        await asyncio.sleep(0)
        done.append(to)
        return "to " + to

    async def inside() -> Any:
        return session.carry_out()

    done: list[str] = []
    with Session("work", store=manager) as session:
        for run in (session.carry_out, lambda: asyncio.run(inside())):
            to = f"ann {len(done)}"
            with pytest.raises(Suspended) as caught:
                asyncio.run(mail(to))
            session.approvals.approve(caught.value.approval_id)
            assert run()[0]["result"] == "to " + to
            assert asyncio.run(mail(to)) == "to " + to
    assert len(done) == 2


class Shop(Agent):
    @tool(effect="irreversible", approve=True, key=lambda order: order)
    def buy(self, order: int) -> int:
        self.memory.append(order)
        return order

    @tool(approve=True, name="renamed")
    def sell(self, order: int) -> int:
        self.memory.append(-order)
        return -order

    @classmethod
    @tool(approve=True)
    def close(cls, order: int) -> str:
        return f"{cls.__name__} {order}"


@pytest.mark.parametrize("part", ["agent", "shop"])
@pytest.mark.parametrize(("name", "result"), [("buy", 3), ("sell", -3), ("close", "Shop 3")])
def test_carry_out_of_methods(memory: CheckpointManager, part: str, name: str, result: Any) -> None:
    def parts_of(shop: Shop) -> Any:
        return {"agent": shop} if part == "agent" else {"parts": {"a": Shop(), "shop": shop}}

    shop = Shop()
    with Session("work", store=memory, **parts_of(shop)), pytest.raises(Suspended):
        getattr(shop, name)(3)
    shop = Shop()
    parts = parts_of(shop)
    with Session("work", store=memory, **parts) as session:
        session.approvals.approve(session.approvals.pending()[0].id)
        assert [row["result"] for row in session.carry_out()] == [result]
    assert shop.memory == ([] if name == "close" else [result])


def test_carry_out_of_a_method_that_no_part_has(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        with pytest.raises(Suspended) as caught:
            Shop().buy(3)
        session.approvals.approve(caught.value.approval_id)
        with pytest.raises(NotFoundError, match=r"'Shop\.buy'"):
            session.carry_out()
        assert session.approvals.get(caught.value.approval_id).status == "approved"


def test_carry_out_of_a_tool_that_is_not_here(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_checkpoint.session.tools import tool

    outside = Outside()
    with Session("work", store=memory) as session:
        session.approvals.approve(outside.ask("ann"))
        monkeypatch.setattr(tool, "_TOOLS", {})
        with pytest.raises(NotFoundError, match="Import"):
            session.carry_out()


ACT = "act"


def test_carry_out_goes_on_after_an_error_and_tells_it(memory: CheckpointManager) -> None:
    @tool(approve=True)
    def act(word: str) -> str:
        if word == "bad":
            raise LookupError("mine")
        return word

    with Session("work", store=memory) as session:
        for word in ("first", "bad", "last"):
            with pytest.raises(Suspended) as caught:
                act(word)
            session.approvals.approve(caught.value.approval_id)
        results = [
            {name: row[name] for name in row if name != "approval_id"}
            for row in session.carry_out()
        ]
        assert results == [
            {"tool": ACT, "result": "first"},
            {"tool": ACT, "error": "LookupError: mine"},
            {"tool": ACT, "result": "last"},
        ]
        assert session.calls[-2]["error"] == "LookupError: mine"


def test_an_async_approve_awaits_on_the_loop_of_the_caller(memory: CheckpointManager) -> None:
    asked: Any = {}

    async def approve(question: Any) -> bool:
        asked["future"] = asyncio.get_running_loop().create_future()
        return bool(await asked["future"])

    @tool(effect="irreversible", approve=approve)
    async def act() -> str:
        return "done"

    async def answer() -> None:
        while "future" not in asked:
            await asyncio.sleep(0.01)
        asked["future"].set_result(True)

    async def main() -> Any:
        async with Session("work", store=memory):
            return await asyncio.gather(act(), answer())

    assert asyncio.run(main()) == ["done", None]


# -- answers that cannot be carried out ----------------------------------------------------------


BAD = [
    (lambda to, **_: to["name"], {"to": "bob"}, "key= of the tool mail failed"),
    (lambda to, **_: to, {"to": object}, "would be pickled"),
]


@pytest.mark.parametrize(("key", "edit", "why"), BAD)
@pytest.mark.parametrize("how", ["call", "carry_out"])
def test_an_edit_that_has_no_key_is_told_once_and_void(
    manager: CheckpointManager, key: Any, edit: Any, why: str, how: str
) -> None:
    done: list[Any] = []

    @tool(effect="irreversible", approve=True, key=key, name="mail")
    def mail(to: Any) -> str:
        done.append(to)
        return "done"

    def ask() -> str:
        with pytest.raises(Suspended) as caught:
            mail({"name": "ann"})
        return caught.value.approval_id

    with Session("work", store=manager, pickles="allow") as session:
        name = ask()
        session.approvals.approve(name, edit=edit, by="eve")
        if how == "call":
            with pytest.raises(InvalidInputError, match=why):
                mail({"name": "ann"})
        else:
            (row,) = session.carry_out()
            assert row["approval_id"] == name
            assert why in row["error"]
        assert session.carry_out() == []
    with Session("work", store=manager) as session:
        request = session.approvals.get(name)
        assert (request.status, request.by) == ("void", "eve")
        assert str(request.reason).startswith("the approved call cannot run: ")
        assert why in str(request.reason)
        with pytest.raises(ConflictError, match="void"):
            session.approvals.approve(name)
        again = ask()
        assert again != name
        session.approvals.approve(again)
        assert [row["result"] for row in session.carry_out()] == ["done"]
    assert done == [{"name": "ann"}]


def test_an_edit_into_what_was_done_already_is_told_once_and_void(
    manager: CheckpointManager,
) -> None:
    outside = Outside()
    with Session("work", store=manager) as session:
        session.approvals.approve(outside.ask("bob"))
        outside.mail("bob")
        name = outside.ask("ann")
        session.approvals.approve(name, edit={"to": "bob"})
        assert "External side effects are not repeated" in session.carry_out()[0]["error"]
        assert session.carry_out() == []
        assert "External side effects are not repeated" in str(session.approvals.get(name).reason)
        assert outside.ask("ann") != name
    assert len(outside.done) == 1


def test_the_reason_of_a_refusal_stays_when_it_is_void(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        start = session.save()
        name = outside.ask("ann")
        session.approvals.deny(name, "too rude")
        session.rollback(to=start)
        request = session.approvals.get(name)
        assert (request.status, request.reason) == ("void", "too rude")


@pytest.mark.parametrize("by", [5, ["eve"], object(), "\ud800"])
def test_who_answers_is_named_by_text(memory: CheckpointManager, by: Any) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        name = outside.ask("ann")
        for verb in (session.approvals.approve, session.approvals.deny):
            with pytest.raises(InvalidInputError, match="by is "):
                verb(name, by=by)
        with pytest.raises(InvalidInputError, match="reason is 5"):
            session.approvals.deny(name, 5)  # type: ignore[arg-type]
        assert [request.id for request in session.approvals.pending()] == [name]


# -- inline --------------------------------------------------------------------------------------


async def _ayes(question: Any) -> bool:
    await asyncio.sleep(0)
    return True


async def _ano(question: Any) -> bool:
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("approve", [lambda question: True, _ayes, lambda question: "yes"])
def test_a_function_may_agree(memory: CheckpointManager, kind: str, approve: Any) -> None:
    outside = Outside(kind, approve=approve)
    with Session("work", store=memory) as session:
        assert outside.mail("ann") == "mail 1 to ann: Hello"
        assert session.approvals.pending() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("approve", [lambda question: False, _ano, lambda question: None])
def test_a_function_may_refuse(memory: CheckpointManager, kind: str, approve: Any) -> None:
    outside = Outside(kind, approve=approve)
    with Session("work", store=memory) as session:
        for _ in range(2):
            with pytest.raises(ApprovalDeniedError, match=r"mail was denied by .*approve="):
                outside.mail("ann")
        assert statuses(session) == []
        assert session._state.in_flight == []
    assert outside.done == []


def test_a_function_is_told_what_it_is_about(memory: CheckpointManager) -> None:
    asked = []

    def approve(question: Any) -> bool:
        asked.append((question.tool, question.arguments, question.task, question.words))
        question.arguments["to"] = "eve"  # this is no way to edit them
        return True

    outside = Outside(approve=approve)
    with Session("work", store=memory) as session:
        for task in session.tasks(["send"]):
            with task:
                assert outside.mail("ann") == outside.mail("ann") == "mail 1 to ann: Hello"
    arguments = {"to": "eve", "body": "Hello"}
    assert asked == [("mail", arguments, "send", "mail(to='ann', body='Hello')")]


def test_a_function_that_fails(memory: CheckpointManager) -> None:
    def approve(question: Any) -> bool:
        raise LookupError("nobody is there")

    outside = Outside(approve=approve)
    with Session("work", store=memory) as session:
        with pytest.raises(LookupError):
            outside.mail("ann")
        assert session._state.in_flight == []
    assert outside.done == []


def test_a_function_is_asked_for_coroutines_too(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", approve=_ayes)
    async def act() -> str:
        return "done"

    @tool(effect="irreversible", approve=_ano)
    async def refused() -> str:
        return "done"

    with Session("work", store=memory):
        assert asyncio.run(act()) == "done"
        with pytest.raises(ApprovalDeniedError):
            asyncio.run(refused())
