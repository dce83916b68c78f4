"""Statefuls of other kinds, as attributes and at the top."""

from typing import Any

import pytest

from agent_checkpoint import (
    StateError,
    Stateful,
)
from agent_checkpoint.core.stateful import StateDict
from tests.unit.core.agents import Guarded, Holder, Module, MyAgent, StateModule, reloaded


class TestForeignStatefuls:
    def test_a_module_is_captured_by_its_own_method(self) -> None:
        state = Holder(Module()).state_dict()
        assert state["part"] == {"weights": [0.0]}
        assert "__class__" not in state["part"]

    def test_a_module_is_loaded_in_place_by_its_own_method(self) -> None:
        agent, fresh = Holder(Module()), Holder(Module())
        agent.part.weights = [1.5]
        kept = fresh.part
        reloaded(agent, fresh)
        assert fresh.part is kept
        assert fresh.part.weights == [1.5]

    def test_a_module_gets_a_plain_dict(self) -> None:
        class Picky(Module):
            def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
                assert type(state_dict) is dict
                super().load_state_dict(state_dict, strict)

        agent = Holder(Picky())
        reloaded(agent, agent)

    def test_a_module_that_is_not_there_cannot_be_made(self) -> None:
        fresh = Holder(None)
        with pytest.raises(StateError, match=r"agent\.part .*cannot be rebuilt"):
            reloaded(Holder(Module()), fresh)
        assert fresh.part is None

    def test_a_module_that_refuses_leaves_all_as_it_was(self) -> None:
        agent = Holder(Module())
        with pytest.raises(StateError, match=r"agent\.part rejected the state"):
            agent.load_state_dict({"more": 1, "part": StateDict(bias=1), "__class__": "Holder"})
        assert agent.part.weights == [0.0]
        assert not hasattr(agent, "more")

    def test_a_module_that_fails_half_way_is_put_back(self) -> None:
        class HalfWay(Module):
            def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
                super().load_state_dict(state_dict, strict)
                if state_dict["weights"] == [9.0]:
                    raise RuntimeError("shape")

        agent = Holder(HalfWay())
        with pytest.raises(StateError, match="RuntimeError"):
            agent.load_state_dict({"part": StateDict(weights=[9.0])})
        assert agent.part.weights == [0.0]

    def test_live_values_of_a_module_do_not_show_in_the_state(self) -> None:
        agent = Holder(StateModule())
        state = agent.state_dict()
        agent.part.content.append(1)
        assert state["part"] == {"content": []}

    def test_a_module_that_keeps_what_it_is_given_shares_nothing_with_the_state(self) -> None:
        agent = Holder(StateModule())
        state = agent.state_dict()
        agent.load_state_dict(state)
        agent.part.content.append(1)
        assert state["part"] == {"content": []}

    def test_a_module_with_live_values_is_put_back(self) -> None:
        class Failing(Guarded):
            def __init__(self) -> None:
                self.module = StateModule()
                super().__init__()

        agent = Failing()
        agent.module.content = [1]
        state = {"module": StateDict(content=[2]), "b": -1}
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert agent.module.content == [1]

    def test_a_module_that_changes_its_live_values_in_place_is_put_back(self) -> None:
        class InPlace(StateModule):
            def load_state_dict(self, state_dict: "dict[str, Any]", strict: bool = True) -> None:
                self.content[:] = state_dict["content"]
                if "bad" in self.content:
                    raise ValueError("bad")

        agent = Holder(InPlace())
        agent.part.content.append("mine")
        with pytest.raises(StateError, match=r"agent\.part rejected the state"):
            agent.load_state_dict({"part": StateDict(content=["bad"])})
        assert agent.part.content == ["mine"]

    def test_a_module_whose_state_dict_fails_is_named(self) -> None:
        class Broken(Module):
            def state_dict(self) -> Any:
                raise ValueError("on the GPU")

        with pytest.raises(StateError, match=r"agent\.part has a state_dict\(\) that failed"):
            Holder(Broken()).state_dict()

    def test_keys_that_are_not_text_come_back(self) -> None:
        class Optimizer(StateModule):
            def state_dict(self) -> "dict[Any, Any]":
                return {"content": self.content, 0: {"step": 1}}

        fresh = reloaded(Holder(Optimizer()), Holder(Optimizer()))
        assert fresh.part.content == []


class TestProtocol:
    @pytest.mark.parametrize("value", [MyAgent(), Module(), StateModule()])
    def test_anything_with_both_methods_is_a_stateful(self, value: Any) -> None:
        assert isinstance(value, Stateful)

    @pytest.mark.parametrize("value", [object(), {}, 5, None])
    def test_anything_else_is_not(self, value: Any) -> None:
        assert not isinstance(value, Stateful)
