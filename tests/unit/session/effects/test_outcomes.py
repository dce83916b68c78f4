"""Effects of which it is not known whether they happened, and effects that are undone."""

import asyncio
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    EffectConflictError,
    EffectError,
    EffectUnknownError,
    NotFoundError,
    RollbackRefusedError,
    Session,
    tool,
)
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.effects.effect_context import ToolCall
from tests.unit.session.stores import Killed, killed, ledger_of, statuses


class Outside:
    """A world in which the first call breaks, before or after it did something."""

    def __init__(self, kind: str, *, breaks: str = "after", error: Any = None, **options: Any):
        self.done: list[str] = []
        self.keys: list[str] = []
        self.breaks: str = breaks
        error = error or TimeoutError("no answer")
        if kind == "reversible":
            options.setdefault("undo", self.undo)

        @tool(effect=kind, key=lambda order, **_: order, name="charge", **options)
        def charge(order: str, cents: int = 5, *, effect: Any) -> str:
            self.keys.append(effect.key)
            if self.breaks == "before":
                self.breaks = ""
                raise error
            if self.breaks == "not_done":
                self.breaks = ""
                effect.not_done()
                raise error
            self.done.append(order)
            if self.breaks == "after":
                self.breaks = ""
                raise error
            return f"charge {len(self.done)}"

        self.charge = charge

    def undo(self, order: str) -> None:
        self.done.remove(order)

    def found(self, order: str) -> Any:
        return f"found {order}" if order in self.done else None


# -- the tool raises -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reversible", "irreversible"])
@pytest.mark.parametrize("breaks", ["before", "after"])
def test_without_verify_nobody_knows(manager: CheckpointManager, kind: str, breaks: str) -> None:
    outside = Outside(kind, breaks=breaks)
    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert statuses(session) == ["unknown"]
        before = list(outside.done)
        for _ in range(2):
            with pytest.raises(EffectUnknownError, match=r"charge \[[0-9a-f]{8}\] .*resolve"):
                outside.charge("a")
        assert outside.done == before
        assert ["outcome unknown" in notice for notice in session.notices] == [True]
    with Session("work", store=manager) as session:
        assert ["outcome unknown" in notice for notice in session.notices] == [True]
        with pytest.raises(EffectUnknownError):
            outside.charge("a")


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_an_idempotent_one_is_tried_again_with_the_same_key(
    manager: CheckpointManager, breaks: str
) -> None:
    outside = Outside("idempotent", breaks=breaks)
    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert outside.charge("a").startswith("charge")
        assert outside.charge("a").startswith("charge")
        assert statuses(session) == ["committed"]
    assert len(outside.keys) == 2
    assert len(set(outside.keys)) == 1


@pytest.mark.parametrize("kind", ["idempotent", "reversible", "irreversible"])
def test_verify_finds_that_it_happened(manager: CheckpointManager, kind: str) -> None:
    outside = Outside(kind, verify=lambda order: outside.found(order))
    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert statuses(session) == ["committed"]
        assert outside.charge("a") == "found a"
    assert len(outside.keys) == 1


@pytest.mark.parametrize("kind", ["idempotent", "reversible", "irreversible"])
def test_verify_finds_that_it_did_not(manager: CheckpointManager, kind: str) -> None:
    outside = Outside(kind, breaks="before", verify=lambda order: outside.found(order))
    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert statuses(session) == ["failed"]
        assert outside.charge("a") == "charge 1"
        assert statuses(session) == ["failed", "committed"]
    assert outside.keys[0] == outside.keys[1]


def test_verify_may_return_anything_but_none(memory: CheckpointManager) -> None:
    outside = Outside("irreversible", verify=lambda order: 0)
    with Session("work", store=memory):
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert outside.charge("a") == 0


def test_verify_gets_the_arguments_and_the_effect(memory: CheckpointManager) -> None:
    seen = []

    def verify(cents: int, order: str, effect: Any) -> None:
        seen.append((order, cents, effect.key))

    outside = Outside("irreversible", verify=verify)
    with Session("work", store=memory), pytest.raises(TimeoutError):
        outside.charge("a", 7)
    assert seen == [("a", 7, outside.keys[0])]


def test_verify_that_fails_leaves_it_unknown(manager: CheckpointManager) -> None:
    answers: list[Any] = [OSError("down"), OSError("down"), OSError("down"), "there"]

    def verify(order: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    outside = Outside("irreversible", verify=verify)
    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert statuses(session) == ["unknown"]
        with pytest.raises(EffectUnknownError, match=r"verify= failed \(OSError\)"):
            outside.charge("a")
    with Session("work", store=manager) as session:  # opening asks again, and goes on without
        assert statuses(session) == ["unknown"]
        assert outside.charge("a") == "there"
        assert session.notices == []


def test_an_async_verify(memory: CheckpointManager) -> None:
    async def verify(order: str) -> Any:
        await asyncio.sleep(0)
        return outside.found(order)

    outside = Outside("irreversible", verify=verify)
    with Session("work", store=memory):
        with pytest.raises(TimeoutError):
            outside.charge("a")
        assert outside.charge("a") == "found a"


def test_an_async_verify_of_an_async_tool(memory: CheckpointManager) -> None:
    async def verify(order: str) -> Any:
        return "found " + order

    @tool(effect="irreversible", key=lambda order: order, verify=verify)
    async def charge(order: str) -> str:
        raise TimeoutError

    async def main() -> Any:
        with pytest.raises(TimeoutError):
            await charge("a")
        return await charge("a")

    with Session("work", store=memory):
        assert asyncio.run(main()) == "found a"


@pytest.mark.parametrize("kind", ["reversible", "irreversible"])
@pytest.mark.parametrize("error", [TimeoutError("refused"), KeyboardInterrupt()])
def test_a_tool_may_say_that_nothing_happened(
    manager: CheckpointManager, kind: str, error: BaseException
) -> None:
    outside = Outside(kind, breaks="not_done", error=error)
    with Session("work", store=manager) as session:
        with pytest.raises(type(error)):
            outside.charge("a")
        assert statuses(session) == ["failed"]
        assert outside.charge("a") == "charge 1"
    assert len(set(outside.keys)) == 1


def test_without_a_key_what_failed_is_tried_again_and_not_passed_over(
    memory: CheckpointManager,
) -> None:
    fails = [True, False, False]

    @tool(effect="irreversible")
    def act(effect: Any) -> str:
        if fails.pop(0):
            effect.not_done()
            raise TimeoutError
        done.append(effect.key)
        return f"{len(done)}"

    done: list[str] = []
    with Session("work", store=memory):
        with pytest.raises(TimeoutError):
            act()
        assert (act(), act()) == ("1", "2")
    assert len(set(done)) == 2


# -- the process is killed -----------------------------------------------------------------------


def test_what_was_started_is_unknown_after_a_crash(manager: CheckpointManager) -> None:
    outside = Outside("irreversible", error=Killed())
    with killed("work", manager):
        outside.charge("a")
    with Session("work", store=manager) as session:
        assert statuses(session) == ["unknown"]
        assert "outcome unknown" in session.notices[0]
        with pytest.raises(EffectUnknownError):
            outside.charge("a")
    assert outside.done == ["a"]


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_verify_is_asked_when_the_session_is_opened(
    manager: CheckpointManager, breaks: str
) -> None:
    outside = Outside(
        "irreversible", error=Killed(), breaks=breaks, verify=lambda order: outside.found(order)
    )
    with killed("work", manager):
        outside.charge("a")
    with Session("work", store=manager) as session:
        assert statuses(session) == ["committed" if breaks == "after" else "failed"]
        assert outside.charge("a") == ("found a" if breaks == "after" else "charge 1")
    assert outside.done == ["a"]


def test_an_idempotent_one_is_repeated_after_a_crash(manager: CheckpointManager) -> None:
    outside = Outside("idempotent", error=Killed())
    with killed("work", manager):
        outside.charge("a")
    with Session("work", store=manager) as session:
        assert outside.charge("a") == "charge 2"
        assert statuses(session) == ["committed"]
    assert len(set(outside.keys)) == 1


def test_a_crash_between_doing_and_saving_is_no_harm(manager: CheckpointManager) -> None:
    outside = Outside("irreversible", breaks="")
    with killed("work", manager, every="manual"):
        outside.charge("a")
        raise Killed
    with Session("work", store=manager):
        assert outside.charge("a") == "charge 1"
    assert outside.done == ["a"]


def test_a_checkpoint_taken_meanwhile_does_not_hide_a_call_in_flight(
    memory: CheckpointManager,
) -> None:
    """Without a key the number of a call tells it; that of one in flight is not used up."""
    done = []

    @tool
    async def quick() -> None:
        pass

    @tool(effect="irreversible")
    async def slow() -> None:
        done.append(1)
        await quick_is_saved.wait()
        raise Killed

    async def both() -> None:
        nonlocal quick_is_saved
        quick_is_saved = asyncio.Event()
        running = asyncio.ensure_future(slow())
        while not done:
            await asyncio.sleep(0.001)
        await quick()
        quick_is_saved.set()
        await running

    quick_is_saved: Any = None
    with killed("work", memory):
        asyncio.run(both())
    with Session("work", store=memory), pytest.raises(EffectUnknownError):
        asyncio.run(slow())
    assert done == [1]


# -- a person decides ----------------------------------------------------------------------------


def unknown(manager: CheckpointManager, outside: Outside) -> str:
    with killed("work", manager):
        outside.charge("a")
    with Session("work", store=manager) as session:
        return session.effects[0].id


def test_a_person_says_that_it_happened(manager: CheckpointManager) -> None:
    outside = Outside("irreversible", error=Killed())
    name = unknown(manager, outside)
    with Session("work", store=manager) as session:
        session.resolve(name, happened=True, result="seen", note="on the statement")
        assert (
            "still in place, although the session's state does not contain it" in session.notices[0]
        )
        assert session.effects[0].note == "on the statement"
        assert outside.charge("a") == "seen"
        assert session.notices == []
    assert outside.done == ["a"]


def test_a_person_says_that_it_did_not(manager: CheckpointManager) -> None:
    outside = Outside("irreversible", error=Killed(), breaks="before")
    name = unknown(manager, outside)
    with Session("work", store=manager) as session:
        session.resolve(name, happened=False)
        assert session.notices == []
        assert outside.charge("a") == "charge 1"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_it_is_said_once(memory: CheckpointManager, first: bool, second: bool) -> None:
    name = unknown(memory, Outside("irreversible", error=Killed()))
    with Session("work", store=memory) as session:
        session.resolve(name, happened=first)
        with pytest.raises(EffectError, match="is already recorded as"):
            session.resolve(name, happened=second)
        assert statuses(session) == ["committed" if first else "failed"]


def test_there_must_be_such_an_effect(memory: CheckpointManager) -> None:
    session = Session("work", store=memory)
    with session, pytest.raises(NotFoundError, match="no effect 'none'"):
        session.resolve("none", happened=True)


def test_nothing_is_to_be_said_of_what_is_known(memory: CheckpointManager) -> None:
    outside = Outside("irreversible", breaks="")
    with Session("work", store=memory) as session:
        outside.charge("a")
        with pytest.raises(EffectError, match="committed"):
            session.resolve(session.effects[0].id, happened=False)


# -- undo ----------------------------------------------------------------------------------------


def compensated(manager: CheckpointManager, outside: Outside) -> Session:
    session = Session("work", store=manager)
    with as_current(session._tools):
        start = session.save()
        outside.charge("a")
        session.rollback(to=start, effects="compensate")
    return session


def test_what_was_undone_may_be_done_again_with_another_key(manager: CheckpointManager) -> None:
    outside = Outside("reversible", breaks="")
    with compensated(manager, outside) as session:
        assert outside.done == []
        assert statuses(session) == ["undone"]
        assert session.notices == []
        assert outside.charge("a", 9) == "charge 1"  # with other arguments, too
        assert outside.keys[0] != outside.keys[1]
        assert statuses(session) == ["undone", "committed"]


def test_each_time_it_has_another_key(memory: CheckpointManager) -> None:
    outside = Outside("reversible", breaks="")
    for _ in range(3):
        compensated(memory, outside).close()
    assert len(set(outside.keys)) == 3


def test_an_async_undo(memory: CheckpointManager) -> None:
    async def undo(order: str) -> None:
        await asyncio.sleep(0)
        outside.done.remove(order)

    outside = Outside("reversible", breaks="", undo=undo)
    compensated(memory, outside).close()
    assert outside.done == []


UNDO: "list[tuple[Any, Any]]" = [
    (lambda order, cents: (order, cents), ("a", 5)),
    (lambda cents: cents, 5),
    (lambda order, result: (order, result), ("a", "charge 1")),
    (lambda charge_id: charge_id, "charge 1"),
    (lambda **rest: rest, {"order": "a", "cents": 5}),
    (lambda result, **rest: (result, rest), ("charge 1", {"order": "a", "cents": 5})),
    (lambda effect: effect.key, "KEY"),
    (lambda: None, None),
]


@pytest.mark.parametrize(("undo", "given"), UNDO)
def test_undo_gets_what_it_takes(memory: CheckpointManager, undo: Any, given: Any) -> None:
    import functools

    seen = []

    @functools.wraps(undo)
    def spy(*args: Any, **kwargs: Any) -> None:
        seen.append(undo(*args, **kwargs))

    outside = Outside("reversible", breaks="", undo=spy)
    compensated(memory, outside).close()
    assert seen == [outside.keys[0] if given == "KEY" else given]


def half_undone(manager: CheckpointManager) -> "tuple[Outside, Session]":
    def undo(order: str) -> None:
        raise OSError("no connection")

    outside = Outside("reversible", breaks="", undo=undo)
    with pytest.raises(RollbackRefusedError, match=r"undo= of charge .* failed: OSError"):
        compensated(manager, outside)
    return outside, Session("work", store=manager)


def test_an_undo_that_fails_leaves_it_to_a_person(manager: CheckpointManager) -> None:
    outside, session = half_undone(manager)
    with session:
        assert statuses(session) == ["undoing"]
        assert "compensation was interrupted" in session.notices[0]
        with pytest.raises(EffectUnknownError):
            outside.charge("a")


def test_a_person_says_that_it_still_stands(manager: CheckpointManager) -> None:
    outside, session = half_undone(manager)
    with session:
        session.resolve(session.effects[0].id, happened=True)
        assert statuses(session) == ["committed"]
        assert outside.charge("a") == "charge 1"  # the result is known, and not lost by that


def test_a_person_says_that_it_is_undone(manager: CheckpointManager) -> None:
    outside, session = half_undone(manager)
    with session:
        session.resolve(session.effects[0].id, happened=False)
        assert statuses(session) == ["undone"]
        outside.charge("a")
        assert outside.keys[0] != outside.keys[1]  # else the other side would give the first back


class Shop(Checkpointable):
    """Its tools, and what undoes and checks them, are methods."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def refund(self, order: str) -> None:
        self.charged.remove(order)

    def find(self, order: str) -> "str | None":
        return "found" if order in self.charged else None

    @tool(effect="reversible", key=lambda order: order, undo=refund, verify=find)
    def charge(self, order: str, *, fails: bool = False) -> str:
        self.charged.append(order)
        if fails:
            raise TimeoutError
        return "charged"


def test_methods_undo_and_verify_what_a_method_did(memory: CheckpointManager) -> None:
    shop = Shop()
    with Session("work", agent=shop, store=memory) as session:
        start = session.save()
        shop.charge("a")
        with pytest.raises(TimeoutError):
            shop.charge("b", fails=True)
        assert [effect.status for effect in session.effects] == ["committed", "committed"]
        refunded = shop.charged
        session.rollback(to=start, effects="compensate")
        assert refunded == []


# -- what comes too late -------------------------------------------------------------------------


def test_what_a_person_said_is_not_overridden(manager: CheckpointManager) -> None:
    world = Outside("irreversible", verify=lambda order: None)
    with killed("work", manager) as old, pytest.raises(Killed):
        world.breaks = ""
        effect = old._state.effects.decide(
            ToolCall(world.charge.tool, None, {"order": "o", "cents": 5}, identity="i", digest="d"),
            at="",
        ).effect
        raise Killed
    new = Session("work", store=manager)
    assert statuses(new) == ["failed"]
    old._state.effects.outcomes.commit(effect, "done")
    assert statuses(new) == ["committed"]
    assert "declared not done" in new.effects[0].note
    assert any("succeeded after it had been recorded as failed" in notice for notice in new.notices)
    old._state.effects.outcomes.fail(effect, "late")
    old._state.effects.outcomes.commit(effect, "again")
    assert statuses(new) == ["committed"]
    assert new._state.effects.outcomes.result(new.effects[0]) == "done"
    new.close()


def test_a_late_failure_does_not_override_what_is_known(manager: CheckpointManager) -> None:
    def check(to: str) -> None:  # and meanwhile a person says otherwise, elsewhere
        ledger = ledger_of(session)
        (effect,) = ledger.state.effects.values()
        parts = {"result": encode("by hand")}
        ledger.append("resolved", effect=effect.id, happened=True, note="", parts=parts)

    @tool(effect="irreversible", key=lambda to: to, verify=check)
    def send(to: str) -> str:
        raise TimeoutError

    with Session("work", store=manager) as session:
        with pytest.raises(TimeoutError):
            send("bob")
        assert statuses(session) == ["committed"]
        assert send("bob") == "by hand"


def test_only_what_was_done_is_undone_and_once(memory: CheckpointManager) -> None:
    undone: list[str] = []

    @tool(effect="reversible", undo=lambda order: undone.append(order))
    def book(order: str) -> str:
        return order

    with Session("work", store=memory) as session:
        book("o")
        effect = session.effects[0]
        session._state.effects.outcomes.undo(effect)
        with pytest.raises(EffectError, match="it is undone"):
            session._state.effects.outcomes.undo(effect)
        with pytest.raises(EffectConflictError, match="Check whether"):
            session._state.effects.outcomes.commit(effect, "late")
    assert undone == ["o"]
