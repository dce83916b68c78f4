"""Errors name the path of the value."""

import threading
from collections import deque
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    StateError,
)
from agent_checkpoint.core.state_codec import encode_state
from tests.unit.core.agents import Holder, MyAgent, reloaded


class TestPathsInErrors:
    def test_an_unpicklable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(StateError, match=r"^agent\.memory\[3\]\.client cannot be captured"):
            encode_state(agent, "agent")

    def test_an_uncopyable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(StateError, match=r"^agent\.memory\[3\]\.client cannot be copied"):
            agent.state_dict()

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_is_named_by_its_path(self, capture: Any) -> None:
        agent = MyAgent()
        agent.memory = [1, {"self": agent.memory}]
        agent.memory[1]["self"] = agent.memory
        with pytest.raises(StateError, match=r"^agent\.memory\[1\]\.self refers back"):
            capture(agent)

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_of_objects_is_named_by_its_path(self, capture: Any) -> None:
        parent = Holder(Holder())
        parent.part.part = [parent]
        with pytest.raises(StateError, match=r"^agent\.part\.part\[0\] refers back"):
            capture(parent)

    def test_a_cycle_of_slotted_objects_is_named_by_its_path(self) -> None:
        class Link(Checkpointable):
            __slots__ = ("next",)

        link = Link()
        link.next = deque([link])
        with pytest.raises(StateError, match=r"^agent\.next\[0\] refers back"):
            link.state_dict()

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_what_is_nested_too_deeply_is_named_by_its_path(self, capture: Any) -> None:
        value: Any = 0
        for _ in range(120):
            value = {"a": value}
        with pytest.raises(StateError, match=r"^agent\.part\.a.* nested deeper than 100 levels"):
            capture(Holder(value))

    def test_the_same_value_twice_is_no_cycle(self) -> None:
        shared = [1]
        assert reloaded(Holder([shared, shared]), Holder()).part == [[1], [1]]

    def test_values_that_are_shared_many_times_are_searched_for_cycles_once(self) -> None:
        value: list[Any] = []
        for _ in range(200):  # a tree of 2 ** 200 paths
            value = [value, value]
        with pytest.raises(StateError, match="nested deeper than 100 levels"):
            encode_state(Holder(value), "agent")
