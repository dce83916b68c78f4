"""A load that fails leaves the agent exactly as it was."""

from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    MigrationError,
    StateError,
    register_migration,
)
from agent_checkpoint.core.stateful import StateDict
from tests.unit.core.agents import Guarded, Holder, Module, PinnedAgent, Skill


class TestAtomicLoad:
    def test_a_failing_assignment_leaves_the_agent_as_it_was(self) -> None:
        agent = Guarded()
        mine = agent.a = ["mine"]
        with pytest.raises(StateError, match=r"agent\.b cannot be assigned \(ValueError\)"):
            agent.load_state_dict({"a": ["new"], "b": -1, "c": 2})
        assert vars(agent) == {"a": ["mine"], "b": 1, "c": 1}
        assert agent.a is mine

    def test_attributes_that_were_not_there_are_gone_again(self) -> None:
        agent = Guarded()
        state = {"fresh": 1, "b": -1, "__class__": "Guarded"}
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert vars(agent) == {"a": 1, "b": 1, "c": 1}

    def test_a_default_of_the_class_is_not_left_on_the_instance(self) -> None:
        class WithDefault(Guarded):
            limit = 3

        agent = WithDefault()
        with pytest.raises(StateError):
            agent.load_state_dict({"limit": 9, "b": -1, "__class__": "WithDefault"})
        assert vars(agent) == {"a": 1, "b": 1, "c": 1}
        assert agent.limit == 3

    def test_slots_that_were_empty_are_empty_again(self) -> None:
        class Slotted(Checkpointable):
            __slots__ = ("first", "second")

            def __setattr__(self, name: str, value: Any) -> None:
                if value == "bad":
                    raise ValueError(name)
                super().__setattr__(name, value)

        agent = Slotted()
        with pytest.raises(StateError):
            agent.load_state_dict({"first": 1, "second": "bad", "__class__": "Slotted"})
        assert not hasattr(agent, "first")

    def test_a_property_without_a_setter_is_refused(self) -> None:
        class ReadOnly(Checkpointable):
            def __init__(self) -> None:
                self.a = 1

            def _checkpoint_fields(self) -> "list[str]":
                return ["a", "double"]

            @property
            def double(self) -> int:
                return self.a * 2

        agent = ReadOnly()
        with pytest.raises(StateError, match=r"agent\.double cannot be assigned"):
            agent.load_state_dict({"a": 5, "double": 10})
        assert vars(agent) == {"a": 1}

    def test_a_failing_migration_leaves_the_agent_as_it_was(self) -> None:
        def fail(state: "dict[str, Any]") -> None:
            state["memory"].append("half done")
            raise KeyError("calls")

        register_migration("PinnedAgent", from_version="1.0", fn=fail)
        agent = PinnedAgent()
        state = {"memory": [], "__class__": "PinnedAgent", "__version__": "1.0"}
        with pytest.raises(MigrationError, match=r"PinnedAgent from .* 1\.0 failed \(KeyError"):
            agent.load_state_dict(state)
        assert agent.memory == []
        assert state["memory"] == []

    def test_a_nested_object_that_refuses_undoes_the_whole_load(self) -> None:
        class Pair(Checkpointable):
            def __init__(self) -> None:
                self.before = Skill()
                self.guarded = Guarded()
                self.after = 1

        agent = Pair()
        state = agent.state_dict()
        state["before"]["level"] = 9
        state["guarded"]["a"] = 9
        state["guarded"]["b"] = -9
        state["after"] = 9
        with pytest.raises(StateError, match=r"agent\.guarded\.b cannot be assigned"):
            agent.load_state_dict(state)
        assert (agent.before.level, vars(agent.guarded), agent.after) == (
            1,
            {"a": 1, "b": 1, "c": 1},
            1,
        )

    def test_a_nested_object_of_an_unknown_class_refuses_the_whole_load(self) -> None:
        agent = Holder(1)
        nested = StateDict({"__class__": "NobodyDefinesThis"})
        with pytest.raises(StateError, match=r"agent\.part\[1\].*'NobodyDefinesThis'"):
            agent.load_state_dict({"more": 2, "part": [0, nested], "__class__": "Holder"})
        assert vars(agent) == {"part": 1}

    def test_a_rebuilt_object_that_refuses_leaves_the_agent_as_it_was(self) -> None:
        agent = Holder(1)
        nested = StateDict({"b": -1, "__class__": "Guarded"})
        with pytest.raises(StateError, match=r"agent\.part\[0\] cannot be rebuilt.*b cannot be"):
            agent.load_state_dict({"part": [nested]})
        assert agent.part == 1

    def test_a_foreign_part_is_taken_back_when_a_later_one_fails(self) -> None:
        class Mixed(Guarded):
            def __init__(self) -> None:
                self.module = Module()
                super().__init__()

        agent = Mixed()
        state = agent.state_dict()
        state["module"]["weights"] = [9.0]
        state["b"] = -1
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert agent.module.weights == [0.0]

    def test_taking_back_goes_on_when_one_step_cannot_be_taken_back(self) -> None:
        class Ratchet(Guarded):
            """Its `a` can only grow, so that setting it back fails."""

            def __setattr__(self, name: str, value: Any) -> None:
                if name == "a" and value < getattr(self, "a", 0):
                    raise ValueError("a shrinks")
                super().__setattr__(name, value)

        agent = Ratchet()
        with pytest.raises(StateError, match=r"\.b cannot be assigned"):
            agent.load_state_dict({"c": 5, "a": 5, "b": -1})
        assert agent.c == 1
