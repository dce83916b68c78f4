"""Errors name the path of the value."""

import threading
from collections import deque
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    Log,
    Session,
    StateError,
)
from agent_checkpoint.core.state_codec import encode_state
from tests.unit.core.agents import Holder, MyAgent, reloaded


class Pool:
    def __init__(self) -> None:
        self.locks = (0, threading.Lock())


class Client:
    """As the client of a library: its insides are not the user's."""

    def __init__(self) -> None:
        self.pool = Pool()


class TestPathsInErrors:
    def test_an_unpicklable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(
            StateError, match=r"^agent\.memory\[3\]\.client \(_thread\.lock\) cannot be captured \("
        ):
            encode_state(agent, "agent")

    def test_an_uncopyable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(
            StateError, match=r"^agent\.memory\[3\]\.client \(_thread\.lock\) cannot be copied \("
        ):
            agent.state_dict()

    @pytest.mark.parametrize(
        ("capture", "verb"),
        [
            (Checkpointable.state_dict, "copied"),
            (Checkpointable.clone, "copied"),
            (lambda agent: encode_state(agent, "agent"), "captured"),
            (lambda agent: encode_state(agent, "agent", "pickle"), "copied"),
        ],
        ids=["state_dict", "clone", "save", "pickle"],
    )
    @pytest.mark.parametrize("outer", [lambda v: v, lambda v: [0, {"x": (v,)}]], ids=["", "nested"])
    def test_the_attribute_of_the_user_is_named_before_what_is_inside(
        self, capture: Any, verb: str, outer: Any
    ) -> None:
        agent = MyAgent()
        agent.memory = outer(Client())
        path = "agent.memory" if outer(1) == 1 else "agent.memory[1].x[0]"
        with pytest.raises(StateError) as caught:
            capture(agent)
        assert str(caught.value).startswith(
            f"{path} ({__name__}.Client) cannot be {verb} because of {path}.pool.locks[1] "
            "(_thread.lock) (TypeError). Keep it in an attribute with a leading underscore"
        )

    def test_the_client_of_a_library_is_named(self) -> None:
        anthropic = pytest.importorskip("anthropic")
        agent = MyAgent()
        agent.memory = [anthropic.Anthropic(api_key="test")]
        with pytest.raises(
            StateError,
            match=r"^agent\.memory\[0\] \(anthropic\.Anthropic\) cannot be captured because",
        ):
            CheckpointManager().save("key", agent)

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_of_the_agent_itself_names_its_class(self, capture: Any) -> None:
        agent = MyAgent()
        agent.memory = agent  # type: ignore[assignment]
        with pytest.raises(StateError, match=r"^agent\.memory \(\S+\.MyAgent\) refers back"):
            capture(agent)

    def test_an_item_of_a_log_is_named_by_the_attribute(self) -> None:
        agent, log = MyAgent(), Log([0, {"run": [lambda: 0]}])
        agent.memory = log  # type: ignore[assignment]
        manager = CheckpointManager()
        for subject, path in (
            (agent, "agent.memory"),
            ({"messages": log}, "messages"),
            ({"plan": {"a b": log}}, 'agent.plan["a b"]'),
            ({"plan": 1, "the log": log}, 'agent["the log"]'),
        ):
            with pytest.raises(StateError) as caught:
                manager.save("key", subject)
            assert str(caught.value).startswith(f"{path}[1].run[0] (function) cannot be captured (")
        with Session("session", store=manager) as session:
            session.messages.append(log[1])
            with pytest.raises(StateError, match=r"^messages\[0\]\.run\[0\] \(function\) cannot"):
                session.save()
            session.messages.truncate(0)

    def test_a_cycle_in_an_item_of_a_log_is_named(self) -> None:
        item: dict[str, Any] = {"role": "user"}
        item["content"] = [item]
        with pytest.raises(
            StateError,
            match=r"^log\[1\]\.content \(list\) contains a cycle: log\[1\]\.content\[0\] refers",
        ):
            Log([0, item])

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_is_named_by_its_path(self, capture: Any) -> None:
        agent = MyAgent()
        agent.memory = [1, {"self": agent.memory}]
        agent.memory[1]["self"] = agent.memory
        with pytest.raises(
            StateError,
            match=r"^agent\.memory \(list\) contains a cycle: agent\.memory\[1\]\.self refers back",
        ):
            capture(agent)

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_of_objects_is_named_by_its_path(self, capture: Any) -> None:
        parent = Holder(Holder())
        parent.part.part = [parent]
        with pytest.raises(
            StateError, match=r"^agent\.part \(\S+\.Holder\) .*: agent\.part\.part\[0\] refers back"
        ):
            capture(parent)

    def test_a_cycle_of_slotted_objects_is_named_by_its_path(self) -> None:
        class Link(Checkpointable):
            __slots__ = ("next",)

        link = Link()
        link.next = deque([link])
        with pytest.raises(
            StateError, match=r"^agent\.next \(\S+deque\) .*: agent\.next\[0\] refers back"
        ):
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
