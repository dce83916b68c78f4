"""manager.diff: from a checkpoint to the present, and between checkpoints."""

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError
from tests.agents import Agent, Planner

NOTHING = {"added": {}, "removed": {}, "changed": {}}


def test_from_the_latest_to_the_present(manager: CheckpointManager) -> None:
    agent = Agent(5)
    manager.save("k", agent)
    assert manager.diff("k", agent=agent) == NOTHING
    agent.count = 10
    assert manager.diff("k", agent=agent)["changed"] == {"count": (5, 10)}


def test_between_two_checkpoints_of_any_key(manager: CheckpointManager) -> None:
    a, b = manager.save("k", Agent(1)), manager.save("k", Agent(2))
    manager.save("other", Agent(3))
    assert manager.diff("k", checkpoint_id_a=a, checkpoint_id_b=b)["changed"] == {"count": (1, 2)}
    assert manager.diff("k", checkpoint_id_a="k~1", checkpoint_id_b="other")["changed"] == {
        "count": (1, 3)
    }
    assert manager.diff("k", checkpoint_id_a=a)["changed"] == {"count": (1, 2)}
    assert manager.diff("k", checkpoint_id_b=a)["changed"] == {"count": (2, 1)}


def test_deep_names_paths_inside_values(manager: CheckpointManager) -> None:
    agent = Agent()
    agent.memory = [{"role": "user"}, {"role": "assistant"}]
    manager.save("k", agent)
    agent.memory[1]["role"] = "tool"
    agent.memory.append({"role": "user"})
    changes = manager.diff("k", agent=agent, deep=True)
    assert changes["changed"] == {"memory[1].role": ("assistant", "tool")}
    assert changes["added"] == {"memory[2]": {"role": "user"}}


def test_parts_are_named(manager: CheckpointManager) -> None:
    planner, agent = Planner(), Agent(1)
    manager.save("k", {"planner": planner, "coder": agent})
    agent.count = 2
    changes = manager.diff("k", agent={"planner": planner, "coder": agent, "more": Planner()})
    assert changes["changed"] == {"coder.count": (1, 2)}
    assert list(changes["added"]) == ["more"]
    manager.save("k", agent)
    assert sorted(manager.diff("k", checkpoint_id_a="k~1")["removed"]) == ["coder", "planner"]


def test_the_agent_is_not_touched(manager: CheckpointManager) -> None:
    agent = Agent(1)
    manager.save("k", agent)
    agent.count = 2
    manager.diff("k", agent=agent)
    assert agent.count == 2


def test_something_must_be_compared(manager: CheckpointManager) -> None:
    cid = manager.save("k", Agent())
    with pytest.raises(InvalidInputError, match="needs an agent"):
        manager.diff("k")
    with pytest.raises(InvalidInputError, match="not both"):
        manager.diff("k", agent=Agent(), checkpoint_id_b=cid)
