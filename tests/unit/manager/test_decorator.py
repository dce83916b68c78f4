"""@checkpoint: on functions, methods and coroutines; counting per agent; rollback on error."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    InvalidInputError,
    Suspended,
    checkpoint,
)
from tests.agents import Agent, TorchLike


def saved(manager: CheckpointManager, key: str = "k") -> list[int]:
    if key not in manager.list_keys():
        return []
    rows = reversed(manager.history(key))
    return [manager.state_dict(key, row["id"])["count"] for row in rows]


def test_it_saves_at_every_fifth_call(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=5)
    def process(agent: Agent, text: str) -> str:
        """Do it."""
        agent.count += 1
        return text

    agent = Agent()
    assert [process(agent, str(n)) for n in range(12)] == [str(n) for n in range(12)]
    assert saved(manager) == [5, 10]
    assert (process.__name__, process.__doc__) == ("process", "Do it.")


def test_methods_save_their_object(manager: CheckpointManager) -> None:
    class Worker(Checkpointable):
        def __init__(self) -> None:
            self.count = 0

        @checkpoint(manager, key="k")
        def step(self, n: int) -> int:
            self.count += n
            return self.count

    worker = Worker()
    assert (worker.step(2), worker.step(n=3)) == (2, 5)
    assert saved(manager) == [2, 5]


def test_coroutines_are_awaited(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=2, on_error="rollback")
    async def step(agent: Agent, fail: bool = False) -> int:
        agent.count += 1
        await asyncio.sleep(0)
        if fail:
            raise ValueError("no")
        return agent.count

    async def work() -> Agent:
        agent = Agent()
        await step(agent)
        with pytest.raises(ValueError, match="no"):
            await step(agent, fail=True)
        assert agent.count == 1
        assert await step(agent) == 2
        return agent

    asyncio.run(work())
    assert saved(manager) == [2]


def test_the_key_may_be_told_by_the_call(manager: CheckpointManager) -> None:
    calls: list[Any] = []

    def key(agent: Agent, *args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return f"agent-{agent.count}"

    @checkpoint(manager, key=key)
    def process(text: str, agent: Agent, *, loud: bool) -> None: ...

    process("hi", Agent(7), loud=True)
    assert manager.list_keys() == ["agent-7"]
    assert calls == [(("hi",), {"loud": True})]
    process("hi", agent=Agent(8), loud=True)
    assert manager.list_keys() == ["agent-7", "agent-8"]


def test_a_bad_key_is_noticed_before_the_work(manager: CheckpointManager) -> None:
    @checkpoint(manager, key=lambda agent: "")
    def process(agent: Agent) -> None:
        agent.count += 1

    agent = Agent()
    with pytest.raises(InvalidInputError):
        process(agent)
    assert agent.count == 0


def test_agents_are_counted_apart(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=3)
    def process(agent: Agent) -> None:
        agent.count += 1

    a, b = Agent(), Agent(100)
    for agent in (a, b, a, b, a):
        process(agent)
    assert saved(manager) == [3]


def test_a_new_agent_is_not_taken_for_one_that_is_gone(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=2)
    def process(agent: Agent) -> None: ...

    for _ in range(50):  # ids of objects are used again
        process(Agent())
        gc.collect(0)
    assert manager.list_keys() == []


def test_agents_without_weak_references_are_counted(manager: CheckpointManager) -> None:
    class Slotted:
        __slots__ = ("count",)

        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    @checkpoint(manager, key="k", every=2)
    def process(agent: Slotted) -> None:
        agent.count += 1

    agent = Slotted()
    for _ in range(4):
        process(agent)
    assert saved(manager) == [2, 4]


def test_counting_is_right_under_threads() -> None:
    manager = CheckpointManager()

    @checkpoint(manager, key=lambda agent: f"agent-{id(agent)}", every=5)
    def process(agent: TorchLike) -> None: ...

    agents = [TorchLike() for _ in range(3)]

    def work() -> None:
        for _ in range(50):
            for agent in agents:
                process(agent)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(manager.history(f"agent-{id(agent)}")) for agent in agents] == [80, 80, 80]


def test_an_error_gives_the_state_back(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", on_error="rollback")
    def process(agent: Agent, error: BaseException) -> None:
        agent.count += 1
        agent.memory.append("half")
        raise error

    agent = Agent(1)
    with pytest.raises(ValueError, match="x"):
        process(agent, ValueError("x"))
    assert (agent.count, agent.memory) == (1, [])
    with pytest.raises(Suspended):  # waiting is not failing
        process(agent, Suspended("a-1"))
    assert agent.count == 2
    assert manager.list_keys() == []


def test_without_rollback_the_failed_state_stays(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k")
    def process(agent: Agent) -> None:
        agent.count += 1
        raise ValueError("x")

    agent = Agent(1)
    with pytest.raises(ValueError, match="x"):
        process(agent)
    assert agent.count == 2
    assert manager.list_keys() == []


def test_a_call_without_an_agent_says_so(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k")
    def process(agent: Any) -> None:
        raise AssertionError("must not run")

    with pytest.raises(InvalidInputError, match=r"nothing to save: .*process was called without"):
        process(3)


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 3},
        {"key": "k", "every": 0},
        {"key": "k", "every": 2.5},
        {"key": "k", "every": True},
        {"key": "k", "on_error": "retry"},
    ],
)
def test_options_that_make_no_sense(manager: CheckpointManager, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        checkpoint(manager, **options)


def test_whatever_returns_an_awaitable_is_awaited_before_the_save(
    manager: CheckpointManager,
) -> None:
    async def step(agent: Agent, fail: bool = False) -> int:
        await asyncio.sleep(0)
        agent.count += 1
        if fail:
            raise ValueError("no")
        return agent.count

    decorated = checkpoint(manager, key="k", on_error="rollback")(
        lambda agent, **options: step(agent, **options)
    )

    async def work() -> None:
        agent = Agent()
        assert await decorated(agent) == 1
        with pytest.raises(ValueError, match="no"):
            await decorated(agent, fail=True)
        assert agent.count == 1

    asyncio.run(work())
    assert saved(manager) == [1]


def test_classes_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(InvalidInputError, match=r"does not support classes: .*Agent"):
        checkpoint(manager, key="k")(Agent)


def test_generators_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(InvalidInputError, match="generator"):

        @checkpoint(manager, key="k")
        def process(agent: Agent) -> Any:
            yield agent
