"""rollback_context: whatever happens in the block, the agent goes back to where it was."""

import asyncio
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    KeepLatest,
    MemoryBackend,
    StorageError,
    Suspended,
)
from tests.agents import Agent, Planner, TorchLike


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError]
)
def test_any_exception_restores_and_propagates(
    manager: CheckpointManager, error: type[BaseException]
) -> None:
    agent = Agent(1)
    with pytest.raises(error), manager.rollback_context("risky", agent):
        agent.count = 99
        agent.memory.append("bad")
        raise error
    assert (agent.count, agent.memory) == (1, [])


def test_without_an_exception_nothing_is_restored(manager: CheckpointManager) -> None:
    agent = Agent(1)
    with manager.rollback_context("risky", agent) as cid:
        agent.count = 2
    assert agent.count == 2
    assert [row["id"] for row in manager.history("risky")] == [cid]


def test_it_goes_back_to_its_own_checkpoint_whatever_was_saved_since(
    manager: CheckpointManager,
) -> None:
    agent = Agent(1)
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", agent) as cid:
        agent.count = 2
        manager.save("k", agent)
        raise ValueError("x")
    assert agent.count == 1
    newest = manager.history("k")[0]
    assert (newest["kind"], newest["parents"]) == ("rollback", [cid])
    assert manager.state_dict("k")["count"] == 1  # the head of a key is its present


def test_it_restores_even_if_the_checkpoint_was_pruned(manager: CheckpointManager) -> None:
    agent = Agent(1)
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", agent):
        agent.count = 2
        manager.save("k", agent)
        manager.prune("k", KeepLatest(1))
        raise ValueError("x")
    assert agent.count == 1


def test_no_second_entry_if_nothing_was_saved(manager: CheckpointManager) -> None:
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", Agent()):
        raise ValueError("x")
    assert len(manager.history("k")) == 1


def test_a_suspension_is_not_a_failure(manager: CheckpointManager) -> None:
    agent = Agent(1)
    with pytest.raises(Suspended), manager.rollback_context("k", agent):
        agent.count = 2
        raise Suspended("approval-1")
    assert agent.count == 2


def test_parts_and_plain_dicts_go_back_too(manager: CheckpointManager) -> None:
    planner, agent, plain = Planner(), Agent(1), {"x": 1e-9}
    parts = {"planner": planner, "agent": agent}
    with (
        pytest.raises(ValueError, match="x"),
        manager.rollback_context("k", parts),
        manager.rollback_context("plain", plain),
    ):
        planner.plan.append("worse")
        agent.count = 2
        plain.clear()
        raise ValueError("x")
    assert (planner.plan, agent.count, plain) == (["think"], 1, {"x": 1e-9})


def test_attributes_that_came_up_in_the_block_are_gone(manager: CheckpointManager) -> None:
    agent = Agent(1)
    agent.inner = Planner()
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", agent):
        agent.plan = "made in the block"
        agent.inner.more = 1
        agent._cache = 2
        raise ValueError("x")
    assert not hasattr(agent, "plan")
    assert not hasattr(agent.inner, "more")
    assert agent._cache == 2


class Tool(Checkpointable):
    def __init__(self, name: str) -> None:
        self.name = name
        self.uses = 0
        self._call = name.upper

    def use(self) -> str:
        self.uses += 1
        return self._call()


class Toolbox(Checkpointable):
    def __init__(self) -> None:
        self.by_name = {"up": Tool("up"), "down": Tool("down")}
        self.row = [Tool("a"), [Tool("b")]]
        self.current = self.by_name["up"]
        self.module = TorchLike()


def test_objects_in_lists_and_dicts_keep_what_is_not_captured(manager: CheckpointManager) -> None:
    box = Toolbox()
    up, b, module = box.by_name["up"], box.row[1][0], box.module
    up.use()
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", box):
        up.use()
        b.use()
        box.by_name.pop("up")
        box.row = []
        box.current = Tool("other")
        box.module = TorchLike()
        raise ValueError("x")
    assert box.by_name["up"] is up
    assert (up.uses, up.use()) == (1, "UP")
    assert box.row[1][0] is b
    assert (b.uses, b.use()) == (0, "B")
    assert box.current is up  # one object in two places is one object again
    assert box.module is module


def test_a_plain_load_makes_them_anew(manager: CheckpointManager) -> None:
    box = Toolbox()
    manager.save("k", box)
    old = box.by_name["up"]
    manager.load("k", box)
    assert box.by_name["up"] is not old
    assert box.current is old  # a direct attribute is loaded into in place


def test_a_dict_with_an_agent_in_it_goes_back_and_loads_in_place(
    manager: CheckpointManager,
) -> None:
    planner = Planner()
    mixed: dict[str, Any] = {"planner": planner, "n": 1, "more": [Agent(3)]}
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", mixed):
        planner.plan.append("worse")
        mixed["n"] = 2
        mixed["planner"] = None
        raise ValueError("x")
    assert mixed["planner"] is planner
    assert (planner.plan, mixed["n"], mixed["more"][0].count) == (["think"], 1, 3)
    fresh: dict[str, Any] = {"planner": Planner(), "n": 0}
    keeper = fresh["planner"]
    keeper.plan = []
    manager.load("k", fresh)
    assert fresh["planner"] is keeper
    assert (keeper.plan, fresh["n"], type(fresh["more"][0])) == (["think"], 1, Agent)


class Failing(MemoryBackend):
    """A memory backend that can be made to fail."""

    failing = False

    def append(self, stream: str, entry: bytes, **options: Any) -> int:
        if self.failing:
            raise StorageError("the disk is full")
        return super().append(stream, entry, **options)


@pytest.mark.parametrize("way", ["background", "record"])
def test_a_failing_store_hides_neither_the_rollback_nor_the_error(way: str) -> None:
    backend = Failing()
    manager = CheckpointManager(backend)
    agent = Agent(1)
    with pytest.raises(ValueError, match="x"), manager.rollback_context("k", agent):
        agent.count = 2
        backend.failing = way == "background"
        manager.save_in_background("k", agent)
        manager.background.wait()
        backend.failing = True
        raise ValueError("x")
    assert agent.count == 1
    backend.failing = False
    with pytest.raises(StorageError, match="full"):  # told at the next save
        manager.save("k", agent)
    manager.save("k", agent)


def test_the_label_is_kept(manager: CheckpointManager) -> None:
    with manager.rollback_context("k", Agent(), label="before deploy"):
        pass
    assert manager.history("k")[0]["label"] == "before deploy"
