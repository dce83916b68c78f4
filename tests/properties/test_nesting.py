"""What can be saved can be loaded, however it is nested, from a stack that is in use already."""

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    IntegrityError,
    Log,
    StateError,
    register_type,
)
from tests.agents import managers

T = TypeVar("T")

CALLER = 330
"""How much of the stack a caller may have used: a third of what Python has by default."""

LONG = "text " * 300


class Link(Checkpointable):
    def __init__(self, below: Any = None) -> None:
        self.below = below


class LongLink(Checkpointable):
    """One that is cut out of the entry."""

    def __init__(self, below: Any = None) -> None:
        self.below = below
        self.text = LONG


class HookedLink(Checkpointable):
    """One whose class has methods of its own."""

    def __init__(self, below: Any = None) -> None:
        self.below = below

    def state_dict(self) -> "dict[str, Any]":
        return super().state_dict()

    def load_state_dict(self, state: "dict[str, Any]", strict: bool = False) -> Any:
        return super().load_state_dict(state, strict)


@register_type(name="nesting.Box")
@dataclass
class Box:
    below: Any


WRAPS: "dict[str, Any]" = {
    "object": Link,
    "long object": LongLink,
    "hooked object": HookedLink,
    "list": lambda value: [value],
    "long list": lambda value: [LONG, value],
    "dict": lambda value: {"a": value},
    "long dict": lambda value: {"a": value, "b": LONG},
    "pairs": lambda value: {1: value},
    "tuple": lambda value: (value,),
    "deque": lambda value: deque([value]),
    "ordered": lambda value: OrderedDict(a=value),
    "dataclass": Box,
    "log": lambda value: Log([value]),
}


@pytest.fixture(params=["memory", "file", "pickle", "sqlite"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    with managers(tmp_path)[request.param] as opened:
        yield opened


def nested(names: "list[str]") -> Any:
    value: Any = "the innermost"
    for name in names:
        value = WRAPS[name](value)
    return value


def called_from(frames: int, call: Any) -> Any:
    """Return what a call returns that is made from so deep in the stack."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]

    def descend(more: int) -> Any:
        return descend(more - 1) if more > 0 else call()

    return descend(frames - depth)


def innermost(value: Any) -> "tuple[int, Any]":
    """Return what is at the bottom, and how deep that is."""
    depth = 0
    while not isinstance(value, str):
        depth += 1
        if isinstance(value, (Link, LongLink, HookedLink, Box)):
            value = value.below
        elif isinstance(value, dict):
            value = next(iter(value.values()))
        else:
            value = list(value)[-1]
    return depth, value


def check(manager: CheckpointManager, names: "list[str]") -> bool:
    """Save and load such a value, in all ways; tell whether it could be saved."""
    try:
        state = {"value": nested(names), "plain": 1}  # a log copies its items
        called_from(CALLER, lambda: manager.save("key", state))
    except StateError:
        return False
    fresh: dict[str, Any] = {}
    called_from(CALLER, lambda: manager.load("key", fresh))
    assert innermost(fresh["value"]) == (len(names), "the innermost")
    called_from(CALLER, lambda: manager.load("key", state))
    called_from(CALLER, lambda: manager.state_dict("key"))
    called_from(CALLER, lambda: manager.diff("key", checkpoint_id_a="key", checkpoint_id_b="key"))
    called_from(CALLER, lambda: manager.fork("key", "fork"))
    assert innermost(state["value"]) == (len(names), "the innermost")
    manager.delete("key")
    manager.delete("fork")
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPS)
def test_one_kind_in_itself(manager: CheckpointManager, name: str) -> None:
    saved = [check(manager, [name] * depth) for depth in (1, 32, 33, 34, 50, 51)]
    assert all(saved[:3])
    saved += [check(manager, [name] * depth) for depth in (90, 99, 100, 101, 103)]
    assert saved.count(False) or name == "dataclass"  # which a pickle takes as it is


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(sorted(WRAPS)), min_size=1, max_size=4), st.integers(30, 110))
@example(["object", "list"], 66)
@example(["hooked object", "tuple"], 66)
@example(["long object", "long list"], 66)
@example(["dataclass", "object"], 50)
def test_many_kinds_in_each_other(
    manager: CheckpointManager, names: "list[str]", depth: int
) -> None:
    check(manager, (names * depth)[:depth])


@pytest.mark.parametrize("kind", [Link, HookedLink])
def test_objects_in_objects_count_twice(kind: Any) -> None:
    agent: Any = 1
    for _ in range(51):
        agent = kind(agent)
    manager = CheckpointManager()
    manager.save("key", agent)
    fresh = kind()
    manager.load("key", fresh)
    assert fresh.state_dict() == agent.state_dict()
    with pytest.raises(StateError, match=r"agent\.below\.below.* deeper than 100 levels"):
        manager.save("key", kind(agent))
    with pytest.raises(StateError, match="deeper than 100 levels"):
        kind(agent).state_dict()


def test_a_stack_that_is_used_up_is_told() -> None:
    manager = CheckpointManager()
    state = {"value": nested(["tuple"] * 90), "plain": 1}
    manager.save("key", state)
    limit = sys.getrecursionlimit()
    with pytest.raises((StateError, IntegrityError), match="stack"):
        called_from(limit - 200, lambda: manager.load("key", {}))
