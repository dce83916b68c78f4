"""Effects: recorded before and after they are made, given back and never made twice."""

import asyncio
from threading import Barrier, Event, Lock, Thread
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    InvalidInputError,
    NotFoundError,
    Session,
    Suspended,
    tool,
)
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.store.ledger.ledger import Ledger
from tests.agents import Agent
from tests.unit.session.stores import Killed, killed, ledger_of, statuses

EXTERNAL_KINDS = ["idempotent", "reversible", "irreversible"]


class Outside:
    """The world: what was done in it, and tools that do it."""

    def __init__(self, kind: str = "irreversible", keyed: bool = True, **options: Any) -> None:
        self.done: list[Any] = []
        self.keys: list[str] = []
        if kind == "reversible":
            options.setdefault("undo", lambda to: self.done.remove(to))
        if keyed:
            options.setdefault("key", lambda to, **_: to)

        @tool(effect=kind, name="mail", **options)
        def mail(to: str, body: str = "", *, effect: Any) -> str:
            self.keys.append(effect.key)
            self.done.append(to)
            return f"mail {len(self.done)} to {to}"

        self.mail = mail


# -- started and committed -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXTERNAL_KINDS)
def test_started_is_durable_before_and_committed_after(
    manager: CheckpointManager, kind: str
) -> None:
    seen = []

    @tool(effect=kind, undo=print if kind == "reversible" else None)
    def act(number: int) -> int:
        (effect,) = ledger_of(session).state.effects.values()
        seen.append((effect.status, effect.kind, effect.tool, effect.session, effect.words))
        return number + 1

    with Session("work", store=manager) as session:
        assert act(1) == 2
        assert seen == [("unknown", kind, "act", "work", "act(number=1)")]
        assert statuses(session) == ["committed"]
        assert session.calls[0]["effect"] == session.effects[0].id
        assert session.calls[0]["replayed"] is False


@pytest.mark.parametrize("kind", ["local", "read"])
def test_what_is_not_outside_has_no_entry(manager: CheckpointManager, kind: str) -> None:
    @tool(effect=kind)
    def look() -> int:
        return 1

    with Session("work", store=manager) as session:
        assert (look(), look()) == (1, 1)
        assert statuses(session) == []
        assert len(session.calls) == 2


def test_the_effect_names_the_head_and_the_task(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        for task in session.tasks(["send"]):
            with task:
                head = session.head
                outside.mail("ann")
        (effect,) = session.effects
        assert (effect.at, effect.task) == (head, "send")


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_large_arguments_and_results_are_given_back(manager: CheckpointManager, size: int) -> None:
    @tool(effect="irreversible", key=lambda data: "one")
    def upload(data: bytes) -> "dict[str, Any]":
        called.append(1)
        return {"data": data, "text": "x" * size}

    called: list[int] = []
    data = bytes(size)
    with Session("work", store=manager):
        first = upload(data)
    with Session("work", store=manager):
        assert upload(data) == first
    assert called == [1]


# -- given back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXTERNAL_KINDS)
def test_the_same_key_and_arguments_give_the_result_back(
    manager: CheckpointManager, kind: str
) -> None:
    outside = Outside(kind)
    with Session("work", store=manager) as session:
        assert outside.mail("ann") == outside.mail("ann") == "mail 1 to ann"
        assert [row["replayed"] for row in session.calls] == [False, True]
    with Session("work", store=manager) as session:
        assert outside.mail(to="ann", body="") == "mail 1 to ann"
        assert statuses(session) == ["committed"]
    assert outside.done == ["ann"]


@pytest.mark.parametrize("kind", EXTERNAL_KINDS)
def test_the_same_key_with_other_arguments_is_a_conflict(
    manager: CheckpointManager, kind: str
) -> None:
    outside = Outside(kind)
    with Session("work", store=manager) as session:
        outside.mail("ann", "one")
        with pytest.raises(EffectConflictError, match=r"mail \[.*different\s+arguments"):
            outside.mail("ann", "two")
        assert outside.mail("bob", "two") == "mail 2 to bob"
        assert statuses(session) == ["committed", "committed"]


def test_keys_of_two_tools_do_not_meet(memory: CheckpointManager) -> None:
    def make(name: str) -> Any:
        @tool(effect="irreversible", key=lambda x: x, name=name)
        def act(x: int) -> str:
            return name

        return act

    with Session("work", store=memory):
        assert (make("one")(1), make("two")(1)) == ("one", "two")


@pytest.mark.parametrize("key", [None, 0, "", ("a", 1), {"a": {1, 2}}, b"x"])
def test_a_key_is_any_plain_value(memory: CheckpointManager, key: Any) -> None:
    outside = Outside(key=lambda **_: key)
    with Session("work", store=memory):
        assert outside.mail("ann") == outside.mail("ann")
    assert outside.done == ["ann"]


def test_a_key_that_cannot_be_compared_is_refused(memory: CheckpointManager) -> None:
    outside = Outside(key=lambda **_: Lock())
    with Session("work", store=memory) as session:
        with pytest.raises(InvalidInputError, match="key"):
            outside.mail("ann")
        assert statuses(session) == []
    assert outside.done == []


def test_arguments_that_cannot_be_compared_are_refused(memory: CheckpointManager) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        with pytest.raises(InvalidInputError, match="mail's arguments"):
            outside.mail("ann", object())  # type: ignore[arg-type]
        assert statuses(session) == []
        assert session._state.in_flight == []
    assert outside.done == []


def test_the_key_is_of_the_arguments_as_they_were(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda items: "one")
    def drain(items: "list[int]") -> int:
        number = len(items)
        items.clear()
        return number

    with Session("work", store=memory):
        assert drain([1, 2]) == 2
        assert drain([1, 2]) == 2
        with pytest.raises(EffectConflictError):
            drain([])


def test_a_result_that_is_changed_later_is_given_back_as_it_was(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda: 1)
    def act() -> "list[int]":
        return [1]

    with Session("work", store=memory):
        act().append(2)
        act().append(3)
        assert act() == [1]


def test_a_result_that_cannot_be_kept_is_told_and_not_made_up(manager: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda: 1)
    def act() -> Any:
        called.append(1)
        return Lock()

    called: list[int] = []
    with Session("work", store=manager) as session:
        act()
        assert statuses(session) == ["committed"]
    with (
        Session("work", store=manager),
        pytest.raises(EffectError, match=r"completed, but its result could not be encoded"),
    ):
        act()
    assert called == [1]


def test_a_method_has_effects_too(memory: CheckpointManager) -> None:
    class Shop(Agent):
        @tool(effect="irreversible", key=lambda order: order)
        def buy(self, order: int, *, effect: Any) -> Any:
            self.memory.append(order)
            return [order, effect.key]

    shop = Shop()
    with Session("work", store=memory, agent=shop):
        assert shop.buy(1) == shop.buy(1)
        assert shop.buy(1) != Shop().buy(1) == Shop().buy(1)  # which is no part
    assert shop.memory == [1]


def test_coroutines_have_effects_too(manager: CheckpointManager) -> None:
    @tool(effect="irreversible", key=lambda to: to)
    async def mail(to: str) -> str:
        done.append(statuses(session))
        await asyncio.sleep(0)
        return "to " + to

    async def main() -> None:
        assert await mail("ann") == await mail("ann") == "to ann"

    done: list[Any] = []
    with Session("work", store=manager) as session:
        asyncio.run(main())
        assert done == [["unknown"]]
        assert statuses(session) == ["committed"]


def test_effects_within_a_tool_are_recorded_at_once(memory: CheckpointManager) -> None:
    outside = Outside()

    @tool
    def outer() -> Any:
        return outside.mail("ann"), statuses(session)

    with Session("work", store=memory) as session:
        assert outer() == ("mail 1 to ann", ["committed"])
        assert outer()[0] == "mail 1 to ann"


# -- without a key -------------------------------------------------------------------------------


def test_two_equal_effects_that_are_meant_twice_are_two(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with Session("work", store=manager):
        assert outside.mail("ann") == "mail 1 to ann"
        assert outside.mail("ann") == "mail 2 to ann"
    with Session("work", store=manager):  # it knows of both: this is meant as a third
        assert outside.mail("ann") == "mail 3 to ann"


def test_after_a_crash_they_are_given_back_in_order(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with killed("work", manager, every="manual"):
        outside.mail("ann")
        outside.mail("ann")
        raise Killed
    with Session("work", store=manager):
        assert [outside.mail("ann") for _ in range(3)] == [
            "mail 1 to ann",
            "mail 2 to ann",
            "mail 3 to ann",
        ]
    assert len(outside.done) == 3


def test_after_a_rollback_they_are_given_back_in_order(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with Session("work", store=manager) as session:
        start = session.save()
        first = [outside.mail("ann") for _ in range(2)]
        session.rollback(to=start, effects="warn")
        assert len(session.notices) == 2
        assert outside.mail("ann") == first[0]
        assert len(session.notices) == 1
        assert outside.mail("ann") == first[1]
        assert session.notices == []
        assert outside.mail("ann") == "mail 3 to ann"


def test_after_a_rollback_between_them_the_first_is_known(memory: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with Session("work", store=memory) as session:
        outside.mail("ann")
        between = session.head
        outside.mail("ann")
        session.rollback(to=between, effects="warn")
        assert outside.mail("ann") == "mail 2 to ann"
    assert len(outside.done) == 2


def test_arguments_that_come_out_otherwise_are_another_effect(memory: CheckpointManager) -> None:
    """Without a key nothing tells that a text made anew is the same mail: only a notice does."""
    outside = Outside(keyed=False)
    with Session("work", store=memory) as session:
        start = session.save()
        outside.mail("ann", "Dear Ann")
        session.rollback(to=start, effects="warn")
        assert outside.mail("ann", "Hello Ann") == "mail 2 to ann"
        assert ["Dear Ann" in notice for notice in session.notices] == [True]


def test_with_a_key_arguments_that_come_out_otherwise_are_caught(
    memory: CheckpointManager,
) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        start = session.save()
        outside.mail("ann", "Dear Ann")
        session.rollback(to=start, effects="warn")
        with pytest.raises(EffectConflictError, match="different arguments"):
            outside.mail("ann", "Hello Ann")
    assert outside.done == ["ann"]


def test_the_task_is_a_part_of_what_it_is(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with Session("work", store=manager) as session:
        for task in session.tasks(["one", "two"]):
            with task:
                outside.mail("ann")
        outside.mail("ann")
    assert len(outside.done) == 3


def test_a_task_that_is_run_again_gets_its_results_again(manager: CheckpointManager) -> None:
    outside = Outside(keyed=False)
    with killed("work", manager) as session:
        for task in session.tasks(["one", "two"]):
            with task:
                outside.mail("ann")
                outside.mail("ann")
                if task.id == "two":
                    raise Killed
    with Session("work", store=manager) as session:
        found = []
        for task in session.tasks(["one", "two"]):
            with task:
                found = [outside.mail("ann") for _ in range(3)]
    assert found == ["mail 3 to ann", "mail 4 to ann", "mail 5 to ann"]


# -- at the same time ----------------------------------------------------------------------------


def test_parallel_effects_that_finish_in_another_order(manager: CheckpointManager) -> None:
    @tool(effect="irreversible")
    async def mail(to: str) -> str:
        if to == "ann":
            await bob_has_it[-1].wait()
        done.append(to)
        bob_has_it[-1].set()
        return f"to {to}"

    async def both() -> Any:
        bob_has_it.append(asyncio.Event())
        return await asyncio.gather(mail("ann"), mail("bob"))

    done: list[str] = []
    bob_has_it: list[asyncio.Event] = []
    with killed("work", manager, every="manual"):
        asyncio.run(both())
        raise Killed
    assert done == ["bob", "ann"]
    with Session("work", store=manager):
        assert asyncio.run(both()) == ["to ann", "to bob"]
    assert len(done) == 2


def test_two_threads_make_a_keyed_effect_once(manager: CheckpointManager) -> None:
    barrier, slow = Barrier(4), Event()

    @tool(effect="irreversible", key=lambda: "one")
    def act() -> str:
        done.append(1)
        slow.wait(0.05)
        return "done"

    def run() -> None:
        barrier.wait()
        try:
            found.append(act())
        except EffectConflictError as error:
            found.append(str(error))

    done: list[int] = []
    found: list[str] = []
    with Session("work", store=manager):
        threads = [Thread(target=run) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert act() == "done"
    assert done == [1]
    assert "done" in found
    assert all(
        text == "done" or "running in another call" in text or "not repeated" in text
        for text in found
    )


def test_of_two_equal_ones_at_once_the_one_that_failed_is_the_one_made_again(
    memory: CheckpointManager,
) -> None:
    """What the other gave is not taken for its result."""
    begun: list[str] = []
    go_on = Event()

    @tool(effect="irreversible")
    def mail(effect: Any) -> str:
        begun.append(effect.key)
        if len(begun) == 1:
            go_on.wait(10)
            effect.not_done()
            raise TimeoutError
        return f"mail {len(begun)}"

    def first() -> None:
        with pytest.raises(TimeoutError):
            mail()

    with Session("work", store=memory):
        thread = Thread(target=first)
        thread.start()
        while not begun:
            pass
        assert mail() == "mail 2"
        go_on.set()
        thread.join()
        assert mail() == "mail 3"
        assert begun[2] == begun[0] != begun[1]
        assert mail() == "mail 4"


@pytest.mark.parametrize("verified", [True, False])
def test_nobody_asks_about_an_effect_that_has_just_been_started(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch, verified: bool
) -> None:
    done: list[int] = []
    found: list[Any] = []

    def verify() -> Any:
        return "there" if done else None

    @tool(effect="irreversible", key=lambda: 1, verify=verify if verified else None)
    def act() -> str:
        done.append(1)
        return "done"

    original = Ledger.append

    def append(self: Ledger, what: str, /, **record: Any) -> int:
        seq = original(self, what, **record)
        if what == "started" and not found:
            found.append(None)
            thread = Thread(target=other)  # it comes in at the worst of all moments
            thread.start()
            thread.join()
        return seq

    def other() -> None:
        try:
            found.append(act())
        except (EffectConflictError, EffectUnknownError) as error:
            found.append(type(error))

    monkeypatch.setattr(Ledger, "append", append)
    with Session("work", store=memory):
        assert act() == "done"
    assert done == [1]
    assert found == [None, EffectConflictError]


def test_a_start_that_was_refused_is_not_under_way(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Outside()
    with Session("work", store=memory) as session:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "append", lambda *args, **kwargs: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                outside.mail("ann")
        assert isinstance(session._state.effects, Effects)
        assert not session._state.effects.in_progress
        assert outside.mail("ann") == "mail 1 to ann"


# -- whose effect it is --------------------------------------------------------------------------


class Teller(Agent):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def refund(self, order: str) -> None:
        self.memory.append("-" + order)

    @tool(effect="reversible", key=lambda order: order, undo=refund)
    def charge(self, order: str) -> str:
        self.memory.append("+" + order)
        return self.name

    @tool(effect="irreversible")
    def send(self, order: str) -> str:
        self.memory.append(order)
        return self.name


def test_parts_of_one_class_have_effects_of_their_own(memory: CheckpointManager) -> None:
    one, two = Teller("one"), Teller("two")
    log: Any = []
    with Session("work", store=memory, parts={"one": one, "two": two}) as session:
        target = session.save()
        assert [two.charge("o"), one.charge("o"), two.charge("o")] == ["two", "one", "two"]
        assert [two.send("x"), one.send("x")] == ["two", "one"]
        assert [effect.part for effect in session.effects] == ["two", "one", "two", "one"]
        for effect in session.effects[:2]:
            session._state.effects.outcomes.undo(effect)
        log = [one.memory[:], two.memory[:]]
        session.rollback(to=target, effects="warn")
        assert [one.send("x"), two.send("x")] == ["one", "two"]
    assert log == [["+o", "x", "-o"], ["+o", "x", "-o"]]


def test_what_no_part_did_is_undone_on_none(memory: CheckpointManager) -> None:
    one = Teller("one")
    with Session("work", store=memory, agent=one) as session:
        assert Teller("other").charge("o") == "other"
        with pytest.raises(EffectError, match="No part of the session"):
            session._state.effects.outcomes.undo(session.effects[0])
    assert one.memory == []


def test_an_owner_that_is_not_named_must_be_the_only_one(memory: CheckpointManager) -> None:
    one, two = Teller("one"), Teller("two")
    spec = Teller.charge.tool  # type: ignore[attr-defined]
    with Session("a", store=memory, agent=one) as session:
        assert session._state.owner(spec) is one
    with Session("b", store=memory, parts={"one": one, "two": two}) as session:
        assert session._state.owner(spec, "two") is two
        with pytest.raises(NotFoundError, match="Several"):
            session._state.owner(spec)
        with pytest.raises(NotFoundError, match="'three'"):
            session._state.owner(spec, "three")


@pytest.mark.parametrize("approve", [False, True])
def test_tools_of_one_name_in_two_modules_do_not_get_each_others_results(
    memory: CheckpointManager, approve: bool
) -> None:
    def made(module: str) -> Any:
        def send(order: str) -> str:
            return module

        send.__module__ = module
        options: Any = {"effect": "irreversible", "key": lambda order: order}
        return tool(name="send in two", approve=approve, **options)(send)

    mail, sms = made("shop.mail"), made("shop.sms")
    with Session("work", store=memory):
        if approve:
            with pytest.raises(Suspended):
                mail("o")
        else:
            assert mail("o") == mail("o") == "shop.mail"
        with pytest.raises(EffectConflictError, match=r"shop\.mail.*name="):
            sms("o")
