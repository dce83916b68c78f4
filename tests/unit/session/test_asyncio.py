"""Sessions inside asyncio: coroutine tools, several at once, cancelled ones, two sessions."""

import asyncio
import threading
import time

import pytest

from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.errors import ConflictError, InvalidInputError, Suspended
from agent_checkpoint.session.current_session import as_current, current_session
from tests.agents import Agent

_done = []


@pytest.fixture(autouse=True)
def nothing_done():
    _done.clear()


@tool
async def think(agent, seconds):
    await asyncio.sleep(seconds)
    agent.memory.append(seconds)
    return seconds


@tool
def note(agent, words):
    agent.memory.append(words)
    return words


@tool(effect="irreversible")
async def send(words, seconds=0.0, *, effect):
    await asyncio.sleep(seconds)
    _done.append((words, effect.key))
    return f"sent {words}"


@tool(effect="irreversible", key=lambda words: words)
async def send_once(words):
    await asyncio.sleep(0.002)
    _done.append(words)
    return f"sent {words}"


@tool(effect="irreversible")
async def send_and_wait(words):
    _done.append(words)
    await asyncio.sleep(60)


def kinds(session):
    return [row["kind"] for row in reversed(session.history())]


def test_it_resumes(store, place):
    async def first():
        agent = Agent()
        async with Session("job", agent=agent, workspace=place, store=store) as session:
            for task in session.tasks(["one", "two"]):
                with task:
                    (place / f"{task.id}.txt").write_text(task.id)
                    assert await think(agent, 0.001) == 0.001
                    note(agent, task.id)
                    assert await send(task.id) == f"sent {task.id}"
            assert await session.asave(label="by hand") == session.head
            return session.head

    async def second():
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            assert session.resumed
            assert agent.memory == [0.001, "one", 0.001, "two"]
            assert [row["tool"] for row in session.calls] == ["think", "note", "send"] * 2
            assert [row["task"] for row in session.calls] == ["one"] * 3 + ["two"] * 3
            assert list(session.tasks(["one", "two"])) == []
            assert "by hand" in [row["label"] for row in session.history()]
            assert session.manager.verify().ok

    asyncio.run(first())
    assert [words for words, _ in _done] == ["one", "two"]
    asyncio.run(second())


def test_several_tools_at_once(store):
    async def main():
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            session.save()
            slow, fast = 0.15, 0.01
            assert await asyncio.gather(think(agent, slow), think(agent, fast)) == [slow, fast]
            assert agent.memory == [fast, slow]
            assert [row["result"] for row in session.calls] == [fast, slow]
            assert kinds(session) == ["open", "save", "in_flight", "save"]
            session.rollback()
            assert agent.memory == []
            session.undo()
            results = await asyncio.gather(*(send(f"{n}", 0.01 * (9 - n)) for n in range(9)))
            assert results == [f"sent {n}" for n in range(9)]
            assert len({key for _, key in _done}) == len(_done) == 9
            assert len(session.calls) == 11
            assert session.history(1)[0]["kind"] == "save"

    asyncio.run(main())


def test_two_equal_effects_at_once_are_two(store):
    async def main():
        async with Session("job", store=store):
            assert await asyncio.gather(send("a", 0.02), send("a", 0.01)) == ["sent a"] * 2

    asyncio.run(main())
    assert len({key for _, key in _done}) == 2


def test_a_cancelled_tool_leaves_nothing_running(store):
    async def main():
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            session.save()
            task = asyncio.ensure_future(think(agent, 60))
            while not session._state.in_flight:
                await asyncio.sleep(0.01)
            with pytest.raises(ConflictError, match="running: think"):
                session.rollback()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert list(session.calls) == []
            session.save()
            assert session.history(1)[0]["kind"] == "save"
            session.rollback()

    asyncio.run(main())


def test_a_cancelled_effect_is_unknown(store):
    async def main():
        async with Session("job", store=store) as session:
            task = asyncio.ensure_future(send_and_wait("a"))
            while not _done:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (notice,) = session.notices
            assert "outcome unknown" in notice
            session.resolve(session.effects[0].id, happened=True)
            (notice,) = session.notices
            assert "still in place, although the session's state does not contain it" in notice

    asyncio.run(main())
    assert _done == ["a"]


def test_cancelled_at_any_moment_it_can_go_on(store):
    """Whatever it was doing: calling, noting, saving. All that is known is right."""

    async def main():
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            for number in range(25):
                task = asyncio.ensure_future(send_once(f"{number}"))
                await asyncio.sleep(0.0007 * number)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                    raise asyncio.CancelledError  # it was done before
                assert session._state.in_flight == []
            for effect in session.effects:
                happened = effect.words in {f"send_once(words='{words}')" for words in _done}
                if effect.status == "committed":
                    assert happened
                elif effect.status == "failed":
                    assert not happened
                else:
                    assert effect.status == "unknown"
                    session.resolve(effect.id, happened=happened)
            for number in range(25):
                await send_once(f"{number}")
            assert sorted(_done) == sorted(f"{number}" for number in range(25))
            assert session.manager.verify().ok

    asyncio.run(main())


def test_an_error_of_a_coroutine_is_recorded(store):
    @tool
    async def fail():
        raise ValueError("oh no")

    async def main():
        async with Session("job", store=store) as session:
            with pytest.raises(ValueError, match="oh no"):
                await fail()
            assert session.calls[-1]["error"] == "ValueError: oh no"

    asyncio.run(main())


def test_two_sessions_in_two_tasks(store):
    async def work(key, manager, seconds):
        agent = Agent()
        async with Session(key, agent=agent, store=manager) as session:
            for number in range(5):
                assert current_session() is session._tools
                await think(agent, seconds)
                note(agent, f"{key} {number}")
                await send(f"{key} {number}")
                assert current_session() is session._tools
            return session.key, agent.memory, len(session.calls), len(session.effects)

    async def main():
        async with Session("outer", store=store) as outer:
            manager = outer.manager
            found = await asyncio.gather(
                work("a", manager, 0.003), work("b", manager, 0.002), work("c", manager, 0.001)
            )
            assert current_session() is outer._tools
            assert list(outer.calls) == []
        return found

    for key, memory, calls, effects in asyncio.run(main()):
        assert [words for words in memory if isinstance(words, str)] == [
            f"{key} {number}" for number in range(5)
        ]
        assert (calls, effects) == (15, 5)
    assert current_session() is None


def test_tools_in_the_threads_of_a_loop(store):
    async def main():
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            await asyncio.gather(*(asyncio.to_thread(note, agent, n) for n in range(20)))
            assert sorted(agent.memory) == list(range(20))
            assert len(session.calls) == 20
            assert session.history(1)[0]["kind"] == "save"

    asyncio.run(main())


def test_the_state_is_that_of_the_call(store):
    """What is changed while a save is being written is not in it."""

    async def main():
        agent = Agent(1)
        async with Session("job", agent=agent, store=store) as session:
            first = asyncio.ensure_future(session.asave(label="first"))
            await asyncio.sleep(0)
            agent.count = 2
            session.messages.append("later")
            second = asyncio.ensure_future(session.asave(label="second"))
            await asyncio.sleep(0)
            agent.count = 3
            ids = [await first, await second]
            states = [session.manager.state_dict("job", checkpoint_id=name) for name in ids]
            assert [state["agent"]["count"] for state in states] == [1, 2]
            assert [len(state["messages"]) for state in states] == [0, 1]

    asyncio.run(main())


def test_the_loop_goes_on_while_an_effect_waits_for_the_disk(store):
    """What is written before and after an effect is written by another thread."""

    async def main():
        async with Session("job", store=store) as session:
            loop_thread, seen = threading.get_ident(), []
            real = session._state.ledger.append

            def append(*args, **kwargs):
                seen.append(threading.get_ident())
                return real(*args, **kwargs)

            session._state.ledger.append = append
            await send("a")
            assert len(seen) == 2
            assert loop_thread not in seen

    asyncio.run(main())


def test_a_zombie_is_told(store):
    async def main():
        async with Session("job", store=store, every="manual") as old:
            new = Session("job", store=old.manager)
            with pytest.raises(ConflictError):
                await old.asave()
            with pytest.raises(ConflictError):
                await send("too late")
            assert _done == []
            with as_current(new._tools):
                await send("now")
            new.close()
        with pytest.raises(InvalidInputError):
            await old.asave()

    asyncio.run(main())


def test_verify_after_an_error_awaits_on_the_callers_loop():
    async def main():
        loop = asyncio.get_running_loop()
        seen = []

        async def check(x):
            seen.append(asyncio.get_running_loop())
            return "found" if x else None

        @tool(effect="irreversible", key=lambda x: x, verify=check)
        async def lost(x):
            raise TimeoutError("no answer")

        async with Session("job", store=CheckpointManager()) as session:
            for x in (0, 1):
                with pytest.raises(TimeoutError):
                    await lost(x)
            assert seen == [loop, loop]
            assert [effect.status for effect in session.effects] == ["failed", "committed"]
            assert await lost(1) == "found"

    asyncio.run(main())


def test_a_call_that_is_cancelled_while_it_is_committed_is_replayed():
    sent = []

    @tool(effect="irreversible")
    async def once(to):
        sent.append(to)
        return len(sent)

    async def main():
        async with Session("job", store=CheckpointManager()) as session:
            real, slow = session._state.ledger.append, [1]

            def append(what, **options):
                if what == "committed" and slow:
                    slow.clear()
                    time.sleep(0.3)
                return real(what, **options)

            session._state.ledger.append = append
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(once("bob"), 0.1)
            assert await once("bob") == 1
            assert await once("bob") == 2

    asyncio.run(main())
    assert sent == ["bob", "bob"]


def test_verify_of_what_was_approved_awaits_on_the_callers_loop(store):
    ready = None
    threads = []

    async def was_paid(order):
        threads.append(threading.get_ident())
        if len(threads) == 1:
            raise OSError("no answer")
        await asyncio.wait_for(ready.wait(), 5)
        return f"paid {order}"

    @tool(effect="irreversible", key=lambda order: order, approve=True, verify=was_paid)
    async def approved_pay(order):
        _done.append(order)
        raise TimeoutError("no answer")

    async def main():
        nonlocal ready
        ready = asyncio.Event()
        agent = Agent()
        async with Session("job", agent=agent, store=store) as session:
            agent.count = 7
            with pytest.raises(Suspended) as waits:
                await approved_pay(1)
            assert session.history(1)[0]["label"] == f"waits for {waits.value.approval_id}"
            assert session.manager.state_dict("job")["agent"]["count"] == 7
            session.approvals.approve(waits.value.approval_id)
            with pytest.raises(TimeoutError):
                await approved_pay(1)
            asyncio.get_running_loop().call_later(0.02, ready.set)
            assert await approved_pay(1) == "paid 1"
        assert _done == [1]
        assert set(threads) == {threading.get_ident()}

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_state_that_waits_for_an_approval_is_captured_on_the_loop(store):
    threads = []

    class Watched(Agent):
        def state_dict(self):
            threads.append(threading.get_ident())
            return super().state_dict()

    @tool(effect="irreversible", key=lambda order: order, approve=True)
    async def approved_ship(order):
        _done.append(order)

    async def main():
        async with Session("job", agent=Watched(), store=store):
            with pytest.raises(Suspended):
                await approved_ship(1)
        assert set(threads) == {threading.get_ident()}

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_is_awaited_for_a_call_may_make_calls_itself(store):
    async def looks(question):
        return await asyncio.sleep(0, True)

    @tool(effect="irreversible", key=lambda n: n, approve=looks)
    def inner_send(n):
        _done.append(n)
        return n

    async def decides(question):
        return inner_send("inner") == "inner"  # on the loop, which must not wait for itself

    @tool(effect="irreversible", key=lambda n: n, approve=decides)
    async def outer_send(n):
        _done.append(n)
        return n

    async def main():
        async with Session("job", agent=Agent(), store=store):
            assert await outer_send("outer") == "outer"
        assert _done == ["inner", "outer"]

    asyncio.run(asyncio.wait_for(main(), 30))
